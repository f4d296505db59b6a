#include "kernels/fingerprint.h"

#include <gtest/gtest.h>

#include <set>

namespace ghostshard::kernels {
namespace {

const Segments kSegments({0, 3, 8});

TEST(Fingerprint, IsThatOfTheValuesAndNotOfTheirPlace) {
  const at::Tensor a = at::randn({8, 5}), g = at::randn({8, 7});
  EXPECT_EQ(fingerprint(a, g, kSegments), fingerprint(a.clone(), g.clone(), Segments({0, 3, 8})));
}

TEST(Fingerprint, ChangesWithEveryBitOfEveryRow) {
  at::Tensor a = at::randn({8, 5}), g = at::randn({8, 7});
  std::set<uint64_t> seen{fingerprint(a, g, kSegments)};
  size_t changes = 1;
  for (const at::Tensor& rows : {a, g}) {
    auto* words = reinterpret_cast<uint32_t*>(rows.data_ptr<float>());
    for (int64_t i = 0; i < rows.numel(); ++i) {
      for (const int bit : {0, 13, 31}) {
        words[i] ^= 1U << bit;
        seen.insert(fingerprint(a, g, kSegments));
        ++changes;
        words[i] ^= 1U << bit;
      }
    }
  }
  EXPECT_EQ(seen.size(), changes);
}

TEST(Fingerprint, ChangesWithOrderShapeAndSegments) {
  const at::Tensor a = at::randn({8, 4}), g = at::randn({8, 4});
  const std::set<uint64_t> seen{fingerprint(a, g, kSegments),
                                fingerprint(g, a, kSegments),
                                fingerprint(a.flip({0}).contiguous(), g, kSegments),
                                fingerprint(a, g, Segments({0, 4, 8})),
                                fingerprint(a, g, Segments({0, 3, 3, 8})),
                                fingerprint(a.reshape({4, 8}), g, kSegments),
                                fingerprint(a, g.to(at::kBFloat16), kSegments)};
  EXPECT_EQ(seen.size(), 7U);
}

TEST(Fingerprint, TakesNoRowsAndRefusesGaps) {
  const at::Tensor none = at::empty({0, 4});
  EXPECT_NO_THROW(fingerprint(none, none, Segments({0})));
  EXPECT_ANY_THROW(fingerprint(at::randn({4, 8}).t(), at::randn({8, 4}), kSegments));
}

}  // namespace
}  // namespace ghostshard::kernels
