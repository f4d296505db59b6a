#include "fsdp/sharded_model/buffers.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ghostshard::fsdp {

BlockBuffers::BlockBuffers(Mesh& mesh, const std::vector<BlockSpec>& specs,
                           const std::vector<std::unique_ptr<FlatGroup>>& groups, at::ScalarType compute_dtype,
                           std::shared_ptr<const GatherCode> code)
    : mesh_(mesh),
      blocks_(specs.size()),
      slots_(2),
      flat_(groups.size()),
      compute_dtype_(compute_dtype),
      code_(std::move(code)),
      sent_(groups.size()),
      sent_version_(groups.size(), -1) {
  // Slots 0 and 1 are shared; a block to keep gets one more of its own. The place of a block is fixed for good: a view
  // of its weights that an operation saved is right again once the block is gathered again.
  size_t shared = 0;
  for (size_t u = 0; u < specs.size(); ++u) {
    blocks_[u].name = specs[u].name;
    if (specs[u].residency == Residency::kKeep) {
      blocks_[u].slot = slots_.size();
      slots_.emplace_back();
    } else {
      blocks_[u].slot = shared++ % 2;
    }
  }
  for (const auto& group : groups) blocks_[static_cast<size_t>(group->block())].groups.push_back(group.get());
  lay_out(groups);
}

void BlockBuffers::lay_out(const std::vector<std::unique_ptr<FlatGroup>>& groups) {
  const auto options = at::dtype(compute_dtype_).device(mesh_.device());
  const bool alone = mesh_.shape().shard == 1;
  for (const auto& group : groups) {
    const auto index = static_cast<size_t>(group->index());
    if (code_) {
      coded_.emplace_back(*group, *code_, compute_dtype_);
      if (alone) flat_[index] = at::zeros({group->plan().flat_size()}, options);
      if (!alone) sent_[index] = at::zeros({coded_.back().bytes()}, options.dtype(at::kByte));
      continue;
    }
    const bool as_it_is = group->shard().scalar_type() == compute_dtype_;
    if (!as_it_is) sent_[index] = at::zeros({group->plan().shard_size()}, options);
    if (alone) flat_[index] = as_it_is ? group->shard() : sent_[index];
  }
  if (alone) return;
  std::vector<int64_t> elements(slots_.size(), 0);
  for (const Block& block : blocks_) {
    int64_t sum = 0;
    for (const FlatGroup* group : block.groups) sum += group->plan().flat_size();
    elements[block.slot] = std::max(elements[block.slot], sum);
  }
  for (size_t s = 0; s < slots_.size(); ++s) slots_[s].memory = at::zeros({elements[s]}, options);
  for (const Block& block : blocks_) {
    int64_t offset = 0;
    for (const FlatGroup* group : block.groups) {
      const int64_t size = group->plan().flat_size();
      flat_[static_cast<size_t>(group->index())] = slots_[block.slot].memory.narrow(0, offset, size);
      offset += size;
    }
  }
}

BlockBuffers::Block& BlockBuffers::block_at(int64_t block) {
  return const_cast<Block&>(static_cast<const BlockBuffers&>(*this).block_at(block));
}

const BlockBuffers::Block& BlockBuffers::block_at(int64_t block) const {
  if (!(block >= 0 && block < static_cast<int64_t>(blocks_.size()))) {
    throw std::out_of_range("block must be below " + std::to_string(blocks_.size()) + ", got " + std::to_string(block));
  }
  return blocks_[static_cast<size_t>(block)];
}

bool BlockBuffers::current(int64_t block) const {
  const Slot& slot = slots_[block_at(block).slot];
  return slot.owner == block && slot.version == version_;
}

bool BlockBuffers::gathered(int64_t block) const {
  return current(block) && slots_[block_at(block).slot].pending.empty();
}

bool BlockBuffers::available(int64_t block) const {
  const Slot& slot = slots_[block_at(block).slot];
  return slot.owner == block || slot.owner < 0 || block_at(slot.owner).leases == 0;
}

