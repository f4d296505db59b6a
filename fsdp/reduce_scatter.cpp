#include "fsdp/reduce_scatter.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <stdexcept>

namespace ghostshard::fsdp {
namespace {

constexpr int64_t kMostInFlight = 2;

const at::Tensor& of_group(const std::vector<at::Tensor>& buffers, const FlatGroup& group) {
  const at::Tensor& buffer = buffers.at(static_cast<size_t>(group.index()));
  if (!buffer.defined()) {
    throw std::invalid_argument("the group must be trainable, and open if it is streamed, got the " +
                                std::string(group.trainable() ? "closed" : "frozen") + " group of parameter '" +
                                group.parameters().front()->name() + "'");
  }
  return buffer;
}

void check_flat(const at::Tensor& tensor, int64_t elements, at::Device device, const char* name) {
  if (!tensor.defined() || tensor.scalar_type() != at::kFloat || !tensor.is_contiguous() ||
      tensor.numel() != elements || tensor.device() != device) {
    throw std::invalid_argument(std::string(name) + " must be contiguous float32 of " + std::to_string(elements) +
                                " elements on " + device.str() + ", got " +
                                (tensor.defined()
                                     ? std::to_string(tensor.numel()) + " of " + c10::toString(tensor.scalar_type()) +
                                           " on " + tensor.device().str()
                                     : "an undefined tensor"));
  }
}

// own[i] += slices[0][i], then slices[1][i], and so on: each element's order is fixed. Host memory is summed in pieces
// that stay in the cache, so that own is read and written once.
void add_in_order(at::Tensor own, const std::vector<at::Tensor>& slices) {
  if (!own.device().is_cpu()) {
    for (const at::Tensor& slice : slices) own.add_(slice);
    return;
  }
  constexpr int64_t kPiece = 4096;
  float* const sum = own.mutable_data_ptr<float>();
  std::vector<const float*> added;
  for (const at::Tensor& slice : slices) added.push_back(slice.const_data_ptr<float>());
  at::parallel_for(0, own.numel(), 16 * kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kPiece) {
      const int64_t last = std::min(end, first + kPiece);
      for (const float* slice : added) {
        for (int64_t i = first; i < last; ++i) sum[i] += slice[i];
      }
    }
  });
}

// [flat_size]: every rank's shard, one after the other. Zeros after a short shard are sent too.
at::Tensor pack(const ShardPlan& plan, const at::Tensor& buffer) {
  at::Tensor packed = at::zeros({plan.flat_size()}, at::dtype(at::kFloat).device(buffer.device()));
  for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
    for (const OwnedRange& range : plan.owned(rank)) {
      packed.narrow(0, rank * plan.shard_size() + range.shard_offset, range.count)
          .copy_(buffer.narrow(0, plan.offset(range.tensor) + range.first, range.count));
    }
  }
  return packed;
}

}  // namespace

GradientBuffers::GradientBuffers(const GroupedParameters& model, std::vector<bool> streamed)
    : streamed_(std::move(streamed)), device_(model.device()) {
  streamed_.resize(model.groups().size(), false);
  for (const auto& group : model.groups()) {
    const bool whole = group->trainable() && !this->streamed(*group);
    flat_.push_back(whole ? at::zeros({group->plan().buffer_size()}, at::dtype(at::kFloat).device(device_))
                          : at::Tensor());
  }
}

bool GradientBuffers::streamed(const FlatGroup& group) const { return streamed_[static_cast<size_t>(group.index())]; }

bool GradientBuffers::any_streamed() const {
  return std::find(streamed_.begin(), streamed_.end(), true) != streamed_.end();
}

at::Tensor GradientBuffers::open_streamed(const FlatGroup& group) {
  if (!group.trainable() || !streamed(group)) throw std::logic_error("only streamed groups are opened and closed");
  at::Tensor& buffer = flat_[static_cast<size_t>(group.index())];
  if (!buffer.defined()) buffer = at::zeros({group.plan().buffer_size()}, at::dtype(at::kFloat).device(device_));
  return buffer;
}

void GradientBuffers::close_streamed(const FlatGroup& group) {
  if (streamed(group)) flat_[static_cast<size_t>(group.index())].reset();
}

