// The file of --config.
#pragma once

#include <CLI/CLI.hpp>
#include <istream>
#include <vector>

namespace ghostshard::gpt2 {

// Lines `name = value` as TOML or INI have them, read as they stand: a value is one in quotes, a list of such in
// brackets, over several lines too, or the rest of its line. CLI11 2.1 reads some otherwise: a # ends a value in
// quotes, a text of two words is two values, a comment within a list is an item of it, and of two entries of one flag
// that stand apart it keeps the first. What could be read in two ways is refused with its line, as
// std::invalid_argument.
class FlagsFile : public CLI::ConfigBase {
 public:
  explicit FlagsFile(const CLI::App& app) : app_(app) {}
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

 private:
  const CLI::App& app_;
};

}  // namespace ghostshard::gpt2
