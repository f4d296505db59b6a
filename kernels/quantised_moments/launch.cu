// AdamW: the launches of the kernels in kernels.cuh.
#include "kernels/quantised_moments/kernels.cuh"

#include "kernels/device/launch.cuh"

namespace ghostshard::kernels::device {

// NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes weights and moments
void adamw_coded(const AdamWTerms& terms, CodeSign second_sign, float* weights, const float* gradient,
                 const CodedMoments& moments, int64_t n, Stream stream) {
  const bool with_sign = second_sign == CodeSign::kSigned;
  launch("adamw_of_stretches",
         with_sign ? adamw_of_stretches<CodeSign::kSigned> : adamw_of_stretches<CodeSign::kUnsigned>,
         {.work = blocks_of(n, kStretch), .threads = kStretch, .shared_bytes = sizeof(StretchMaxima)}, stream,
         {.terms = terms, .weights = weights, .gradient = gradient, .moments = moments, .n = n});
}

// NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes weights and moments
void adamw_plain(const AdamWTerms& terms, float* weights, const float* gradient, float* first, float* second, int64_t n,
                 Stream stream) {
  launch("adamw_of_elements", adamw_of_elements, {.work = blocks_of(n, kStretch), .threads = kStretch}, stream, terms,
         weights, gradient, first, second, n);
}

// NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes weights and moments
void adamw_halves(const AdamWTerms& terms, float* weights, const float* gradient, uint16_t* first, uint16_t* second,
                  uint32_t stream_of_bits, uint64_t first_element, int64_t n, Stream stream) {
  launch("adamw_of_halves", adamw_of_halves, {.work = blocks_of(n, kStretch), .threads = kStretch}, stream, terms,
         weights, gradient, first, second, stream_of_bits, first_element, n);
}

}  // namespace ghostshard::kernels::device
