#include "kernels/fingerprint.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/kernels/backend.h"

namespace ghostshard::kernels {
namespace {

using backend::there;

const Segments kSegments({0, 3, 8});

uint64_t of(const at::Tensor& a, const at::Tensor& g, const Segments& segments) {
  return fingerprint(there(a), there(g), segments);
}

TEST(Fingerprint, IsThatOfTheValuesAndNotOfTheirPlace) {
  const at::Tensor a = at::randn({8, 5}), g = at::randn({8, 7});
  EXPECT_EQ(of(a, g, kSegments), of(a.clone(), g.clone(), Segments({0, 3, 8})));
}

TEST(Fingerprint, ChangesWithEveryBitOfEveryRow) {
  at::Tensor a = at::randn({8, 5}), g = at::randn({8, 7});
  std::set<uint64_t> seen{of(a, g, kSegments)};
  size_t changes = 1;
  for (const at::Tensor& rows : {a, g}) {
    auto* words = reinterpret_cast<uint32_t*>(rows.data_ptr<float>());
    for (int64_t i = 0; i < rows.numel(); ++i) {
      for (const int bit : {0, 13, 31}) {
        words[i] ^= 1U << bit;
        seen.insert(of(a, g, kSegments));
        ++changes;
        words[i] ^= 1U << bit;
      }
    }
  }
  EXPECT_EQ(seen.size(), changes);
}

TEST(Fingerprint, ChangesWithOrderShapeAndSegments) {
  const at::Tensor a = at::randn({8, 4}), g = at::randn({8, 4});
  const std::set<uint64_t> seen{of(a, g, kSegments),
                                of(g, a, kSegments),
                                of(a.flip({0}).contiguous(), g, kSegments),
                                of(a, g, Segments({0, 4, 8})),
                                of(a, g, Segments({0, 3, 3, 8})),
                                of(a.reshape({4, 8}), g, kSegments),
                                of(a, g.to(at::kBFloat16), kSegments)};
  EXPECT_EQ(seen.size(), 7U);
}

TEST(Fingerprint, TakesNoRowsAndRefusesGaps) {
  const at::Tensor none = at::empty({0, 4});
  EXPECT_NO_THROW(of(none, none, Segments({0})));
  EXPECT_ANY_THROW(of(at::randn({4, 8}).t(), at::randn({8, 4}), kSegments));
}

// More rows than one block's share, rows that begin within a word, and an end that is no whole word.
TEST(Fingerprint, SeesEveryPlaceOfLargeAndCrookedRows) {
  const at::Tensor a = at::randn({3, 20001}).to(at::kBFloat16), g = at::randn({3, 5});
  const Segments segments({0, 3});
  const at::Tensor store = there(at::zeros({a.numel() + 1}, at::kBFloat16));
  const at::Tensor odd = store.narrow(0, 1, a.numel()).view(a.sizes());
  odd.copy_(a);
  EXPECT_EQ(of(a, g, segments), fingerprint(odd, there(g), segments));
  std::set<uint64_t> seen{of(a, g, segments)};
  size_t changes = 1;
  auto* words = reinterpret_cast<uint16_t*>(a.data_ptr());
  for (const int64_t place : {int64_t{0}, int64_t{20000}, int64_t{32767}, int64_t{32768}, a.numel() - 1}) {
    words[place] ^= 1U;
    seen.insert(of(a, g, segments));
    ++changes;
    words[place] ^= 1U;
  }
  EXPECT_EQ(seen.size(), changes);
}

}  // namespace
}  // namespace ghostshard::kernels
