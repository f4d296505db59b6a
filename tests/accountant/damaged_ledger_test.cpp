// Ledgers that were tampered with, or cut short by a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "accountant/ledger/sha256.h"
#include "tests/accountant/ledger_fixture.h"

namespace ghostshard::accountant {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// -----------------------------------------------------------------------------------------------------------------
// Tampering

struct Tampering {
  const char* name;
  std::function<void(std::vector<std::string>&)> change;
  const char* message;
};

void PrintTo(const Tampering& c, std::ostream* out) { *out << c.name; }

void replace(std::string& line, const std::string& from, const std::string& to) {
  line.replace(line.find(from), from.size(), to);
}

// The hash of line i of a list, to write a line whose chain is right and whose content is not.
void rechain(std::vector<std::string>& all, size_t i) {
  auto json = nlohmann::json::parse(all[i]);
  json["previous"] = sha256_hex(all[i - 1]);
  all[i] = json.dump();
}

constexpr const char* kEpochLine =
    R"({"type":"epoch","sequence":4,"epoch":1,"step":2,"run_id":"other","key":{"origin":"a dice"},"previous":""})";

class TamperedLedger : public Ledger, public testing::WithParamInterface<Tampering> {};

TEST_P(TamperedLedger, IsRefusedWithPathLineAndRule) {
  write_three_releases();
  auto all = lines();
  GetParam().change(all);
  set_lines(all);
  EXPECT_THAT([&] { (void)read_ledger(path_); },
              ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr(path_.string()), HasSubstr(GetParam().message))));
}

TEST_P(TamperedLedger, IsNotReopened) {
  write_three_releases();
  auto all = lines();
  GetParam().change(all);
  set_lines(all);
  const std::string before = bytes();
  EXPECT_THROW((void)LedgerWriter::reopen(path_), std::invalid_argument);
  EXPECT_EQ(bytes(), before);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, TamperedLedger,
    testing::Values(
        Tampering{"HeaderEdited", [](auto& l) { replace(l[0], "a run", "b run"); }, "line 2: previous must be"},
        Tampering{"ReleaseEdited", [](auto& l) { replace(l[1], "1.1", "2.2"); }, "line 3: previous must be"},
        Tampering{"BlankAdded", [](auto& l) { l[1] += ' '; }, "line 3: previous must be"},
        Tampering{"CarriageReturns",
                  [](auto& l) {
                    for (auto& line : l) line += '\r';
                  },
                  "line 2: previous must be"},
        Tampering{"ReleasesReordered", [](auto& l) { std::swap(l[1], l[2]); }, "line 2: previous must be"},
        Tampering{"ReleaseDeleted", [](auto& l) { l.erase(l.begin() + 1); }, "line 2: previous must be"},
        Tampering{"ReleaseRepeated", [](auto& l) { l.insert(l.begin() + 2, l[1]); }, "line 3: previous must be"},
        Tampering{"HeaderDeleted", [](auto& l) { l.erase(l.begin()); }, "line 1: schema must be"},
        Tampering{"CutInTheMiddleOfTheFile", [](auto& l) { l[2].resize(20); }, "line 3: must be a JSON object"},
        Tampering{"EmptyLine", [](auto& l) { l.insert(l.begin() + 1, ""); }, "line 2: must be a JSON object"},
        Tampering{"Empty", [](auto& l) { l.clear(); }, "line 1: must be a header, the file is empty; if the run"},
        Tampering{"UnknownSchema", [](auto& l) { replace(l[0], "ledger/1", "ledger/2"); },
                  "line 1: schema must be ghostshard.ledger/1, got \"ghostshard.ledger/2\""},
        Tampering{"UnknownAdjacency", [](auto& l) { replace(l[0], "zero-out", "replace!"); },
                  "line 1: adjacency must be one of"},
        Tampering{"HeaderThatIsNotTheFirst", [](auto& l) { replace(l[0], std::string(64, '0'), std::string(64, '1')); },
                  "line 1: the header's previous must be 64 zeros"},
        Tampering{"HeaderOfAnotherType", [](auto& l) { replace(l[0], "\"header\"", "\"release\""); },
                  "line 1: the first line must be of type header"},
        Tampering{"SequenceWithAGap", [](auto& l) { replace(l[3], "\"sequence\":3", "\"sequence\":4"); },
                  "line 4: sequence must be 3, got 4"},
        Tampering{"UnknownEvent", [](auto& l) { replace(l[3], "\"gaussian\"", "\"cauchy\""); },
                  "line 4: event type must be one of"},
        Tampering{"ClipNormOfNoNumber", [](auto& l) { replace(l[3], "\"step\"", "\"clip_norm\":\"1\",\"step\""); },
                  "line 4: clip_norm must be a number"},
        Tampering{"ClipNormBelowZero", [](auto& l) { replace(l[3], "\"step\"", "\"clip_norm\":-1,\"step\""); },
                  "line 4: clip norm must lie between 1e-30 and 1e30"},
        Tampering{"FieldBesideTheClipNorm",
                  [](auto& l) { replace(l[3], "\"step\"", "\"clip_norm\":1,\"more\":1,\"step\""); },
                  "line 4: must be a release of schema"},
        Tampering{"UnknownField", [](auto& l) { replace(l[3], "\"step\"", "\"more\":1,\"step\""); },
                  "line 4: must be a release of schema"},
        Tampering{"MissingField", [](auto& l) { replace(l[3], "\"step\":1,", ""); },
                  "line 4: a release must have step"},
        Tampering{"NegativeStep", [](auto& l) { replace(l[3], "\"step\":1", "\"step\":-1"); },
                  "line 4: step must be a whole number >= 0, got -1"},
        Tampering{"FractionalAttempt", [](auto& l) { replace(l[3], "\"attempt\":1", "\"attempt\":0.5"); },
                  "line 4: attempt must be a whole number >= 0, got 0.5"},
        Tampering{"ReleaseOfAnotherType",
                  [](auto& l) {
                    replace(l[2], "\"release\"", "\"comment\"");
                    rechain(l, 3);
                  },
                  "line 3: must be a release or an epoch of schema"},
        Tampering{"EpochWithAGap",
                  [](auto& l) {
                    l.push_back(kEpochLine);
                    rechain(l, 4);
                    replace(l[4], "\"epoch\":1", "\"epoch\":2");
                  },
                  "line 5: epoch must be 1, got 2"},
        Tampering{"EpochOutOfSequence",
                  [](auto& l) {
                    l.push_back(kEpochLine);
                    rechain(l, 4);
                    replace(l[4], "\"sequence\":4", "\"sequence\":5");
                  },
                  "line 5: sequence must be 4, got 5"},
        Tampering{"EpochWithMore",
                  [](auto& l) {
                    l.push_back(kEpochLine);
                    rechain(l, 4);
                    replace(l[4], "\"epoch\":1", "\"epoch\":1,\"event\":{}");
                  },
                  "line 5: must be an epoch of schema"}),
    [](const auto& c) { return c.param.name; });

