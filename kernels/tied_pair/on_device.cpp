// The tied pair, for tensors on a device.
#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/device/tensors.h"
#include "kernels/embedding_norm/workspace.h"
#include "kernels/host/checks.h"
#include "kernels/linear_norm/tile_plan.h"
#include "kernels/linear_norm/workspace.h"
#include "kernels/tied_pair/device.h"

namespace ghostshard::kernels::on_device {

void tied_pair_cross_term(const at::Tensor& ids, const at::Tensor& e, const Segments& embedding_segments,
                          const at::Tensor& h, const at::Tensor& b, const Segments& head_segments,
                          const NormParts& parts) {
  constexpr const char* op = "tied_pair_cross_term";
  const DeviceRowPair head = device_row_pair(op, h, b, head_segments);
  require_dense(op, "e", e, h.device());
  require_one_table(op, e, embedding_segments, h, head_segments);
  require_parts(parts, head_segments.units(), h.device());
  const c10::DeviceGuard guard(h.device());
  const CheckedLookup lookup(op, ids, e, embedding_segments, b.size(1));
  const RowsWorkspace space(head, h, head_segments);
  const DeviceTiles cross(pair_tiles_before(embedding_segments, head_segments), 3, h);
  const at::Tensor e_norms = space.numbers({e.size(0)}), cross_sums = space.numbers({2, head_segments.units()});
  const at::Tensor uncertain = at::empty({head_segments.units()}, h.options().dtype(at::kBool));
  const device::TiedPairWork work{.lookup = lookup.lookup,
                                  .head = space.work(),
                                  .cross = cross.tiles,
                                  .partials = cross.partials.mutable_data_ptr<double>(),
                                  .e_norms = e_norms.mutable_data_ptr<double>(),
                                  .cross_sums = cross_sums.mutable_data_ptr<double>(),
                                  .uncertain = uncertain.mutable_data_ptr<bool>()};
  device::measure_rows(space.work(), space.stream());
  device::add_cross_terms(work, device_parts(parts), space.stream());
  if (h.scalar_type() == at::kDouble) return;

  // Only the device knows which units are uncertain: blocks of the others end at once. (The embedding's norm is
  // recomputed for all units; it takes a sort and one reading of the rows.)
  const NormParts lookups = NormParts::zeros(head_segments.units(), h.device());
  const NormParts grams = NormParts::zeros(head_segments.units(), h.device());
  const SortWorkspace sort(ids);
  const LookupNormsWorkspace norms(e, ids);
  device::add_lookup_norms(lookup.lookup, sort.order, norms.norms, device_parts(lookups), space.stream());
  const DeviceTiles tiles(gram_tiles_before(head_segments), 3, h);
  device::add_gram_norms_float64(space.work(), tiles.tiles, tiles.partials.mutable_data_ptr<double>(),
                                 device_parts(grams), space.stream());
  device::replace_uncertain(work, device_parts(lookups), device_parts(grams), device_parts(parts), space.stream());
}

}  // namespace ghostshard::kernels::on_device
