// What somebody else hands over: JSON that no library should have to read, ledgers and reports changed at random.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "accountant/ledger.h"
#include "accountant/ledger/sha256.h"
#include "accountant/ledger/strict_json.h"
#include "accountant/report.h"
#include "accountant/report_verify.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
}

TEST(StrictJson, ReadsWhatItAllows) {
  EXPECT_EQ(*parse_strictly(R"({"a":{"a":1},"b":[{"a":2},{"a":3}]})", 100),
            json::parse(R"({"a":{"a":1},"b":[{"a":2},{"a":3}]})"));
  EXPECT_TRUE(parse_strictly(nested(kDeepestJson), 1000));
  EXPECT_FALSE(parse_strictly("{\"a\":", 1000));
  EXPECT_FALSE(parse_strictly("", 1000));
}

struct Refused {
  const char* name;
  std::string text, rule;
};
void PrintTo(const Refused& c, std::ostream* out) { *out << c.name; }
class RefusedJson : public testing::TestWithParam<Refused> {};
TEST_P(RefusedJson, IsRefusedWithTheRule) {
  EXPECT_THAT([&] { (void)parse_strictly(GetParam().text, 300'000); },
              ThrowsMessage<std::invalid_argument>(HasSubstr(GetParam().rule)));
}
INSTANTIATE_TEST_SUITE_P(Hostile, RefusedJson,
                         testing::Values(Refused{"OneTooDeep", nested(kDeepestJson + 1), "deeper than 64"},
                                         Refused{"FarTooDeep", nested(100'000), "deeper than 64"},
                                         Refused{"DeepAndUnfinished", std::string(100'000, '['), "deeper than 64"},
                                         Refused{"DeepObjects",
                                                 [] {
                                                   std::string text;
                                                   for (int i = 0; i < 70; ++i) text += "{\"a\":";
                                                   return text;
                                                 }(),
                                                 "deeper than 64"},
                                         Refused{"TwoKeys", R"({"sigma":9,"sigma":1})", "\"sigma\" twice"},
                                         Refused{"TwoKeysInside", R"({"a":[{"b":1,"c":2,"b":1}]})", "\"b\" twice"},
                                         Refused{"TwoKeysOfOneName", R"({"a":1,"\u0061":2})", "\"a\" twice"},
                                         Refused{"TooLong", std::string(300'001, ' '), "at most 300000 bytes"}),
                         [](const auto& c) { return c.param.name; });

class HostileLedger : public testing::Test {
 protected:
  HostileLedger() {
    LedgerWriter writer = LedgerWriter::create(
        path_,
        {{"adjacency", "zero-out"}, {"units", 1000}, {"delta", 1e-5}, {"facts", {{"weather", {"fine", 3, nullptr}}}}});
    for (int64_t step = 0; step < 4; ++step)
      writer.append(step, 0, PoissonGaussianEvent{SamplingRate(0.01), NoiseMultiplier(1.5)});
    std::ifstream in(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
  }
  void set(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  // The lines, each with the hash of the one before it.
  static std::string rechained(const std::vector<std::string>& lines) {
    std::string text;
    std::string previous(64, '0');
    for (const std::string& line : lines) {
      const size_t at = line.find("\"previous\":\"");
      std::string linked = line;
      if (at != std::string::npos) linked.replace(at + 12, 64, previous);
      previous = sha256_hex(linked);
      text += linked + '\n';
    }
    return text;
  }
  std::vector<std::string> lines() const {
    std::istringstream in(bytes_);
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }

  const tests::TemporaryFolder temporary_;
  const std::filesystem::path path_ = temporary_.path() / "ledger.jsonl";
  std::string bytes_;
};

TEST_F(HostileLedger, ADeepHeaderIsRefused) {
  auto all = lines();
  all[0].insert(all[0].size() - 1, ",\"x\":" + nested(100'000));
  set(rechained(all));
  EXPECT_THAT([&] { (void)read_ledger(path_); },
              ThrowsMessage<InvalidLedger>(HasSubstr("line 1: JSON must not be nested")));
}

// Rechained: both readings of the line have the same hash.
TEST_F(HostileLedger, AKeyTwiceIsRefused) {
  auto all = lines();
  const size_t at = all[2].find("\"noise_multiplier\":");
  all[2].insert(at, "\"noise_multiplier\":9.0,");
  set(rechained(all));
  EXPECT_THAT([&] { (void)read_ledger(path_); },
              ThrowsMessage<InvalidLedger>(
                  HasSubstr("line 3: a JSON object must have each key once, got \"noise_multiplier\"")));
}

TEST_F(HostileLedger, WhatTheReaderRefusesIsNotWritten) {
  json deep = 1;
  for (int i = 0; i < kDeepestJson; ++i) deep = json::array({deep});
  const auto other = temporary_.path() / "other.jsonl";
  EXPECT_THAT(
      [&] {
        (void)LedgerWriter::create(other, {{"adjacency", "zero-out"}, {"deep", deep}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("deeper than 64")));
  EXPECT_FALSE(std::filesystem::exists(other));
}

// Bytes changed, taken out, doubled and put in, as any seed does it: read, or refused with a sentence.
class Fuzz : public HostileLedger, public testing::WithParamInterface<uint64_t> {
 protected:
  std::string changed(const std::string& text, std::mt19937_64& random) const {
    static const std::string kPieces[] = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          "\"",
                                          ":",
                                          ",",
                                          "1e999",
                                          "-1",
                                          "null",
                                          "true",
                                          "\\u0000",
                                          "\n",
                                          "\xff",
                                          std::string(1, '\0'),
                                          nested(80),
                                          "99999999999999999999",
                                          "{}"};
    std::string out = text;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes && !out.empty(); ++i) {
      const size_t at = random() % out.size();
      const size_t length = std::min<size_t>(random() % 20, out.size() - at);
      switch (random() % 5) {
        case 0:
          out[at] = static_cast<char>(random());
          break;
        case 1:
          out.erase(at, length);
          break;
        case 2:
          out.insert(at, out.substr(at, length));
          break;
        case 3:
          out.insert(at, kPieces[random() % std::size(kPieces)]);
          break;
        default:
          out.resize(at);
      }
    }
    return out;
  }
};

TEST_P(Fuzz, ALedgerIsReadOrRefused) {
  std::mt19937_64 random(GetParam());
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    // Half of them with a chain that holds, so that the changes reach what is behind it.
    const bool chained = i % 2 == 0;
    auto all = lines();
    if (chained) {
      std::string& line = all[random() % all.size()];
      line = changed(line, random);
    }
    set(chained ? rechained(all) : changed(bytes_, random));
    try {
      const LedgerContents contents = read_ledger(path_);
      EXPECT_LE(contents.entries.size(), 8U);
      if (i % 25 == 0) (void)build_report(contents, Delta(1e-5), json::object());
    } catch (const std::invalid_argument&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 200);
}

TEST_P(Fuzz, AReportIsComparedOrRefused) {
  std::mt19937_64 random(GetParam() + 1000);
  const LedgerContents contents = read_ledger(path_);
  const std::string report = build_report(contents, Delta(1e-5), json::object()).dump();
  int alike = 0;
  for (int i = 0; i < 40; ++i) {
    std::optional<json> parsed;
    try {
      parsed = parse_strictly(changed(report, random), kLongestJsonDocument);
      if (!parsed) continue;
      bool differs = false;
      for (const Finding& finding : verify_report(contents, *parsed))
        differs = differs || finding.verdict != Finding::Verdict::kAgrees;
      alike += !differs && parsed->dump() != report;
    } catch (const std::invalid_argument&) {
    }
  }
  EXPECT_LE(alike, 8);  // those whose changes fell on a number's last digits, or on how the engine went
}
INSTANTIATE_TEST_SUITE_P(Seeds, Fuzz, testing::Range<uint64_t>(0, 4));

}  // namespace
}  // namespace ghostshard::accountant
