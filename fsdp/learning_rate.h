// The learning rate of each step. It is a pure function of the step, so that a resumed run goes on as if it had never
// stopped, and every rank knows the rate without communication.
//
// With W warm-up steps out of T, peak p and floor m, step s (from 0) has the rate
//
//   s < W:   p·(s+1)/(W+1)                     climbing, never 0
//   s ≥ W:   constant  p
//            linear    p − (p−m)·x             with x = (s−W)/(T−W), in [0,1)
//            cosine    m + (p−m)·(1+cos πx)/2  (arXiv:1608.03983, eq. 5, without restarts)
//
// The peak is reached at s = W. The floor is approached and never reached: a rate of 0 would spend a step for nothing.
#pragma once

#include <cstdint>
#include <string>

namespace ghostshard::fsdp {

enum class ScheduleShape { kConstant, kLinear, kCosine };

struct LearningRateSchedule {
  double peak = 1e-3;  // > 0, finite
  int64_t steps = 1;   // T of the whole run, ≥ 1; includes the steps before a resume
  ScheduleShape shape = ScheduleShape::kConstant;
  int64_t warmup_steps = 0;  // W, 0 ≤ W < T
  double minimum = 0.0;      // m, 0 ≤ m ≤ peak; 0 if the shape is constant

  // Throws std::invalid_argument: the rule and the value.
  void check() const;
  // The rate of step s, 0 ≤ s < T (std::invalid_argument otherwise). Positive for a schedule that passes check().
  double at(int64_t step) const;
};

// "constant", "linear", "cosine"; std::invalid_argument for anything else.
ScheduleShape schedule_shape(const std::string& name);

}  // namespace ghostshard::fsdp
