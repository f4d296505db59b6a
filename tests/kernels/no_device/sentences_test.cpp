// A build without CUDA kernels says so.
#include <gmock/gmock.h>

#include <stdexcept>

#include "kernels/affine_norm/device.h"
#include "kernels/clip_factors/device.h"
#include "kernels/coded_weights/device.h"
#include "kernels/embedding_norm/device.h"
#include "kernels/fingerprint/device.h"
#include "kernels/gaussian/device.h"
#include "kernels/linear_norm/device.h"
#include "kernels/norm_parts/device.h"
#include "kernels/quantised_moments/device.h"
#include "kernels/rounded_weights/device.h"
#include "kernels/scaled_sum/device.h"
#include "kernels/tied_pair/device.h"

namespace ghostshard::kernels::device {
namespace {

struct Operation {
  const char* name;
  void (*call)();
};

class NoDevice : public testing::TestWithParam<Operation> {};

TEST_P(NoDevice, OperationsSayWhatIsMissing) {
  try {
    GetParam().call();
    FAIL() << "no exception";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("no CUDA kernels"), testing::HasSubstr("preset cuda")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    , NoDevice,
    testing::Values(
        Operation{"Rows", [] { measure_rows({}, nullptr); }}, Operation{"Masses", [] { add_masses({}, {}, nullptr); }},
        Operation{"Grams", [] { add_gram_norms({}, {}, nullptr, {}, nullptr); }},
        Operation{"Held", [] { hold_gradients({}, nullptr, false, {}, nullptr); }},
        Operation{"Passing", [] { add_passing_norms({}, {}, {}, nullptr); }},
        Operation{"Bounds", [] { norm_upper_bounds({}, 0, nullptr, nullptr); }},
        Operation{"SumHeld", [] { add_scaled_held({}, nullptr, nullptr, 0, 0, nullptr, nullptr); }},
        Operation{"SumRows", [] { add_scaled_products({}, {}, {}, nullptr, 1, nullptr, nullptr); }},
        Operation{"RowSums", [] { sum_rows_of_units({}, nullptr); }},
        Operation{"SortScratch", [] { sort_scratch_bytes(1); }},
        Operation{"Sort", [] { sort_pairs({}, 0, 0, nullptr); }},
        Operation{"Lookups", [] { add_lookup_norms({}, {}, {}, {}, nullptr); }},
        Operation{"SumLookups", [] { add_scaled_lookups({}, {}, nullptr, nullptr, nullptr); }},
        Operation{"HoldLookups", [] { add_lookups_to_held({}, {}, nullptr, nullptr, {}, nullptr); }},
        Operation{"HeldChunks", [] { held_chunks(1); }},
        Operation{"CrossTerms", [] { add_cross_terms({}, {}, nullptr); }},
        Operation{"Uncertain", [] { replace_uncertain({}, {}, {}, {}, nullptr); }},
        Operation{"Float64Grams", [] { add_gram_norms_float64({}, {}, nullptr, {}, nullptr); }},
        Operation{"SumsOfBounds", [] { sums_of_norm_bounds({}, 0, 0, nullptr, nullptr); }},
        Operation{"Factors", [] { clip_factors(nullptr, 0, 1, nullptr, nullptr); }},
        Operation{"Bits", [] { fingerprint_chunks_of(nullptr, 0, 0, nullptr, nullptr); }},
        Operation{"BitsJoined", [] { fingerprint_join(nullptr, 0, nullptr, nullptr); }},
        Operation{"BitsChunks", [] { fingerprint_chunks(1); }},
        Operation{"Noise", [] { add_gaussian({}, {}, 0, nullptr); }},
        Operation{"CodedMoments", [] { adamw_coded({}, CodeSign::kSigned, nullptr, nullptr, {}, 0, nullptr); }},
        Operation{"EncodedWeights", [] { encode_weights(WeightCode::kInt8, nullptr, nullptr, nullptr, 0, nullptr); }},
        Operation{
            "DecodedWeights",
            [] { decode_weights(WeightCode::kInt8, nullptr, nullptr, ElementType::kFloat32, nullptr, 0, nullptr); }},
        Operation{"PlainMoments", [] { adamw_plain({}, nullptr, nullptr, nullptr, nullptr, 0, nullptr); }},
        Operation{"RoundedWeights", [] { round_weights(nullptr, 0, 0, nullptr, 0, nullptr); }}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace ghostshard::kernels::device
