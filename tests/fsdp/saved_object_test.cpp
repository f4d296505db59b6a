// Objects that autograd nodes keep: owned by the node, read as the type they were saved as, gone once forgotten.
#include "fsdp/saved_object.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace ghostshard::fsdp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Factor {
  double value;
};

enum class Read { kAsSaved, kAsAnotherType, kForgotten };

// y = factor·x, the factor kept by the node.
struct Scaled : torch::autograd::Function<Scaled> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::shared_ptr<Factor>& factor,
                            Read read) {
    save_object(context, factor);
    context->saved_data["read"] = static_cast<int64_t>(read);
    return x * factor->value;
  }
  static variable_list backward(AutogradContext* context, variable_list grad) {
    const auto read = static_cast<Read>(context->saved_data["read"].toInt());
    if (read == Read::kAsAnotherType) (void)saved_object<const Factor>(context);
    if (read == Read::kForgotten) forget_object(context);
    const auto factor = saved_object<Factor>(context);
    return {factor == nullptr ? at::zeros_like(grad[0]) : grad[0] * factor->value, {}, {}};
  }
};

at::Tensor one() { return at::ones({1}).requires_grad_(); }

TEST(SavedObject, IsReadInBackwardAsItWasSaved) {
  const at::Tensor x = one();
  Scaled::apply(x, std::make_shared<Factor>(Factor{3}), Read::kAsSaved).backward();
  EXPECT_EQ(x.grad().item<double>(), 3);
}

TEST(SavedObject, IsNotReadAsAnotherType) {
  const at::Tensor y = Scaled::apply(one(), std::make_shared<Factor>(Factor{3}), Read::kAsAnotherType);
  EXPECT_THROW(y.backward(), std::logic_error);
}

TEST(SavedObject, IsNullOnceForgotten) {
  const at::Tensor x = one();
  Scaled::apply(x, std::make_shared<Factor>(Factor{3}), Read::kForgotten).backward();
  EXPECT_EQ(x.grad().item<double>(), 0);
}

TEST(SavedObject, LivesAsLongAsTheGraph) {
  auto factor = std::make_shared<Factor>(Factor{3});
  const std::weak_ptr<Factor> watched = factor;
  at::Tensor y = Scaled::apply(one(), factor, Read::kAsSaved);
  factor.reset();
  EXPECT_FALSE(watched.expired());
  y.reset();
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace ghostshard::fsdp
