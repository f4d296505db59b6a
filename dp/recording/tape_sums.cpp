// The tape's second half: the units' norms from the records and, with the units' factors, the clipped sum.
#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <stdexcept>
#include <unordered_set>

#include "dp/recording/tape.h"
#include "kernels/embedding_norm.h"
#include "kernels/scaled_sum.h"

namespace ghostshard::dp {

at::Tensor Tape::squared_norms(bool shared_too) const {
  at::Tensor total = at::zeros({units_}, at::dtype(at::kDouble).device(memory_->device()));
  if (entries_.empty()) return total;
  if (shared_too) return kernels::sum_of_norm_bounds(parts_, units_);
  for (const auto& [id, book] : entries_) {
    if (book.parameter->cut()) total.add_(kernels::norm_upper_bound_sq(book.parts));
  }
  return total;
}

at::Tensor Tape::squared_norms_by_group(int64_t groups, bool shared_too) const {
  at::Tensor totals = at::zeros({groups, units_}, at::dtype(at::kDouble).device(memory_->device()));
  for (const auto& [id, book] : entries_) {
    if (!shared_too && !book.parameter->cut()) continue;
    totals[book.parameter->group().index()].add_(kernels::norm_upper_bound_sq(book.parts));
  }
  return totals;
}

void Tape::begin_second_pass(GroupFactors factors, fsdp::GradientBuffers& sums,
                             std::deque<const fsdp::FlatGroup*> streamed, OnStreamed on_streamed) {
  factors_ = std::move(factors);
  sums_ = &sums;
  streamed_ = std::move(streamed);
  on_streamed_ = std::move(on_streamed);
  backward_ = -1;
  with_tiles_.clear();
  for (auto& [id, book] : entries_) {
    if (book.awaited || sums.streamed(book.parameter->group())) continue;
    add_entry(book, factors_, sums);
    book = Entry{.parameter = book.parameter};
  }
  send_streamed();
}

bool Tape::awaits(const fsdp::FlatGroup& group) const {
  return std::any_of(group.parameters().begin(), group.parameters().end(), [&](const fsdp::Parameter* parameter) {
    const auto found = entries_.find(parameter->id());
    return found != entries_.end() && found->second.awaited.has_value();
  });
}

void Tape::send_streamed() {
  while (!streamed_.empty() && !awaits(*streamed_.front())) {
    const fsdp::FlatGroup& group = *streamed_.front();
    streamed_.pop_front();
    sums_->open_streamed(group);
    add_group(factors_, group, *sums_);
    on_streamed_(group);
  }
}

void Tape::count_bytes(std::span<int64_t> bytes) const {
  std::unordered_set<const void*> counted;
  const auto size = [&](const at::Tensor& tensor) {
    const bool first = tensor.defined() && counted.insert(tensor.const_data_ptr()).second;
    return first ? static_cast<int64_t>(tensor.nbytes()) : 0;
  };
  for (const auto& [id, book] : entries_) {
    bytes[id] = size(book.held);
    for (const Rows& use : book.rows) bytes[id] += size(use.a) + size(use.g);
    for (const Lookup& use : book.lookups) bytes[id] += size(use.g);
    if (book.head) bytes[id] += size(book.head->inputs()) + size(book.head->columns());
    if (book.held_head) bytes[id] += book.held_head->bytes();
    if (book.replayed_head) bytes[id] += book.replayed_head->bytes();
  }
}

void Tape::add_awaited(Entry& book, const at::Tensor& a, const at::Tensor& g, const kernels::Segments& segments) {
  if (kernels::fingerprint(a, g, segments) != *book.awaited) {
    throw std::logic_error("the second pass must repeat the first bit for bit, but the rows of '" +
                           book.parameter->name() +
                           "' differ: was the microbatch another, or is a layer random or not reproducible?");
  }
  const fsdp::FlatGroup& group = book.parameter->group();
  if (sums_->streamed(group)) sums_->open_streamed(group);
  const at::Tensor& factors = factors_[static_cast<size_t>(group.index())];
  kernels::scaled_sum_rows(a, g, segments, factors, sums_->view(*book.parameter), &book.parts);
  entries_.erase(book.parameter->id());
  send_streamed();
}

void Tape::add_entry(Entry& book, const GroupFactors& by_group, fsdp::GradientBuffers& sums) {
  const at::NoGradGuard no_grad;
  const at::Tensor& factors = by_group[static_cast<size_t>(book.parameter->group().index())];
  const at::Tensor out = sums.view(*book.parameter);
  if (book.held.defined()) {
    kernels::scaled_sum_held(book.held.view({factors.size(0), out.numel()}), factors, out.view({-1}));
  }
  for (const Rows& use : book.rows) {
    const auto [a, g] = matrix_rows(use.a, use.g);
    kernels::scaled_sum_rows(a, g, *use.segments, factors, out, &book.parts);
  }
  if (book.head) book.head->add_to(out, factors, book.parts);
  if (book.held_head) book.held_head->add_to(out, factors);
  if (book.replayed_head) book.replayed_head->add_to(out, factors, book.parts);
  for (const Lookup& use : book.lookups) {
    kernels::embedding_scaled_sum(use.ids, kernel_rows(use.g).front(), *use.segments, factors, out);
  }
}

void Tape::add_group(const GroupFactors& factors, const fsdp::FlatGroup& group, fsdp::GradientBuffers& sums) {
  for (const fsdp::Parameter* parameter : group.parameters()) {
    const auto found = entries_.find(parameter->id());
    if (found == entries_.end()) continue;
    add_entry(found->second, factors, sums);
    found->second = Entry{.parameter = parameter};  // nothing is left to add; in a second pass it may be reported again
  }
}

void Tape::add_rest(const GroupFactors& factors, fsdp::GradientBuffers& sums) {
  for (auto& [id, book] : entries_) {
    if (book.awaited) {
      throw std::logic_error("the second pass brought no rows of '" + book.parameter->name() + "', the first did");
    }
  }
  for (auto& [id, book] : entries_) {
    if (!in_second_pass() && !sums.streamed(book.parameter->group())) add_entry(book, factors, sums);
    book = Entry{};  // free the rows as soon as they are used
  }
  entries_.clear();
  closed_ = true;
}

}  // namespace ghostshard::dp
