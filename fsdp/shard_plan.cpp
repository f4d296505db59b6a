// For a given shard size the planner puts every tensor at the first place where no shard boundary cuts a granule. A
// tensor that ends earlier leaves the tensors after it every place that one ending later would leave them, so this
// greedy walk is exact: it finds a layout if there is one for this order. The shard size remains to be searched.
// Feasibility is not monotone in it (a tensor over three or more shards needs a size that is a multiple of its
// granule), so sizes are tried upwards from the lower bound, but only multiples of the size that the long tensors
// force.
#include "fsdp/shard_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace ghostshard::fsdp {
namespace {

constexpr int64_t kNowhere = -1;
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

int64_t saturating_lcm(int64_t a, int64_t b) {
  const int64_t factor = b / std::gcd(a, b);
  return a > kHuge / factor ? kHuge : a * factor;
}

struct Extent {
  int64_t numel;
  int64_t granule;
};

// No boundary k·size inside (offset, offset + numel) lies within a granule.
bool fits(const Extent& tensor, int64_t offset, int64_t size) {
  const int64_t boundary = (offset / size + 1) * size;
  const int64_t end = offset + tensor.numel;
  if (end <= boundary) return true;
  if ((boundary - offset) % tensor.granule != 0) return false;
  return end <= boundary + size || size % tensor.granule == 0;
}

// The first offset ≥ start where the tensor fits, or kNowhere if this shard size has none.
int64_t first_fit(const Extent& tensor, int64_t start, int64_t size) {
  if (fits(tensor, start, size)) return start;
  // Either cut the tensor where the next boundary falls between two granules.
  const int64_t boundary = (start / size + 1) * size;
  const int64_t cut_here = start + (boundary - start) % tensor.granule;
  if (fits(tensor, cut_here, size)) return cut_here;
  // Or begin with the next shard, or within it as far left as the boundary after that allows. Moving further right only
  // makes the part after a boundary longer, and every later shard looks like this one.
  if (fits(tensor, boundary, size)) return boundary;
  const int64_t cut_next = boundary + size % tensor.granule;
  return fits(tensor, cut_next, size) ? cut_next : kNowhere;
}

// Offsets for this shard size, or nothing if the tensors do not fit. steps counts the work.
bool lay_out(const std::vector<Extent>& tensors, int64_t size, int64_t world_size, std::vector<int64_t>* offsets,
             int64_t* steps) {
  int64_t end = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    ++*steps;
    const int64_t offset = tensors[t].numel == 0 ? end : first_fit(tensors[t], end, size);
    if (offset == kNowhere) return false;
    end = offset + tensors[t].numel;
    if (end > size * world_size) return false;
    if (offsets != nullptr) (*offsets)[t] = offset;
  }
  return true;
}

// The sizes worth trying, in rising order. A tensor longer than two shards always holds a whole shard, whose size must
// then be a multiple of its granule. As the size grows, fewer tensors are that long.
class CandidateSizes {
 public:
  CandidateSizes(std::vector<Extent> tensors, int64_t alignment, int64_t lowest) : alignment_(alignment), at_(lowest) {
    std::sort(tensors.begin(), tensors.end(), [](const Extent& a, const Extent& b) { return a.numel > b.numel; });
    // multiple_[k]: divides every feasible size for which the k longest tensors are longer than two shards
    multiple_.push_back(alignment);
    for (const Extent& tensor : tensors) {
      numel_.push_back(tensor.numel);
      multiple_.push_back(saturating_lcm(multiple_.back(), tensor.granule));
    }
    forced_ = numel_.size();
  }

  // The smallest candidate ≥ size.
  int64_t from(int64_t size) {
    at_ = std::max(at_, size);
    while (true) {
      while (forced_ > 0 && numel_[forced_ - 1] <= 2 * at_) --forced_;
      const int64_t candidate = multiple_[forced_] >= kHuge ? kHuge : round_up(at_, multiple_[forced_]);
      if (forced_ == 0 || 2 * candidate < numel_[forced_ - 1]) return at_ = candidate;
      // The shortest of the long tensors is no longer forced from here on.
      at_ = round_up(ceil_div(numel_[forced_ - 1], 2), alignment_);
    }
  }

 private:
  int64_t alignment_, at_;
  std::vector<int64_t> numel_, multiple_;
  size_t forced_;
};

// About 20 ms of trying sizes one after the other; after that the planner takes growing strides.
constexpr int64_t kExactSteps = 4'000'000;

int64_t smallest_size(const std::vector<Extent>& tensors, int64_t world_size, int64_t alignment) {
  int64_t total = 0, longest_granule = 1;
  for (const Extent& tensor : tensors) {
    total += tensor.numel;
    longest_granule = std::max(longest_granule, tensor.numel > 0 ? tensor.granule : 1);
  }
  const int64_t lowest = round_up(std::max({ceil_div(total, world_size), longest_granule, int64_t{1}}), alignment);
  CandidateSizes candidates(tensors, alignment, lowest);
  int64_t steps = 0, stride = 1, size = candidates.from(lowest);
  // Ends: the whole of the group on one shard always fits.
  while (!lay_out(tensors, size, world_size, nullptr, &steps)) {
    if (steps > kExactSteps) stride = std::max(stride, size / 1024);
    size = candidates.from(size + stride);
  }
  return size;
}

