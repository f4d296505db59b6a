#include "accountant/contour/line_moments.h"

#include <algorithm>
#include <utility>

#include "accountant/threads/in_parts.h"

namespace ghostshard::accountant {
namespace {

constexpr int64_t kMostMeshNodes = 400'000;  // of all moments; a kilobyte each
constexpr double kNanoseconds = 200;         // of a mesh's node

}  // namespace

std::vector<PhaseMoment> each_moment(Direction direction, std::span<const ComposedRelease> phases, double c,
                                     bool precise, int64_t nodes) {
  std::vector<std::optional<PhaseMoment>> found(phases.size());
  const double of_each = kNanoseconds * static_cast<double>(nodes) / static_cast<double>(phases.size());
  in_parts(phases.size(), 1, of_each, [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) found[i].emplace(direction, phases[i], c, precise);
  });
  std::vector<PhaseMoment> moments;
  moments.reserve(found.size());
  for (std::optional<PhaseMoment>& each : found) moments.push_back(*std::move(each));
  return moments;
}

int64_t mesh_nodes(Direction direction, std::span<const ComposedRelease> phases, double c) {
  int64_t needed = 0;
  for (const ComposedRelease& phase : phases) needed += PhaseMoment::nodes_needed(direction, phase, c);
  return needed;
}

std::optional<LineMoments> moments_on_line(Direction direction, std::span<const ComposedRelease> phases, double c,
                                           int64_t nodes) {
  if (nodes > kMostMeshNodes) return std::nullopt;
  LineMoments moments;
  moments.each = each_moment(direction, phases, c, false, nodes);
  for (const PhaseMoment& moment : moments.each) {
    moments.log_scale += moment.log_scale();
    moments.nodes += moment.nodes();
  }
  moments.nodes = std::max<size_t>(moments.nodes, 1);
  return moments;
}

}  // namespace ghostshard::accountant
