// The operations of a forward, by which a path that opens is seen.
#include "dp/recording/operations.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <thread>
#include <vector>

namespace ghostshard::tests {
namespace {

dp::Trace trace_of(const std::function<void()>& forward) {
  const uint64_t number = dp::begin_trace();
  forward();
  return dp::end_trace(number).value();
}

TEST(Operations, TellWhatIsComputedByNamesAndOrder) {
  const at::Tensor x = at::ones({4, 3});
  const auto plain = trace_of([&] { at::tanh(at::mul(x, 2)); });
  EXPECT_EQ(plain, trace_of([&] { at::tanh(at::mul(x, 3)); }));
  EXPECT_FALSE(plain == trace_of([&] { at::mul(at::tanh(x), 2); }));
  EXPECT_FALSE(plain == trace_of([&] { at::tanh(at::mul(x.mean(0), 2)); }));
  const auto shorter = trace_of([&] { at::tanh(x); });
  EXPECT_FALSE(plain == shorter);
  const auto laid_out = trace_of([&] { at::tanh(x.clone().view({3, 4})); });
  for (const bool of_units : {false, true}) {
    EXPECT_EQ(trace_of([&] { at::tanh(x - x.mean(0)); }).more_than(plain, of_units), "aten::mean");
    EXPECT_EQ(trace_of([&] { at::tanh(at::tanh(x)); }).more_than(plain, of_units), of_units ? "" : "aten::tanh");
    EXPECT_EQ(shorter.more_than(plain, of_units), "");
    EXPECT_EQ(laid_out.more_than(shorter, of_units), "");
    EXPECT_EQ(plain.more_than(shorter, of_units), of_units ? "" : "aten::mul");
  }
}

TEST(Operations, TellAlongWhichDimensionsTheyGo) {
  const at::Tensor x = at::ones({4, 3});
  const auto classes = trace_of([&] { at::softmax(x, 1); });
  EXPECT_EQ(classes, trace_of([&] { at::softmax(x, 1); }));
  const auto batch = trace_of([&] { at::softmax(x, 0); });
  EXPECT_FALSE(classes == batch);
  EXPECT_EQ(batch.more_than(classes, false), "aten::softmax");
  const auto mean_over = [&](const std::vector<int64_t>& along) { return trace_of([&] { x.mean(along); }); };
  EXPECT_EQ(mean_over({1}), mean_over({1}));
  EXPECT_FALSE(mean_over({1}) == mean_over({0}));
  EXPECT_FALSE(mean_over({1}) == mean_over({0, 1}));
}

// linear() multiplies three extents by another operation than two: that is its own.
TEST(Operations, AreTakenWithoutTheirParts) {
  const at::Tensor weight = at::ones({2, 3}), bias = at::ones({2});
  const auto of_rank = [&](const at::Tensor& x) { return trace_of([&] { at::linear(x, weight, bias); }); };
  EXPECT_EQ(of_rank(at::ones({4, 3})), of_rank(at::ones({4, 5, 3})));
}

// A program's own, whose code may go other ways.
struct Own : torch::autograd::Function<Own> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x, bool mixes) {
    return mixes ? x - x.mean(0) : x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list g) {
    return {g[0], at::Tensor()};
  }
};

TEST(Operations, AreTakenWithTheirPartsWhereTheyAreAProgramsOwn) {
  const at::Tensor x = at::ones({4, 3}).requires_grad_();
  EXPECT_EQ(trace_of([&] { Own::apply(x, false); }), trace_of([&] { Own::apply(x, false); }));
  EXPECT_FALSE(trace_of([&] { Own::apply(x, false); }) == trace_of([&] { Own::apply(x, true); }));
}

TEST(Operations, AreLeftOutBehindANumber) {
  const at::Tensor x = at::ones({4});
  const auto of = [&](uint64_t number, int times) {
    return trace_of([&] {
      at::exp(x);
      dp::leave_out(number);
      for (int i = 0; i < times; ++i) at::mul(x, 2);
      dp::leave_out(99);  // within another
      at::tanh(x);
      dp::go_on();
      at::tanh(x);
      dp::go_on();
      at::exp(x);
    });
  };
  EXPECT_EQ(of(1, 1), of(1, 5));
  EXPECT_FALSE(of(1, 1) == of(2, 1));
  EXPECT_EQ(of(0, 1), trace_of([&] { at::exp(at::exp(x)); }));
  dp::leave_out(1);  // without a trace
  dp::go_on();
}

TEST(Operations, OfAnInnerTraceAreNotTheOuterOnes) {
  const at::Tensor x = at::ones({4});
  const auto alone = trace_of([&] { at::exp(x); });
  dp::Trace inner;
  const auto outer = trace_of([&] {
    inner = trace_of([&] { at::exp(x); });
    at::exp(x);
  });
  EXPECT_EQ(inner, alone);
  EXPECT_EQ(outer, alone);
}

TEST(Operations, OfOtherThreadsAreNotSeen) {
  const at::Tensor x = at::ones({4});
  const auto nothing = trace_of([] {});
  EXPECT_EQ(nothing, trace_of([&] { std::thread([&] { at::exp(x); }).join(); }));
  const uint64_t number = dp::begin_trace();
  std::thread([&] { EXPECT_FALSE(dp::end_trace(number).has_value()); }).join();
  EXPECT_EQ(nothing, dp::end_trace(number));
  EXPECT_FALSE(dp::end_trace(number).has_value());
}

TEST(Operations, OfTracesThatNobodyEndedEndWithTheOuterOne) {
  const at::Tensor x = at::ones({4});
  const auto alone = trace_of([&] { at::exp(x); });
  uint64_t inner = 0;
  EXPECT_EQ(alone, trace_of([&] {
              at::exp(x);
              inner = dp::begin_trace();  // an interrupt ends its forward
              at::tanh(x);
            }));
  EXPECT_FALSE(dp::end_trace(inner).has_value());
}

TEST(Operations, OfManyOrdersAreKnownByWindows) {
  const at::Tensor x = at::ones({4});
  // A layer so many times: a loop over places.
  const auto loop = [&](int times, bool opened = false) {
    return trace_of([&] {
      for (int i = 0; i < times; ++i) at::tanh(at::mul(at::exp(x), 2));
      if (opened) at::add(x, x.mean(0));
    });
  };
  dp::KnownTraces known;
  for (int times = 4; times < 4 + static_cast<int>(dp::KnownTraces::kMost); ++times) {
    EXPECT_FALSE(known.knows(loop(times))) << times;
    known.add(loop(times));
    EXPECT_TRUE(known.knows(loop(times)));
    EXPECT_TRUE(known.knows(loop(times - 1)));  // it begins so
  }
  EXPECT_TRUE(known.knows(loop(50)));
  EXPECT_FALSE(known.knows(loop(50, true)));
}

}  // namespace
}  // namespace ghostshard::tests
