#include "dp/recording/tape.h"

#include <ATen/core/grad_mode.h>
#include <stdexcept>

#include "fsdp/backward_pass.h"
#include "kernels/affine_norm.h"
#include "kernels/embedding_norm.h"
#include "kernels/scaled_sum.h"
#include "kernels/tied_pair.h"

namespace ghostshard::dp {
namespace {

[[noreturn]] void refuse_reuse(const fsdp::Parameter& parameter, const char* uses) {
  TORCH_CHECK_VALUE(false, "parameter '", parameter.name(), "' is used by ", uses,
                    ": its per-unit norm has no exact rule here. A parameter may be used once, or by one linear head "
                    "and one embedding.");
}

template <typename HeadByTiles>
void require_whole(const HeadByTiles& head, const fsdp::Parameter& weight) {
  if (!head.complete()) refuse_reuse(weight, "a head and another layer within each other");
}

}  // namespace

void Tape::add_cross_term(const Lookup& lookup, const Rows& head, kernels::NormParts& parts) {
  const auto [e, h, b] = kernel_rows(lookup.g, head.a, head.g);
  kernels::tied_pair_cross_term(lookup.ids, e, *lookup.segments, h, b, *head.segments, parts);
  // If the lookups' rows are wider than the head's, the head's were widened for this product alone; the sum takes them
  // as they are.
  const at::ScalarType summed = kernel_type(head.a, head.g);
  if (summed != h.scalar_type()) kernels::raise_tied_pair_sum_error(summed, *head.segments, *lookup.segments, parts);
}

Tape::Tape(int64_t units, int64_t parameters, std::shared_ptr<HoldMemory> memory, RecordingChoice choice,
           std::shared_ptr<const RecordingPlan> planned, std::shared_ptr<const fsdp::GroupedParameters> model)
    : units_(units),
      parameters_(parameters),
      memory_(std::move(memory)),
      choice_(choice),
      planned_(std::move(planned)),
      model_(std::move(model)) {
  memory_->reset();
}

void Tape::require_open() const {
  if (!closed_) return;
  throw std::logic_error(
      "a tape takes nothing more once it was added to a clipped sum, or given up: another forward, a layer called on "
      "its own with another number of rows, or the end of the session (other parameters to train, a state that was "
      "loaded, hooks that were removed) came between the forward of this loss and its backward. Run the forward again. "
      "(Or this is a plain backward() or torch.autograd.grad() through the model, of a loss that the criterion of "
      "make_private() did not give: form the loss by that criterion; inputs by a gradient come before the forward.)");
}

void Tape::give_up() {
  entries_.clear();
  parts_ = {};
  closed_ = true;
}

void Tape::watch(RecorderPtr watcher) {
  if (closed_ || backward_ != -1) {
    refused_second_backward_ = backward_ != -1;
    throw std::logic_error("a backward is watched before the one that is recorded");
  }
  watcher_ = std::move(watcher);
  was_watched_ = true;
}

std::optional<kernels::Recording> Tape::planned(const fsdp::Parameter& parameter) const {
  return parameter.id() < planned_->size() ? (*planned_)[parameter.id()] : std::nullopt;
}

Tape::Entry& Tape::entry(const fsdp::Parameter& parameter) {
  require_open();
  const int backward = fsdp::current_backward_pass();
  if (backward_ == -1) backward_ = backward;
  if (backward != backward_) {
    refused_second_backward_ = true;
    throw std::logic_error("a tape serves one backward pass: record() a new one for every microbatch");
  }
  Entry& found = entries_[parameter.id()];
  if (found.parameter == nullptr) {
    if (in_second_pass()) {
      throw std::logic_error("the second pass must repeat the first, but it uses '" + parameter.name() +
                             "' more often");
    }
    found.parameter = &parameter;
    // Those of all parameters at once: on a device each tensor of zeros is a kernel.
    if (!parts_.value.defined()) parts_ = kernels::NormParts::zeros(parameters_ * units_, memory_->device());
    found.parts = parts_.of(parameter.id(), units_);
  }
  return found;
}

void Tape::check_units(const fsdp::Parameter& parameter, const SegmentsPtr& segments) const {
  TORCH_CHECK_VALUE(segments != nullptr && segments->units() == units_, parameter.name(), ": segments of ",
                    segments == nullptr ? -1 : segments->units(), " units in a microbatch of ", units_);
}

void Tape::linear(const LinearUse& use, const at::Tensor& a, const at::Tensor& g, const SegmentsPtr& segments) {
  const at::NoGradGuard no_grad;
  if (watcher_ != nullptr) {
    watcher_->linear(use, a, g, segments);
    return;
  }
  if (use.weight->trainable()) {
    // A weight stored [d,p] has the gradient aᵀg: the two change places.
    use.stored_transposed ? matrix(*use.weight, g, a, segments) : matrix(*use.weight, a, g, segments);
  }
  if (use.bias != nullptr && use.bias->trainable()) vector(*use.bias, g, {}, segments);
}

kernels::Recording Tape::way_of(const fsdp::Parameter& weight, const at::Tensor& a, const at::Tensor& g,
                                const kernels::Segments& segments) const {
  if (const auto choice = planned(weight)) return *choice;
  switch (choice_) {
    case RecordingChoice::kHold:
      return kernels::Recording::kHold;
    case RecordingChoice::kTwoPass:
      return kernels::Recording::kTwoPass;
    case RecordingChoice::kReplay:
      return kernels::Recording::kReplay;
    case RecordingChoice::kAutomatic:
      break;
  }
  const kernels::LinearShape shape{.inputs = a.size(1), .outputs = g.size(1)};
  const auto rates = kernels::usual_rates(a.device().type(), a.scalar_type());
  return kernels::choose_recording(shape, segments, memory_->bytes_left(), rates);
}

void Tape::matrix(const fsdp::Parameter& weight, const at::Tensor& a_rows, const at::Tensor& g_rows,
                  const SegmentsPtr& segments) {
  check_units(weight, segments);
  const auto [a, g] = matrix_rows(a_rows, g_rows);
  Entry& book = entry(weight);
  if (in_second_pass()) {
    if (book.awaited) add_awaited(book, a, g, *segments);
    return;
  }
  if (book.awaited) refuse_reuse(weight, "more than one layer, once recorded in two passes");
  if (book.head) refuse_reuse(weight, "a head by tiles and another layer");
  if (book.replayed_head) refuse_reuse(weight, "more than one linear layer");
  if (book.held_head) {
    require_whole(*book.held_head, weight);
    book.held_head->add_linear(a, g, *segments);
    book.held_head->set_norm_of(book.parts);
    return;
  }
  if (book.unused()) {
    const auto way = way_of(weight, a, g, *segments);
    if (way == kernels::Recording::kTwoPass) {
      kernels::passing_norm(a, g, *segments, book.parts);
      book.awaited = kernels::fingerprint(a, g, *segments);
    } else if (way == kernels::Recording::kHold) {
      book.held = memory_->take({units_, g.size(1), a.size(1)});
      kernels::per_unit_gradient(a, g, *segments, book.held, /*accumulate=*/false, book.parts);
    } else {
      kernels::gram_norm(a, g, *segments, book.parts);
      book.rows.push_back({a_rows, g_rows, segments});
    }
  } else if (book.held.defined()) {
    kernels::per_unit_gradient(a, g, *segments, book.held.view({units_, g.size(1), a.size(1)}), /*accumulate=*/true,
                               book.parts);
  } else if (book.rows.empty() && book.lookups.size() == 1) {
    const Lookup& lookup = book.lookups.front();
    kernels::gram_norm(a, g, *segments, book.parts);
    add_cross_term(lookup, {a_rows, g_rows, segments}, book.parts);
    book.rows.push_back({a_rows, g_rows, segments});
  } else {
    refuse_reuse(weight, "more than one linear layer");
  }
}

void Tape::embedding(const fsdp::Parameter& table, const at::Tensor& ids, const at::Tensor& g_rows,
                     const SegmentsPtr& segments) {
  const at::NoGradGuard no_grad;
  if (watcher_ != nullptr) {
    watcher_->embedding(table, ids, g_rows, segments);
    return;
  }
  check_units(table, segments);
  const auto [g] = kernel_rows(g_rows);
  Entry& book = entry(table);
  if (in_second_pass()) return;  // added already
  if (book.awaited) refuse_reuse(table, "a linear layer recorded in two passes and an embedding");
  if (book.head) require_whole(*book.head, table);
  if (book.replayed_head) {
    require_whole(*book.replayed_head, table);
    stand_whole(book);
  }
  if (book.held_head) {
    require_whole(*book.held_head, table);
    book.held_head->add_lookup(ids, g, *segments);
    book.held_head->set_norm_of(book.parts);
    return;
  }
  if (book.unused() && planned(table) == kernels::Recording::kHold) {
    book.held = memory_->take({units_, table.shape().at(0), table.shape().at(1)}).zero_();
  }
  if (book.held.defined()) {
    const at::Tensor held = book.held.view({units_, table.shape().at(0), table.shape().at(1)});
    kernels::embedding_into_held(ids, g, *segments, held, book.parts);
    return;
  }
  if (!book.lookups.empty() || book.rows.size() > 1) refuse_reuse(table, "more than one embedding");
  kernels::embedding_norm(ids, g, *segments, table.shape().at(0), book.parts);
  book.lookups.push_back({ids, g_rows, segments});
  if (!book.rows.empty()) add_cross_term(book.lookups.front(), book.rows.front(), book.parts);
  if (book.head) book.head->add_cross_term_to(ids, g, book.parts);
}

std::optional<TileLogits> Tape::takes_tiles(const fsdp::Parameter& weight, const at::Tensor& a,
                                            const SegmentsPtr& segments) {
  if (!weight.trainable()) return std::nullopt;
  const auto way = planned(weight);
  if (way == kernels::Recording::kRecompute) return TileLogits::kRecomputed;
  // The head of a table comes whole if it is replayed, because the two uses meet in the norm.
  const bool replays = way == kernels::Recording::kReplay && !tables_.contains(weight.id()) && segments != nullptr &&
                       ReplayedHead::can_take(a, *segments);
  // A second head of the same matrix comes whole, and is added to the first one's tiles.
  const bool keeps = (way == kernels::Recording::kHold || replays) && with_tiles_.insert(weight.id()).second;
  return keeps ? std::optional(TileLogits::kKept) : std::nullopt;
}

void Tape::looked_up(const fsdp::Parameter& table, const at::Tensor& ids, const SegmentsPtr& segments) {
  tables_.insert(table.id());
  if (planned(table) == kernels::Recording::kRecompute) ahead_[table.id()] = {ids, segments};
}

void Tape::head_tile(const LinearUse& use, const at::Tensor& a, const std::shared_ptr<const HeadTiles>& tiles,
                     int64_t tile, const at::Tensor& g, const SegmentsPtr& segments) {
  const at::NoGradGuard no_grad;
  if (watcher_ != nullptr) {
    watcher_->head_tile(use, a, tiles, tile, g, segments);
    return;
  }
  const fsdp::Parameter& weight = *use.weight;
  check_units(weight, segments);
  Entry& book = entry(weight);
  if (in_second_pass()) return;  // added already
  if (planned(weight) == kernels::Recording::kHold) {
    held_tile(book, a, tiles, tile, g, segments);
    return;
  }
  if (planned(weight) == kernels::Recording::kReplay) {
    replayed_tile(book, a, tiles, tile, g, segments);
    return;
  }
  if (tile == 0) {
    if (!book.unused()) refuse_reuse(weight, "a head by tiles and another layer");
    book.head.emplace(tiles, a, segments, ahead_[weight.id()]);
  }
  book.head->take(tile, g);
  if (book.head->complete()) book.head->add_norm_to(book.parts);
}

void Tape::held_tile(Entry& book, const at::Tensor& a, const std::shared_ptr<const HeadTiles>& tiles, int64_t tile,
                     const at::Tensor& g, const SegmentsPtr& segments) {
  if (tile == 0) {
    if (!book.unused() && !book.held.defined()) refuse_reuse(*book.parameter, "a head by tiles and another layer");
    const auto& shape = book.parameter->shape();
    book.held_head.emplace(tiles, segments, *memory_,
                           book.held.defined() ? book.held.view({units_, shape.at(0), shape.at(1)}) : at::Tensor());
    book.held.reset();
  }
  book.held_head->take(tile, a, g);
  if (book.held_head->complete()) book.held_head->set_norm_of(book.parts);
}

void Tape::replayed_tile(Entry& book, const at::Tensor& a, const std::shared_ptr<const HeadTiles>& tiles, int64_t tile,
                         const at::Tensor& g, const SegmentsPtr& segments) {
  if (tile == 0) {
    if (!book.only_lookups()) refuse_reuse(*book.parameter, "more than one linear layer");
    book.replayed_head.emplace(tiles, a, segments);
  }
  book.replayed_head->take(tile, g);
  if (!book.replayed_head->complete()) return;
  book.replayed_head->add_norm_to(book.parts);
  if (book.lookups.empty()) return;
  stand_whole(book);
  add_cross_term(book.lookups.front(), book.rows.front(), book.parts);
}

void Tape::stand_whole(Entry& book) {
  const ReplayedHead& head = *book.replayed_head;
  book.rows.push_back({head.inputs(), head.whole(), head.segments()});
  book.replayed_head.reset();
}

void Tape::layer_norm(const LayerNormUse& use, const at::Tensor& x_hat, const at::Tensor& g,
                      const SegmentsPtr& segments) {
  const at::NoGradGuard no_grad;
  if (watcher_ != nullptr) {
    watcher_->layer_norm(use, x_hat, g, segments);
    return;
  }
  if (use.scale != nullptr && use.scale->trainable()) vector(*use.scale, g, x_hat, segments);
  if (use.shift != nullptr && use.shift->trainable()) vector(*use.shift, g, {}, segments);
}

void Tape::instantiated(const fsdp::Parameter& parameter, const at::Tensor& gradients) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(gradients.dim() >= 1 && gradients.size(0) == units_ &&
                        gradients.sizes().slice(1) == at::IntArrayRef(parameter.shape()),
                    parameter.name(), ": gradients must be one for each of ", units_, " units, each of shape ",
                    at::IntArrayRef(parameter.shape()), ", got ", gradients.sizes());
  if (watcher_ != nullptr) {
    watcher_->instantiated(parameter, gradients);
    return;
  }
  // One row for each unit: their sums are the rows themselves.
  vector(parameter, gradients.reshape({units_, parameter.numel()}).contiguous(), {},
         std::make_shared<kernels::Segments>(kernels::Segments::even(units_)));
}

void Tape::vector(const fsdp::Parameter& parameter, const at::Tensor& g_rows, const at::Tensor& factor,
                  const SegmentsPtr& segments) {
  check_units(parameter, segments);
  const at::Tensor g = kernel_rows(g_rows).front().contiguous();
  Entry& book = entry(parameter);
  if (in_second_pass()) return;  // added already
  const bool by_tiles = book.head || book.held_head || book.replayed_head;
  if (!book.rows.empty() || !book.lookups.empty() || by_tiles) refuse_reuse(parameter, "layers of different kinds");
  if (book.awaited) refuse_reuse(parameter, "a linear layer recorded in two passes and another layer");
  const bool again = book.held.defined();
  if (!again) book.held = memory_->take({units_, g.size(1)});
  const at::Tensor held = book.held.view({units_, parameter.numel()});
  if (factor.defined()) {
    const auto [rows, factors] = kernel_rows(g, factor);
    kernels::per_unit_product_sum(rows, factors, *segments, held, again, book.parts);
  } else {
    kernels::per_unit_row_sum(g, *segments, held, again, book.parts);
  }
}

}  // namespace ghostshard::dp
