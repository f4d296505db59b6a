#include "fsdp/optimizer/host_update.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace ghostshard::fsdp {
namespace {

struct Piece {
  size_t slice;
  int64_t first, count;
  at::Tensor of(const std::vector<at::Tensor>& tensors) const { return tensors[slice].narrow(0, first, count); }
};

std::vector<Piece> pieces_of(const std::vector<at::Tensor>& slices, int64_t most) {
  std::vector<Piece> pieces;
  for (size_t slice = 0; slice < slices.size(); ++slice) {
    const int64_t length = slices[slice].numel();
    for (int64_t first = 0; first < length; first += most) {
      pieces.push_back({slice, first, std::min(most, length - first)});
    }
  }
  return pieces;
}

}  // namespace

HostUpdate::HostUpdate(at::Device device, int64_t piece) : device_(device), piece_(piece) {
  TORCH_CHECK_VALUE(piece >= 1, "a piece must have at least one element, got ", piece);
}

HostUpdate::Staging& HostUpdate::staging(int64_t turn) {
  Staging& found = staging_[turn % 2];
  if (!found.weights.defined()) {
    const auto options = at::dtype(at::kFloat).pinned_memory(!device_.is_cpu());
    found = {at::empty({piece_}, options), at::empty({piece_}, options)};
  }
  return found;
}

void HostUpdate::apply(const UpdateSlices& slices, const UpdateRule& rule) {
  const c10::DeviceGuard guard(device_);
  const c10::impl::VirtualGuardImpl backend(device_.type());
  const std::vector<Piece> pieces = pieces_of(slices.weights, piece_);
  c10::Event here[2] = {c10::Event(device_.type()), c10::Event(device_.type())};
  // Into staging whose weights, two pieces ago, are copied back on the same stream: that copy ends before this one
  // begins.
  const auto fetch = [&](size_t i) {
    const Staging& to = staging(static_cast<int64_t>(i));
    to.weights.narrow(0, 0, pieces[i].count).copy_(pieces[i].of(slices.weights), /*non_blocking=*/true);
    to.gradient.narrow(0, 0, pieces[i].count).copy_(pieces[i].of(slices.gradients), /*non_blocking=*/true);
    here[i % 2].record(backend.getStream(device_));
  };
  if (!pieces.empty()) fetch(0);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i + 1 < pieces.size()) fetch(i + 1);
    here[i % 2].synchronize();
    const Staging& now = staging(static_cast<int64_t>(i));
    UpdateSlices piece{.weights = {now.weights.narrow(0, 0, pieces[i].count)},
                       .gradients = {now.gradient.narrow(0, 0, pieces[i].count)},
                       .states = {}};
    for (const auto& state : slices.states) piece.states.push_back({pieces[i].of(state)});
    rule(piece);
    pieces[i].of(slices.weights).copy_(piece.weights.front(), /*non_blocking=*/true);
  }
}

}  // namespace ghostshard::fsdp
