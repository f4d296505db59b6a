// The file of --config.
#pragma once

#include <CLI/CLI.hpp>
#include <istream>
#include <vector>

namespace ghostshard::gpt2 {

// Throws std::invalid_argument where CLI11 2.1 would read something else than the file says: of two entries of one flag
// that stand apart it keeps the first, a # ends a value in quotes too, and a list without its ] takes the lines below.
class FlagsFile : public CLI::ConfigBase {
 public:
  explicit FlagsFile(const CLI::App& app) : app_(app) {}
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

 private:
  const CLI::App& app_;
};

}  // namespace ghostshard::gpt2
