// Blocks that compute their activations again in backward.
#include <gtest/gtest.h>

#include "fsdp/backward_pass.h"
#include "tests/fsdp/sharded_model/layer_stack.h"
#include "tests/support/ranks.h"

namespace ghostshard::fsdp {
namespace {
using tests::run_ranks;

class Recomputation : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(ranks, Recomputation, testing::Values(1, 2, 3));

TEST_P(Recomputation, gives_the_bits_of_stored_activations) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stored(mesh, {true, false, true, true});
    Stack recomputed(mesh, {true, false, true, true});
    recomputed.activations = Activations::kRecompute;
    const at::Tensor x = input().requires_grad_();
    const at::Tensor again = input().requires_grad_();
    stored.forward(x).sum().backward();
    const at::Tensor y = recomputed.forward(again);
    EXPECT_EQ(recomputed.bodies_run, 4);
    y.sum().backward();
    EXPECT_EQ(recomputed.bodies_run, 8) << "each body once more";
    EXPECT_TRUE(at::equal(x.grad(), again.grad()));
    for (size_t i = 0; i < stored.gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(stored.gradients[i], recomputed.gradients[i])) << "layer " << i;
    }
    recomputed.expect_no_leases();
  });
}

TEST_P(Recomputation, keeps_nothing_of_a_body) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true, true});
    const at::Tensor x = input();
    c10::weak_intrusive_ptr<c10::TensorImpl> inside(x.getIntrusivePtr());
    const auto body = [&](const at::Tensor& in) {
      const at::Tensor middle = in * 3;
      inside = c10::weak_intrusive_ptr<c10::TensorImpl>(middle.getIntrusivePtr());
      const at::Tensor y = TanhLinear::apply(middle, stack.model.parameters()[0].get(), stack.gradients[0], false);
      return y * middle;  // saves middle
    };
    const at::Tensor stored = run_block(stack.model, 0, -1, -1, x, body);
    EXPECT_FALSE(inside.expired()) << "the test must see that autograd keeps it";
    const at::Tensor y = run_block(stack.model, 0, -1, -1, x, body, Activations::kRecompute);
    EXPECT_TRUE(inside.expired());
    EXPECT_TRUE(y.requires_grad());
  });
}

TEST_P(Recomputation, leaves_no_lease_after_an_exception) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true, true, true, true});
    stack.activations = Activations::kRecompute;
    const at::Tensor loss = stack.forward(input(), -1, 2).sum();
    EXPECT_THROW(loss.backward(), std::runtime_error);
    EXPECT_EQ(current_backward_pass(), -1);
    stack.expect_no_leases();
  });
}

TEST_P(Recomputation, refuses_a_second_backward) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true, true});
    stack.activations = Activations::kRecompute;
    const at::Tensor loss = stack.forward(input()).sum();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_THROW(loss.backward(), std::logic_error);
    stack.expect_no_leases();
  });
}

TEST_P(Recomputation, belongs_to_the_backward_it_happens_in) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true, true, true});
    std::vector<int> passes;
    at::Tensor x = input();
    for (int64_t u = 0; u < 3; ++u) {
      const auto body = [&stack, &passes, u](const at::Tensor& in) {
        const at::Tensor y = TanhLinear::apply(in, stack.model.parameters()[static_cast<size_t>(u)].get(),
                                               stack.gradients[static_cast<size_t>(u)], false);
        if (y.requires_grad())
          y.register_hook([&passes](const at::Tensor&) { passes.push_back(current_backward_pass()); });
        return y;
      };
      x = run_block(stack.model, u, -1, u - 1, x, body, u == 1 ? Activations::kStore : Activations::kRecompute);
    }
    x.sum().backward();
    ASSERT_EQ(passes.size(), 3U);
    EXPECT_GE(passes[0], 0);
    EXPECT_EQ(passes[0], passes[1]);
    EXPECT_EQ(passes[0], passes[2]);
    EXPECT_EQ(current_backward_pass(), -1);
  });
}

}  // namespace
}  // namespace ghostshard::fsdp