at::Tensor GradientBuffers::flat(const FlatGroup& group) const { return of_group(flat_, group); }

at::Tensor GradientBuffers::view(const Parameter& parameter) const {
  return of_group(flat_, parameter.group()).narrow(0, parameter.offset(), parameter.numel()).view(parameter.shape());
}

void GradientBuffers::zero() {
  for (size_t i = 0; i < flat_.size(); ++i) {
    if (flat_[i].defined() && !streamed_[i]) flat_[i].zero_();
  }
}

ShardBuffers::ShardBuffers(const GroupedParameters& model, bool on_host) {
  const at::Device device = on_host ? at::Device(at::kCPU) : model.device();
  const auto options = at::dtype(at::kFloat).device(device).pinned_memory(device.is_cpu() && !model.device().is_cpu());
  for (const auto& group : model.groups()) {
    shard_.push_back(group->trainable() ? at::zeros({group->plan().shard_size()}, options) : at::Tensor());
  }
}

at::Tensor ShardBuffers::shard(const FlatGroup& group) const { return of_group(shard_, group); }

void ShardBuffers::zero() {
  for (at::Tensor& buffer : shard_) {
    if (buffer.defined()) buffer.zero_();
  }
}

struct ReduceScatter::InFlight {
  const FlatGroup* group;
  at::Tensor message;
  at::Tensor received;  // [flat_size], undefined with one rank; this rank's own slice is never written
  std::unique_ptr<PendingCollective> exchange;
};

ReduceScatter::ReduceScatter(GroupedParameters& model) : model_(model) {}

ReduceScatter::~ReduceScatter() = default;

void ReduceScatter::begin(const FlatGroup& group, at::Tensor message) {
  if (!group.trainable()) {
    throw std::invalid_argument("reduce: the group must be trainable, got the frozen group of parameter '" +
                                group.parameters().front()->name() + "'");
  }
  check_flat(message, group.plan().buffer_size(), model_.device(), "reduce: message");
  if (static_cast<int64_t>(in_flight_.size()) >= kMostInFlight) {
    throw std::logic_error("reduce: at most " + std::to_string(kMostInFlight) +
                           " groups may be in flight; finish the oldest first");
  }
  auto started = std::make_unique<InFlight>();
  started->group = &group;
  if (model_.mesh().shape().shard > 1 && !group.plan().slices_of_buffer()) message = pack(group.plan(), message);
  started->message = std::move(message);
  if (model_.mesh().shape().shard > 1) {
    started->received = at::empty_like(started->message);
    started->exchange = model_.mesh().reduce().exchange(started->received, started->message);
  }
  in_flight_.push_back(std::move(started));
}

void ReduceScatter::finish(const FlatGroup& group, at::Tensor own) {
  if (in_flight_.empty() || in_flight_.front()->group != &group) {
    throw std::logic_error("reduce: groups must finish in the order they began, got the group of parameter '" +
                           group.parameters().front()->name() + "'");
  }
  const int64_t size = group.plan().shard_size();
  check_flat(own, size, model_.device(), "reduce: own");
  const std::unique_ptr<InFlight> done = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (done->exchange != nullptr) done->exchange->wait();
  Mesh& mesh = model_.mesh();
  if (mesh.replica() != 0) own.zero_();
  std::vector<at::Tensor> slices;
  const int64_t rank = mesh.shard_rank();
  for (int64_t r = 0; r < mesh.shape().shard; ++r) {
    slices.push_back((r == rank ? done->message : done->received).narrow(0, r * size, size));
  }
  add_in_order(own, slices);
  // In order of replicas, so it begins with replica 0's slice and the starting values in it.
  if (mesh.shape().replicate > 1) mesh.replicate().all_reduce_sum(own);
}

void ReduceScatter::forget() {
  if (!in_flight_.empty() && model_.mesh().shape().shard > 1) {
    throw std::logic_error(
        "reduce: a step failed while its messages were in flight between ranks, so the ranks cannot go on together");
  }
  in_flight_.clear();
}

}  // namespace ghostshard::fsdp
