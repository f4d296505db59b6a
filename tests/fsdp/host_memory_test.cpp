#include "fsdp/host_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace ghostshard::fsdp {
namespace {

TEST(HostMemory, TensorsAreAligned) {
  reuse_host_memory();
  for (const int64_t bytes : {1, 63, 64, 65, 4096, 1 << 20}) {
    const at::Tensor tensor = at::empty({bytes}, at::kByte);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0U) << bytes;
  }
  EXPECT_EQ(at::empty({0}, at::kByte).data_ptr(), nullptr);
}

TEST(HostMemory, ATensorTakesTheHoleOfOneOfItsSize) {
  reuse_host_memory();
  constexpr int64_t kElements = 12 << 20;  // 48 MiB: a heap of glibc would map and unmap it
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(at::empty({kElements}, at::kFloat));
  for (const size_t freed : {1, 2, 1}) {
    const void* const place = tensors[freed].data_ptr();
    tensors[freed].reset();
    tensors[freed] = at::empty({kElements}, at::kFloat);
    EXPECT_EQ(tensors[freed].data_ptr(), place);
  }
}

TEST(HostMemory, PeakRisesWithWhatIsTouched) {
  const double before = peak_host_memory_mib();
  const std::vector<char> touched((static_cast<size_t>(before) + 16) << 20, 'x');
  EXPECT_GE(peak_host_memory_mib(), static_cast<double>(touched.size() >> 20));
}

TEST(HostMemory, ContentsMoveWithAResize) {
  reuse_host_memory();
  at::Tensor tensor = at::arange(1000, at::kLong);
  tensor.resize_({1 << 20});
  EXPECT_TRUE(at::equal(tensor.narrow(0, 0, 1000), at::arange(1000, at::kLong)));
}

TEST(HostMemory, TooMuchIsBadAlloc) {
  reuse_host_memory();
  EXPECT_ANY_THROW(at::empty({int64_t{1} << 60}, at::kByte));
}

}  // namespace
}  // namespace ghostshard::fsdp
