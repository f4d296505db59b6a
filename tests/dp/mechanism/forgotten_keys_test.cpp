// The keys of steps that were opened and never released: they would show the noise that their sums left the rank with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>

#include "tests/dp/single_layer.h"

namespace ghostshard::tests {
namespace {

// A mechanism in memory of its own, which is looked through after its end too. (A mechanism does not move.)
class KeysInMemory : public testing::Test {
 protected:
  KeysInMemory()
      : mechanism_(new (memory_.data()) dp::GaussianMechanism(plan_.mechanism(layer_.model, key_, nullptr))) {}
  ~KeysInMemory() override { end(); }

  void end() {
    sum_.reset();
    if (mechanism_ != nullptr) std::destroy_at(std::exchange(mechanism_, nullptr));
  }
  // A step that leaves the rank, and is given up.
  void open(const dp::StepId& step) {
    sum_.reset();
    sum_.emplace(clipper_.begin(*mechanism_, step));
    clipper_.add(*sum_, clipper_.record(0));
  }
  void release(const dp::StepId& step) { (void)mechanism_->release(*std::exchange(sum_, std::nullopt), step); }
  bool holds_key_of(const dp::StepId& step) const {
    const auto key = key_.derive(dp::Purpose::kNoise, step);
    const auto* bytes = reinterpret_cast<const uint8_t*>(memory_.data());
    return std::search(bytes, bytes + memory_.size(), key.begin(), key.end()) != bytes + memory_.size();
  }

  std::unique_ptr<fsdp::Mesh> mesh_ = fsdp::Mesh::single();
  SingleLinear layer_{*mesh_, 6, 5};
  dp::DpPlan plan_ = dp::DpPlan::make({.units = 9,
                                       .expected_batch = 3,
                                       .steps = 9,
                                       .clip_norm = accountant::ClipNorm(1),
                                       .noise_chain = {.steps = 3, .decay = 0.5F},
                                       .noise_multiplier = accountant::NoiseMultiplier(1)});
  dp::RunKey key_ = key_of(7);
  dp::Clipper clipper_ = plan_.clipper(layer_.model, {.streamed = {true}});
  alignas(dp::GaussianMechanism) std::array<std::byte, sizeof(dp::GaussianMechanism)> memory_{};
  dp::GaussianMechanism* mechanism_;
  std::optional<dp::ClippedSum> sum_;
};

TEST_F(KeysInMemory, StayNoLongerThanTheirStepIfItIsGivenUp) {
  open({0});
  release({0});
  open({1});
  ASSERT_TRUE(holds_key_of({0})) << "of the step whose noise is taken back";
  ASSERT_TRUE(holds_key_of({1}));
  open({1, 1});
  EXPECT_FALSE(holds_key_of({0}));
  EXPECT_FALSE(holds_key_of({1}));
  ASSERT_TRUE(holds_key_of({1, 1}));
}

TEST_F(KeysInMemory, EndWithTheMechanism) {
  open({0});
  release({0});
  open({1});
  end();
  EXPECT_FALSE(holds_key_of({0}));
  EXPECT_FALSE(holds_key_of({1}));
}

}  // namespace
}  // namespace ghostshard::tests