void BlockBuffers::wait_for(Slot& slot) {
  auto pending = std::exchange(slot.pending, {});
  const auto messages = std::exchange(slot.messages, {});
  try {
    for (const auto& collective : pending) collective->wait();
    if (slot.owner < 0) return;  // a gather failed before all groups' were issued
    for (size_t g = 0; g < messages.size(); ++g) decode(*block_at(slot.owner).groups[g], messages[g]);
  } catch (...) {
    slot.owner = -1;  // half gathered
    throw;
  }
}

void BlockBuffers::decode(const FlatGroup& group, const at::Tensor& messages) const {
  const at::NoGradGuard no_grad;
  // variable_data: values that are the same again must not look modified to autograd.
  coded_[static_cast<size_t>(group.index())].decode(messages, flat(group).variable_data());
}

at::Tensor BlockBuffers::outgoing(const FlatGroup& group) {
  const auto index = static_cast<size_t>(group.index());
  if (!code_ && group.shard().scalar_type() == compute_dtype_) return group.shard();
  if (sent_version_[index] == version_) return sent_[index];
  if (!code_) {
    sent_[index].variable_data().copy_(group.shard());
  } else if (sent_[index].defined()) {
    coded_[index].encode(mesh_.shard_rank(), group.shard(), sent_[index]);
  } else {
    const at::Tensor message = at::zeros({coded_[index].bytes()}, group.shard().options().dtype(at::kByte));
    coded_[index].encode(0, group.shard(), message);
    decode(group, message);
  }
  sent_version_[index] = version_;
  return sent_[index];
}

void BlockBuffers::prefetch(int64_t block) {
  const Block& wanted = block_at(block);
  if (current(block)) return;
  Slot& slot = slots_[wanted.slot];
  if (!available(block)) {
    throw std::logic_error("block '" + wanted.name + "' cannot be gathered: its buffer holds block '" +
                           block_at(slot.owner).name + "', which must be released first and has " +
                           std::to_string(block_at(slot.owner).leases) + " lease(s)");
  }
  wait_for(slot);  // of a block that was prefetched and never used
  slot.owner = -1;
  for (const FlatGroup* group : wanted.groups) {
    const at::Tensor own = outgoing(*group);
    if (mesh_.shape().shard == 1) continue;
    // A gather moves bytes: two 16-bit values, or four codes, go as one float32. Shards are a multiple of 16 elements,
    // messages of 16 bytes.
    at::Tensor whole = flat(*group);
    if (code_) whole = slot.messages.emplace_back(at::empty({mesh_.shape().shard * own.numel()}, own.options()));
    slot.pending.push_back(mesh_.gather().all_gather(whole.view(at::kFloat), own.view(at::kFloat)));
    ++gathers_;
  }
  slot.owner = block;
  slot.version = version_;
}

void BlockBuffers::acquire(int64_t block) {
  prefetch(block);
  Block& wanted = block_at(block);
  wait_for(slots_[wanted.slot]);
  ++wanted.leases;
}

void BlockBuffers::release(int64_t block) {
  Block& leased = block_at(block);
  if (leased.leases == 0) throw std::logic_error("block '" + leased.name + "' must be leased to be released");
  --leased.leases;
}

void BlockBuffers::release_of_epoch(int64_t block, uint64_t epoch) noexcept {
  Block& leased = blocks_[static_cast<size_t>(block)];
  if (epoch == epoch_ && leased.leases > 0) --leased.leases;
}

void BlockBuffers::reset_leases() {
  for (Block& block : blocks_) block.leases = 0;
  ++epoch_;
}

void BlockBuffers::wait_for_gathers() {
  for (Slot& slot : slots_) wait_for(slot);
}

void BlockBuffers::invalidate() {
  wait_for_gathers();
  ++version_;
}

}  // namespace ghostshard::fsdp