void check_world_size(int64_t world_size) {
  if (!(world_size >= 1)) {
    throw std::invalid_argument("world_size must be at least 1, got " + std::to_string(world_size));
  }
}

void check_extents(const TensorSpec& spec) {
  for (const int64_t extent : spec.shape) {
    if (!(extent >= 0)) {
      throw std::invalid_argument("tensor '" + spec.name + "': extents must not be negative, got " +
                                  std::to_string(extent));
    }
  }
}

// The elements of a rank if rows are dealt out as torch.chunk does.
OwnedRange rows_of(const TensorSpec& spec, int64_t world_size, int64_t rank) {
  const int64_t rows = spec.shape.empty() ? 1 : spec.shape.front();
  const int64_t row = rows == 0 ? 0 : spec.numel() / rows;
  const int64_t share = ceil_div(rows, world_size);
  const int64_t first = std::min(rank * share, rows), last = std::min((rank + 1) * share, rows);
  return {.tensor = 0, .first = first * row, .count = (last - first) * row, .shard_offset = 0};
}

}  // namespace

int64_t TensorSpec::numel() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

ShardPlan ShardPlan::make(std::vector<TensorSpec> specs, int64_t world_size, int64_t alignment) {
  check_world_size(world_size);
  if (!(alignment >= 1)) {
    throw std::invalid_argument("alignment must be at least 1, got " + std::to_string(alignment));
  }
  std::vector<Extent> tensors;
  for (const TensorSpec& spec : specs) {
    check_extents(spec);
    const int64_t numel = spec.numel();
    if (!(spec.granule >= 1)) {
      throw std::invalid_argument("tensor '" + spec.name + "': its granule must have at least one element, got " +
                                  std::to_string(spec.granule));
    }
    // (A granule longer than its tensor: the tensor stays whole.)
    tensors.push_back({numel, std::max<int64_t>(1, std::min(spec.granule, numel))});
  }
  ShardPlan plan;
  plan.world_size_ = world_size;
  plan.shard_size_ = smallest_size(tensors, world_size, alignment);
  plan.buffer_size_ = plan.flat_size();
  plan.offsets_.resize(specs.size());
  int64_t steps = 0;
  lay_out(tensors, plan.shard_size_, world_size, &plan.offsets_, &steps);
  plan.specs_ = std::move(specs);
  return plan;
}

// A buffer's tensors start on cache lines.
constexpr int64_t kLine = 16;

ShardPlan ShardPlan::by_rows(std::vector<TensorSpec> specs, int64_t world_size) {
  check_world_size(world_size);
  ShardPlan plan;
  plan.world_size_ = world_size;
  plan.by_rows_ = world_size > 1;
  for (const TensorSpec& spec : specs) {
    check_extents(spec);
    plan.offsets_.push_back(plan.buffer_size_);
    plan.buffer_size_ += round_up(spec.numel(), kLine);
    plan.shard_size_ += rows_of(spec, world_size, 0).count;
  }
  plan.specs_ = std::move(specs);
  if (world_size == 1) plan.shard_size_ = plan.buffer_size_;
  return plan;
}

int64_t ShardPlan::padding() const {
  int64_t elements = 0;
  for (const TensorSpec& spec : specs_) elements += spec.numel();
  return flat_size() - elements;
}

std::vector<OwnedRange> ShardPlan::owned(int64_t rank) const {
  if (!(rank >= 0 && rank < world_size_)) {
    throw std::invalid_argument("rank must be below " + std::to_string(world_size_) + ", got " + std::to_string(rank));
  }
  if (by_rows_) {
    std::vector<OwnedRange> ranges;
    int64_t offset = 0;
    for (size_t t = 0; t < specs_.size(); ++t) {
      OwnedRange range = rows_of(specs_[t], world_size_, rank);
      if (range.count == 0) continue;
      range.tensor = static_cast<int64_t>(t);
      range.shard_offset = offset;
      offset += range.count;
      ranges.push_back(range);
    }
    return ranges;
  }
  const int64_t begin = rank * shard_size_, end = begin + shard_size_;
  // Tensors stand in rising order, so the first one that may reach into the shard is the last to start at or before it.
  auto tensor = std::upper_bound(offsets_.begin(), offsets_.end(), begin) - offsets_.begin();
  // (Tensors without elements share their offset with the next one; step back over them too.)
  while (tensor > 0 && offsets_[static_cast<size_t>(tensor - 1)] == begin) --tensor;
  if (tensor > 0) --tensor;
  std::vector<OwnedRange> ranges;
  for (size_t t = static_cast<size_t>(tensor); t < offsets_.size() && offsets_[t] < end; ++t) {
    const int64_t first = std::max(begin, offsets_[t]);
    const int64_t last = std::min(end, offsets_[t] + specs_[t].numel());
    if (first >= last) continue;
    ranges.push_back({.tensor = static_cast<int64_t>(t),
                      .first = first - offsets_[t],
                      .count = last - first,
                      .shard_offset = first - begin});
  }
  return ranges;
}

}  // namespace ghostshard::fsdp
