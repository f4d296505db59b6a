// metrics.jsonl of a run: one JSON object a line, one line for the state before the first step and one for each step.
#pragma once

#include <filesystem>
#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>

namespace ghostshard::dp {

// Appends whole lines. std::runtime_error naming the file if it cannot.
class MetricsFile {
 public:
  // append: to the file that is there; otherwise a new one.
  MetricsFile(const std::filesystem::path& path, bool append);
  void write(const nlohmann::ordered_json& line);

 private:
  std::filesystem::path path_;
  std::ofstream stream_;
};

// The whole lines of the file, each with its "step"; none without a file. A last line that was cut short is left out.
std::vector<nlohmann::ordered_json> metrics_lines(const std::filesystem::path& path);

// Takes the lines of later steps, whose results are lost, out of the file, durably. Returns those that are left.
std::vector<nlohmann::ordered_json> keep_metrics(const std::filesystem::path& path, int64_t step);

}  // namespace ghostshard::dp
