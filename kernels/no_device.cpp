// Linked instead of the CUDA kernels if the build has none: every function refuses with a sentence.
#include <stdexcept>
#include <string>

#include "kernels/affine_norm/device.h"
#include "kernels/clip_factors/device.h"
#include "kernels/coded_weights/device.h"
#include "kernels/device/placement.h"
#include "kernels/embedding_norm/device.h"
#include "kernels/fingerprint/device.h"
#include "kernels/gaussian/device.h"
#include "kernels/has_kernels.h"
#include "kernels/linear_norm/device.h"
#include "kernels/norm_parts/device.h"
#include "kernels/quantised_moments/device.h"
#include "kernels/rounded_weights/device.h"
#include "kernels/scaled_sum/device.h"
#include "kernels/tied_pair/device.h"

namespace ghostshard::kernels {

bool has_kernels(at::DeviceType /*type*/) { return false; }

namespace device {
namespace {

[[noreturn]] void refuse(const char* operation) {
  throw std::invalid_argument(std::string(operation) +
                              ": this build has no CUDA kernels, so tensors must be on the CPU; configure with the "
                              "preset cuda to have them");
}

}  // namespace

bool runs_on_device(const at::Tensor& x) { return x.is_cuda(); }
Stream current_stream(const at::Tensor& /*x*/) { return nullptr; }

void measure_rows(const UnitRowsWork&, Stream) { refuse("measure_rows"); }
void add_masses(const UnitRowsWork&, const Parts&, Stream) { refuse("add_masses"); }
void add_gram_norms(const UnitRowsWork&, const UnitTiles&, double*, const Parts&, Stream) { refuse("add_gram_norms"); }
void hold_gradients(const GradientWork&, void*, bool, const Parts&, Stream) { refuse("hold_gradients"); }
void add_passing_norms(const GradientWork&, const UnitRowsWork&, const Parts&, Stream) { refuse("add_passing_norms"); }
void norm_upper_bounds(const Parts&, int64_t, double*, Stream) { refuse("norm_upper_bounds"); }
void sums_of_norm_bounds(const Parts&, int64_t, int64_t, double*, Stream) { refuse("sums_of_norm_bounds"); }
void add_scaled_held(ElementType, const void*, const float*, int64_t, int64_t, void*, Stream) {
  refuse("add_scaled_held");
}
void add_scaled_products(const Matrix&, const Matrix&, const Units&, const float*, int64_t, void*, Stream) {
  refuse("add_scaled_products");
}
void sum_rows_of_units(const RowSums&, Stream) { refuse("sum_rows_of_units"); }
size_t sort_scratch_bytes(int64_t) { refuse("sort_scratch_bytes"); }
void sort_pairs(const LookupOrder&, int64_t, int64_t, Stream) { refuse("sort_pairs"); }
void add_lookup_norms(const Lookup&, const LookupOrder&, const LookupNorms&, const Parts&, Stream) {
  refuse("add_lookup_norms");
}
void add_scaled_lookups(const Lookup&, const LookupOrder&, const float*, void*, Stream) {
  refuse("add_scaled_lookups");
}
void add_lookups_to_held(const Lookup&, const LookupOrder&, void*, double*, const Parts&, Stream) {
  refuse("add_lookups_to_held");
}
int64_t held_chunks(int64_t) { refuse("held_chunks"); }
void add_cross_terms(const TiedPairWork&, const Parts&, Stream) { refuse("add_cross_terms"); }
void replace_uncertain(const TiedPairWork&, const Parts&, const Parts&, const Parts&, Stream) {
  refuse("replace_uncertain");
}
void add_gram_norms_float64(const UnitRowsWork&, const UnitTiles&, double*, const Parts&, Stream) {
  refuse("add_gram_norms_float64");
}
void clip_factors(const double*, int64_t, double, float*, Stream) { refuse("clip_factors"); }
void fingerprint_chunks_of(const void*, int64_t, uint64_t, uint64_t*, Stream) { refuse("fingerprint_chunks_of"); }
void fingerprint_join(const uint64_t*, int64_t, uint64_t*, Stream) { refuse("fingerprint_join"); }
int64_t fingerprint_chunks(int64_t) { refuse("fingerprint_chunks"); }
void add_gaussian(const ChaChaKeyWords&, std::span<const GaussianRange>, float, Stream) { refuse("add_gaussian"); }
void adamw_coded(const AdamWTerms&, CodeSign, float*, const float*, const CodedMoments&, int64_t, Stream) {
  refuse("adamw_coded");
}
void adamw_plain(const AdamWTerms&, float*, const float*, float*, float*, int64_t, Stream) { refuse("adamw_plain"); }
void adamw_halves(const AdamWTerms&, float*, const float*, uint16_t*, uint16_t*, uint32_t, uint64_t, int64_t, Stream) {
  refuse("adamw_halves");
}
void encode_weights(WeightCode, const float*, uint8_t*, float*, int64_t, Stream) { refuse("encode_weights"); }
void decode_weights(WeightCode, const uint8_t*, const float*, ElementType, void*, int64_t, Stream) {
  refuse("decode_weights");
}
void round_weights(const float*, uint32_t, uint64_t, uint16_t*, int64_t, Stream) { refuse("round_weights"); }

}  // namespace device
}  // namespace ghostshard::kernels
