// The emulated device refuses uses that a real one would not survive: host code that follows a device pointer,
// operations on tensors of two devices. It counts how often the host waits.
#include "tests/emulation/device/device.h"

#include <gmock/gmock.h>

#include "kernels/scaled_sum.h"
#include "tests/emulation/device/memory.h"

namespace ghostshard::emulation {
namespace {

TEST(EmulatedDevice, TheHostCannotFollowItsPointers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const at::Tensor x = at::ones({4}).to(device());
  EXPECT_DEATH(std::printf("%g\n", x.data_ptr<float>()[0]), "the host touched memory of the device");
  EXPECT_DEATH(x.data_ptr<float>()[3] = 1, "the host touched memory of the device");
  EXPECT_EQ(x.cpu().sum().item<float>(), 4);
}

TEST(EmulatedDevice, TensorsOfTheHostAreRefusedButForNumbers) {
  const at::Tensor there = at::ones({3}).to(device()), here = at::ones({3});
  EXPECT_ANY_THROW(there.add(here));
  EXPECT_ANY_THROW(here.add(there));
  EXPECT_ANY_THROW(at::cat({there, here}));
  EXPECT_ANY_THROW(there.index_select(0, at::zeros({1}, at::kLong)));
  EXPECT_THROW(kernels::scaled_sum_held(there.view({1, 3}), at::ones({1}), there), std::invalid_argument);
  EXPECT_EQ(there.add(at::full({}, 2.0)).cpu().sum().item<float>(), 9);
}

TEST(EmulatedDevice, CountsWhatTheHostWaitsFor) {
  const auto waits_of = [](const auto& what) {
    const int64_t before = host_waits();
    what();
    return host_waits() - before;
  };
  const at::Tensor x = at::ones({5}).to(device());
  EXPECT_EQ(waits_of([&] { (x + 1).mul_(x).narrow(0, 1, 2).fill_(3).view({2, 1}); }), 0);
  EXPECT_EQ(waits_of([&] { x.cpu(); }), 1);
  EXPECT_EQ(waits_of([&] { x.sum().item<float>(); }), 1);
  EXPECT_EQ(waits_of([&] { x.masked_select(x.gt(0)); }), 1);
  EXPECT_EQ(waits_of([&] { at::ones({2}).to(device()); }), 1) << "a copy that blocks waits for all before it";
  EXPECT_EQ(waits_of([&] { at::ones({2}).to(device(), at::kFloat, /*non_blocking=*/true); }), 0);
}

TEST(EmulatedDevice, MemoryStartsAsNotANumberAndGoesBack) {
  const size_t before = device_bytes_in_use();
  {
    const at::Tensor x = at::empty({1000}, at::dtype(at::kFloat).device(device()));
    EXPECT_TRUE(x.isnan().all().cpu().item<bool>());
    EXPECT_GE(device_bytes_in_use(), before + 4000);
  }
  EXPECT_EQ(device_bytes_in_use(), before);
}

TEST(EmulatedDevice, GradientsAreFormedThere) {
  const at::Tensor x = at::arange(6, at::kFloat).view({2, 3}), w = at::ones({3, 2}).mul_(0.5);
  const at::Tensor there = x.to(device()).requires_grad_();
  at::gelu(at::mm(there, w.to(device()))).sum().backward();
  const at::Tensor here = x.clone().requires_grad_();
  at::gelu(at::mm(here, w)).sum().backward();
  EXPECT_EQ(there.grad().device(), device());
  EXPECT_TRUE(at::equal(there.grad().cpu(), here.grad()));
}

}  // namespace
}  // namespace ghostshard::emulation
