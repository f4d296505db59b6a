#include "dp/run/metrics.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "fsdp/durable_file.h"
#include "fsdp/regular_file.h"

namespace ghostshard::dp {
namespace {

constexpr uint64_t kMostBytes = uint64_t{4} << 30;  // 4 KiB for each step of a run of a million

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, bool append)
    : path_(path), stream_(path, append ? std::ios::app : std::ios::out) {
  if (!stream_) throw std::runtime_error(path.string() + " cannot be written");
}

void MetricsFile::write(const nlohmann::ordered_json& line) {
  stream_ << line.dump() << '\n' << std::flush;
  if (!stream_) throw std::runtime_error(path_.string() + " could not be written (is the disk full?)");
}

std::vector<nlohmann::ordered_json> metrics_lines(const std::filesystem::path& path) {
  std::vector<nlohmann::ordered_json> lines;
  if (!std::filesystem::exists(path)) return lines;
  std::istringstream stream(fsdp::read_text(path, kMostBytes));
  for (std::string line; std::getline(stream, line);) {
    auto json = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) break;
    lines.push_back(std::move(json));
  }
  return lines;
}

std::vector<nlohmann::ordered_json> keep_metrics(const std::filesystem::path& path, int64_t step) {
  auto lines = metrics_lines(path);
  const auto later = std::find_if(lines.begin(), lines.end(),
                                  [&](const auto& line) { return line["step"].template get<int64_t>() > step; });
  lines.erase(later, lines.end());
  std::string text;
  for (const auto& line : lines) text += line.dump() + '\n';
  fsdp::write_durably(path, text);
  return lines;
}

}  // namespace ghostshard::dp
