// Norms and sums have the same bits whatever PyTorch's products of float32 matrices may be rounded to. (On processors
// without units for that the setting only chooses another library, whose bits differ too.)
#include "kernels/host/float32_products.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "kernels/linear_norm.h"
#include "kernels/scaled_sum.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

class Setting {
 public:
  explicit Setting(const char* precision) { at::globalContext().setFloat32MatmulPrecision(precision); }
  ~Setting() { at::globalContext().setFloat32MatmulPrecision("highest"); }
};

const Segments kSegments = oracle::segments_of({700, 300, 1, 90});

struct Found {
  at::Tensor sum, held, of_held, of_rows;
};

Found found() {
  const at::Tensor a = oracle::normal({kSegments.rows(), 96}, 1, at::kFloat);
  const at::Tensor g = oracle::normal({kSegments.rows(), 160}, 2, at::kFloat);
  NormParts parts = NormParts::zeros(kSegments.units()), of_held = NormParts::zeros(kSegments.units());
  Found all{at::zeros({160, 96}), at::zeros({kSegments.units(), 160, 96}), {}, {}};
  passing_norm(a, g, kSegments, parts);
  scaled_sum_rows(a, g, kSegments, at::full({kSegments.units()}, 0.25F), all.sum, &parts);
  per_unit_gradient(a, g, kSegments, all.held, /*accumulate=*/false, of_held);
  all.of_held = of_held.value;
  all.of_rows = parts.value;
  return all;
}

TEST(Float32Products, NormsAndSumsDoNotFollowTheSettingOfPyTorch) {
  const Found expected = found();
  for (const char* precision : {"high", "medium"}) {
    SCOPED_TRACE(precision);
    const Setting setting(precision);
    const Found now = found();
    EXPECT_TRUE(at::equal(now.sum, expected.sum));
    EXPECT_TRUE(at::equal(now.held, expected.held));
    EXPECT_TRUE(at::equal(now.of_held, expected.of_held));
    EXPECT_TRUE(at::equal(now.of_rows, expected.of_rows));
  }
}

TEST(Float32Products, PutTheSettingBack) {
  const Setting setting("medium");
  {
    const Float32Products in_float32;
    const Float32Products again;
  }
  EXPECT_EQ(at::globalContext().float32MatmulPrecision(), at::Float32MatmulPrecision::MEDIUM);
}

}  // namespace
}  // namespace ghostshard::kernels
