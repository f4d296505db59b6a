// A ledger of three releases in a folder of its own, and its lines as text.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "accountant/ledger.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::accountant {

inline const Event kEvent = PoissonGaussianEvent{SamplingRate(0.01), NoiseMultiplier(1.1)};

class Ledger : public testing::Test {
 protected:
  static nlohmann::json header() { return {{"adjacency", "zero-out"}, {"run_id", "a run"}, {"clip_norm", 1.0}}; }

  void write_three_releases() const {
    LedgerWriter writer = LedgerWriter::create(path_, header());
    writer.append(0, 0, kEvent);
    writer.append(1, 0, kEvent);
    writer.append(1, 1, GaussianEvent{NoiseMultiplier(2)});
  }
  std::string bytes() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void set_bytes(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  std::vector<std::string> lines() const {
    std::istringstream in(bytes());
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }
  void set_lines(const std::vector<std::string>& all) const {
    std::string text;
    for (const std::string& line : all) text += line + '\n';
    set_bytes(text);
  }

  const tests::TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path(), path_ = folder_ / "ledger.jsonl";
};

}  // namespace ghostshard::accountant
