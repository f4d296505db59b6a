#include "dp/recording/recomputed_head.h"

#include <stdexcept>

#include "kernels/fingerprint.h"
#include "kernels/linear_norm.h"
#include "kernels/scaled_sum.h"
#include "kernels/tied_pair.h"

namespace ghostshard::dp {

RecomputedHead::RecomputedHead(std::shared_ptr<const HeadTiles> tiles, at::Tensor a, SegmentsPtr segments,
                               LookedUp lookup)
    : tiles_(std::move(tiles)),
      a_(std::move(a)),
      segments_(std::move(segments)),
      lookup_(std::move(lookup)),
      parts_(kernels::NormParts::zeros(segments_->units(), a_.device())) {
  if (!lookup_.ids.defined()) return;
  columns_ = at::zeros({a_.size(0), lookup_.segments->longest()}, a_.options().dtype(at::kFloat));
}

void RecomputedHead::take(int64_t tile, const at::Tensor& g_rows) {
  HeadTiles::require_next(tile, static_cast<int64_t>(fingerprints_.size()));
  const auto [a, g] = matrix_rows(a_, g_rows);
  fingerprints_.push_back(kernels::fingerprint(a, g, *segments_));
  kernels::NormParts of_tile = kernels::NormParts::zeros(segments_->units(), a.device());
  kernels::passing_norm(a, g, *segments_, of_tile);
  parts_.value.add_(of_tile.value);
  parts_.value_error.add_(of_tile.value_error);
  parts_.mass = at::hypot(parts_.mass, of_tile.mass);
  parts_.sum_error = at::maximum(parts_.sum_error, of_tile.sum_error);
  if (columns_.defined()) keep_columns(tile, g);
}

void RecomputedHead::keep_columns(int64_t tile, const at::Tensor& g) {
  const auto [inside, places] = tiles_->places_in(tile, lookup_.ids);
  for (int64_t u = 0; u < segments_->units(); ++u) {
    const int64_t first = lookup_.segments->begin(u), count = lookup_.segments->length(u);
    if (count == 0 || segments_->length(u) == 0) continue;
    const at::Tensor own = g.narrow(0, segments_->begin(u), segments_->length(u));
    at::Tensor columns = columns_.narrow(0, segments_->begin(u), segments_->length(u)).narrow(1, 0, count);
    columns.copy_(
        at::where(inside.narrow(0, first, count), own.index_select(1, places.narrow(0, first, count)), columns));
  }
}

void RecomputedHead::add_norm_to(kernels::NormParts& parts) const {
  parts.value.add_(parts_.value);
  parts.value_error.add_(parts_.value_error);
  parts.mass.add_(parts_.mass);
  parts.sum_error.copy_(at::maximum(parts.sum_error, parts_.sum_error));
}

void RecomputedHead::add_cross_term_to(const at::Tensor& ids, const at::Tensor& e, kernels::NormParts& parts) {
  if (!columns_.defined() || !lookup_.ids.is_alias_of(ids) || ids.sizes() != lookup_.ids.sizes()) {
    throw std::logic_error("parameter '" + tiles_->weight().name() +
                           "' is a head by tiles and an embedding of other ids than were looked up before it");
  }
  // In float64 no unit is found again from its rows, which here are not the head's own. Place s of a unit is its id.
  const kernels::Segments& lookups = *lookup_.segments;
  std::vector<int64_t> places;
  places.reserve(static_cast<size_t>(lookups.rows()));
  for (int64_t u = 0; u < lookups.units(); ++u) {
    for (int64_t s = 0; s < lookups.length(u); ++s) places.push_back(s);
  }
  kernels::NormParts cross = kernels::NormParts::zeros(lookups.units(), a_.device());
  kernels::tied_pair_cross_term(at::tensor(places, at::kLong).to(a_.device()), e.to(at::kDouble), lookups,
                                a_.to(at::kDouble), columns_.to(at::kDouble), *segments_, cross);
  // If terms cancel, the additions' own roundings remain: those of the tiles' squares, and of these two.
  const double roundings = static_cast<double>(tiles_->count() + 4) * 0x1p-53;
  const at::Tensor apart = parts.value + parts.value_error;
  parts.value_error.add_(cross.value_error).add_(parts.value.add(cross.value.abs()), roundings);
  parts.value.add_(cross.value);
  kernels::count_tied_norms(apart, parts);
  kernels::raise_tied_pair_sum_error(kernel_type(a_), *segments_, lookups, parts);
  columns_.reset();
}

void RecomputedHead::add_to(at::Tensor out, const at::Tensor& factors, const kernels::NormParts& parts) const {
  if (!complete()) throw std::logic_error("the head '" + tiles_->weight().name() + "' was recorded in part only");
  at::Tensor scratch;
  for (int64_t tile = 0; tile < tiles_->count(); ++tile) {
    const auto [a, g] = matrix_rows(a_, tiles_->gradients(a_, tile, scratch));
    if (kernels::fingerprint(a, g, *segments_) != fingerprints_[static_cast<size_t>(tile)]) {
      throw std::logic_error("logit gradients computed again must be the first's bit for bit, but those of '" +
                             tiles_->weight().name() + "' differ: was the weight changed before its sum was taken?");
    }
    kernels::scaled_sum_rows(a, g, *segments_, factors, out.narrow(0, tiles_->first(tile), g.size(1)), &parts);
  }
}

}  // namespace ghostshard::dp
