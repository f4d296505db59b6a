#include "fsdp/sharded_model/buffers.h"

#include <algorithm>
#include <stdexcept>

namespace ghostshard::fsdp {

UnitBuffers::UnitBuffers(Mesh& mesh, const std::vector<UnitSpec>& specs,
                         const std::vector<std::unique_ptr<FlatGroup>>& groups, at::ScalarType compute_dtype)
    : mesh_(mesh),
      units_(specs.size()),
      slots_(2),
      flat_(groups.size()),
      compute_dtype_(compute_dtype),
      rounded_(groups.size()),
      rounded_version_(groups.size(), -1) {
  const auto options = at::dtype(compute_dtype_).device(mesh.device());
  // Slots 0 and 1 are shared; a unit to keep gets one more of its own. The place of a unit is fixed for good: what an
  // operation remembers as a view of its weights is right again once the unit is gathered again.
  size_t shared = 0;
  for (size_t u = 0; u < specs.size(); ++u) {
    units_[u].name = specs[u].name;
    if (specs[u].residency == Residency::kKeep) {
      units_[u].slot = slots_.size();
      slots_.emplace_back();
    } else {
      units_[u].slot = shared++ % 2;
    }
  }
  for (const auto& group : groups) units_[static_cast<size_t>(group->unit())].groups.push_back(group.get());
  if (compute_dtype_ != at::kFloat) {
    for (const auto& group : groups) {
      rounded_[static_cast<size_t>(group->index())] = at::zeros({group->plan().shard_size()}, options);
    }
  }
  if (mesh_.shape().shard == 1) {
    for (const auto& group : groups) {
      const auto index = static_cast<size_t>(group->index());
      flat_[index] = compute_dtype_ == at::kFloat ? group->shard() : rounded_[index];
    }
    return;
  }
  std::vector<int64_t> elements(slots_.size(), 0);
  for (const Unit& unit : units_) {
    int64_t sum = 0;
    for (const FlatGroup* group : unit.groups) sum += group->plan().flat_size();
    elements[unit.slot] = std::max(elements[unit.slot], sum);
  }
  for (size_t s = 0; s < slots_.size(); ++s) slots_[s].memory = at::zeros({elements[s]}, options);
  for (const Unit& unit : units_) {
    int64_t offset = 0;
    for (const FlatGroup* group : unit.groups) {
      const int64_t size = group->plan().flat_size();
      flat_[static_cast<size_t>(group->index())] = slots_[unit.slot].memory.narrow(0, offset, size);
      offset += size;
    }
  }
}

UnitBuffers::Unit& UnitBuffers::unit_at(int64_t unit) {
  return const_cast<Unit&>(static_cast<const UnitBuffers&>(*this).unit_at(unit));
}

const UnitBuffers::Unit& UnitBuffers::unit_at(int64_t unit) const {
  if (!(unit >= 0 && unit < static_cast<int64_t>(units_.size()))) {
    throw std::out_of_range("unit must be below " + std::to_string(units_.size()) + ", got " + std::to_string(unit));
  }
  return units_[static_cast<size_t>(unit)];
}

bool UnitBuffers::current(int64_t unit) const {
  const Slot& slot = slots_[unit_at(unit).slot];
  return slot.owner == unit && slot.version == version_;
}

bool UnitBuffers::gathered(int64_t unit) const { return current(unit) && slots_[unit_at(unit).slot].pending.empty(); }

bool UnitBuffers::available(int64_t unit) const {
  const Slot& slot = slots_[unit_at(unit).slot];
  return slot.owner == unit || slot.owner < 0 || unit_at(slot.owner).leases == 0;
}

void UnitBuffers::wait_for(Slot& slot) {
  auto pending = std::exchange(slot.pending, {});
  try {
    for (const auto& collective : pending) collective->wait();
  } catch (...) {
    slot.owner = -1;  // half gathered
    throw;
  }
}

at::Tensor UnitBuffers::outgoing(const FlatGroup& group) {
  const auto index = static_cast<size_t>(group.index());
  if (compute_dtype_ == at::kFloat) return group.shard();
  if (rounded_version_[index] != version_) {
    // variable_data: values that come back the same must not look modified to autograd.
    rounded_[index].variable_data().copy_(group.shard());
    rounded_version_[index] = version_;
  }
  return rounded_[index];
}

void UnitBuffers::prefetch(int64_t unit) {
  const Unit& wanted = unit_at(unit);
  if (current(unit)) return;
  Slot& slot = slots_[wanted.slot];
  if (!available(unit)) {
    throw std::logic_error("unit '" + wanted.name + "' cannot be gathered: its buffer holds unit '" +
                           unit_at(slot.owner).name + "', which must be released first and has " +
                           std::to_string(unit_at(slot.owner).leases) + " lease(s)");
  }
  wait_for(slot);  // of a unit that was prefetched and never used
  slot.owner = -1;
  for (const FlatGroup* group : wanted.groups) {
    const at::Tensor own = outgoing(*group);
    if (mesh_.shape().shard == 1) continue;
    // A gather moves bytes; two 16-bit values go as one float32. Shards are a multiple of 16 elements.
    slot.pending.push_back(mesh_.gather().all_gather(flat(*group).view(at::kFloat), own.view(at::kFloat)));
    ++gathers_;
  }
  slot.owner = unit;
  slot.version = version_;
}

void UnitBuffers::acquire(int64_t unit) {
  prefetch(unit);
  Unit& wanted = unit_at(unit);
  wait_for(slots_[wanted.slot]);
  ++wanted.leases;
}

void UnitBuffers::release(int64_t unit) {
  Unit& leased = unit_at(unit);
  if (leased.leases == 0) throw std::logic_error("unit '" + leased.name + "' must be leased to be released");
  --leased.leases;
}

void UnitBuffers::release_of_epoch(int64_t unit, uint64_t epoch) noexcept {
  Unit& leased = units_[static_cast<size_t>(unit)];
  if (epoch == epoch_ && leased.leases > 0) --leased.leases;
}

void UnitBuffers::reset_leases() {
  for (Unit& unit : units_) unit.leases = 0;
  ++epoch_;
}

void UnitBuffers::wait_for_gathers() {
  for (Slot& slot : slots_) wait_for(slot);
}

void UnitBuffers::invalidate() {
  wait_for_gathers();
  ++version_;
}

}  // namespace ghostshard::fsdp