// -----------------------------------------------------------------------------------------------------------------
// A crash in the middle of a line

TEST_F(Ledger, ALastLineCutShortIsDroppedAndSaidSo) {
  write_three_releases();
  const auto all = lines();
  const std::string whole = bytes();
  set_bytes(whole.substr(0, whole.size() - 10));
  const LedgerContents contents = read_ledger(path_);
  EXPECT_TRUE(contents.dropped_partial_line);
  EXPECT_EQ(contents.entries.size(), 2U);
  EXPECT_EQ(contents.head, sha256_hex(all[2]));
}

TEST_F(Ledger, AHeaderCutShortHadNoRelease) {
  write_three_releases();
  set_bytes(bytes().substr(0, 20));
  EXPECT_THAT([&] { (void)read_ledger(path_); },
              ThrowsMessage<InvalidLedger>(HasSubstr("line 1: must be a JSON object, it was cut short; if the run")));
}

TEST_F(Ledger, ALastLineThatLacksOnlyItsNewlineCounts) {
  write_three_releases();
  const std::string whole = bytes();
  set_bytes(whole.substr(0, whole.size() - 1));
  EXPECT_EQ(read_ledger(path_).entries.size(), 3U);
  EXPECT_FALSE(read_ledger(path_).dropped_partial_line);
}

TEST_F(Ledger, ReopenRemovesALineCutShort) {
  write_three_releases();
  const std::string whole = bytes();
  set_bytes(whole.substr(0, whole.size() - 10));
  LedgerWriter::reopen(path_).append(1, 2, kEvent);
  const LedgerContents contents = read_ledger(path_);
  EXPECT_EQ(contents.entries.size(), 3U);
  EXPECT_EQ(contents.entries.back().attempt, 2);
  EXPECT_FALSE(contents.dropped_partial_line);
}

TEST_F(Ledger, ReopenCompletesALineThatLacksItsNewline) {
  write_three_releases();
  const std::string whole = bytes();
  set_bytes(whole.substr(0, whole.size() - 1));
  LedgerWriter::reopen(path_).append(2, 1, kEvent);
  EXPECT_EQ(bytes().substr(0, whole.size()), whole);
  EXPECT_EQ(read_ledger(path_).entries.size(), 4U);
}

TEST_F(Ledger, AHeaderCutShortIsNoLedger) {
  write_three_releases();
  set_bytes(bytes().substr(0, 30));
  EXPECT_THROW((void)read_ledger(path_), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::accountant
