#include "dp/planning/host_memory_left.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

namespace ghostshard::dp {
namespace {

namespace fs = std::filesystem;

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// The number in a file of one word; nothing for "max" and for a file that is not there.
std::optional<double> number_in(const fs::path& path) {
  std::ifstream file(path);
  double value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The number after `name` in a file of lines "name number ...".
std::optional<double> entry_of(const fs::path& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    double value = 0;
    if (words >> first >> value && first == name) return value;
  }
  return std::nullopt;
}

struct Names {
  const char* limit;
  const char* used;
  const char* cached;  // in memory.stat: pages of files that the kernel would drop first
};
constexpr Names kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Names kVersion2{"memory.max", "memory.current", "inactive_file"};

double left_in_group(const fs::path& group, const Names& names) {
  const auto limit = number_in(group / names.limit), used = number_in(group / names.used);
  if (!limit || !used) return kUnlimited;
  return std::max(0.0, *limit - *used + entry_of(group / "memory.stat", names.cached).value_or(0));
}

// A limit above holds for all below it. Inside a container the group's own path may be missing: then the mount is the
// group.
double left_in_groups(const fs::path& mount, fs::path group, const Names& names) {
  double left = left_in_group(mount, names);
  for (; group.has_relative_path(); group = group.parent_path()) {
    left = std::min(left, left_in_group(mount / group.relative_path(), names));
  }
  return left;
}

// Lines "hierarchy:controllers:path" (cgroups(7)).
double left_by_groups(const fs::path& root) {
  double left = kUnlimited;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = ',' + line.substr(first + 1, second - first - 1) + ',';
    const fs::path group = line.substr(second + 1);
    if (controllers == ",,") left = std::min(left, left_in_groups(root / "sys/fs/cgroup", group, kVersion2));
    if (controllers.find(",memory,") != std::string::npos) {
      left = std::min(left, left_in_groups(root / "sys/fs/cgroup/memory", group, kVersion1));
    }
  }
  return left;
}

}  // namespace

double host_memory_left(const fs::path& root) {
  const auto kibibytes = entry_of(root / "proc/meminfo", "MemAvailable:");
  return std::min(kibibytes ? *kibibytes * 1024 : kUnlimited, left_by_groups(root));
}

}  // namespace ghostshard::dp
