#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "tests/fsdp/sharded_model/layer_stack.h"
#include "tests/support/ranks.h"

namespace ghostshard::fsdp {
namespace {
using tests::run_ranks;

class RunBlock : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(ranks, RunBlock, testing::Values(1, 2, 3));

TEST_P(RunBlock, gives_the_gradients_of_plain_autograd) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true, true, true, true, true});
    const at::Tensor y = stack.forward(input());
    EXPECT_TRUE(y.requires_grad());
    y.sum().backward();
    const auto expected = stack.expected_gradients(input());
    for (size_t i = 0; i < expected.size(); ++i) {
      // The same operations on the same values, but for the order in which a matmul may sum.
      EXPECT_TRUE(at::allclose(stack.gradients[i], expected[i], 1e-5, 1e-6)) << "layer " << i;
    }
    stack.expect_no_leases();
  });
}

TEST_P(RunBlock, gathers_each_block_once_forward_and_once_backward_but_the_last_two) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true, true, true, true, true});
    const int64_t before = stack.model.gathers();
    const at::Tensor y = stack.forward(input());
    const int64_t after_forward = stack.model.gathers();
    y.sum().backward();
    const int64_t after_backward = stack.model.gathers();
    const bool alone = mesh.world_size() == 1;
    EXPECT_EQ(after_forward - before, alone ? 0 : 5);
    EXPECT_EQ(after_backward - after_forward, alone ? 0 : 3);
  });
}

TEST_P(RunBlock, without_grad_mode_records_nothing) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true, true, true});
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(stack.forward(input()).requires_grad());
    stack.expect_no_leases();
  });
}

TEST_P(RunBlock, a_frozen_stack_below_is_not_recorded) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {false, false, true});
    int64_t recorded_below = 0;
    at::Tensor x = input();
    for (int64_t u = 0; u < 2; ++u) {
      x = run_block(stack.model, u, -1, -1, x, [&](const at::Tensor& in) {
        recorded_below += in.requires_grad() || at::GradMode::is_enabled();
        return in * 2;
      });
      EXPECT_FALSE(x.requires_grad());
    }
    EXPECT_EQ(recorded_below, 0);
    EXPECT_TRUE(at::GradMode::is_enabled());
    stack.forward(input()).sum().backward();
    EXPECT_GT(stack.gradients[2].abs().sum().item<float>(), 0);
    stack.expect_no_leases();
  });
}

TEST_P(RunBlock, a_frozen_block_above_a_trainable_one_is_gathered_in_backward) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true, false, false, false, true});
    stack.forward(input()).sum().backward();
    const auto expected = stack.expected_gradients(input());
    for (const size_t i : {0U, 4U}) EXPECT_TRUE(at::allclose(stack.gradients[i], expected[i], 1e-5, 1e-6)) << i;
    stack.expect_no_leases();
  });
}

TEST_P(RunBlock, passes_the_gradient_of_its_input_on) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {false, false, false});
    const at::Tensor x = input().requires_grad_();
    stack.forward(x).sum().backward();
    const at::Tensor plain = input().requires_grad_();
    at::Tensor h = plain;
    for (const at::Tensor& weight : stack.whole) h = h.matmul(weight).tanh();
    h.sum().backward();
    EXPECT_TRUE(at::allclose(x.grad(), plain.grad(), 1e-5, 1e-6));
    stack.expect_no_leases();
  });
}

TEST_P(RunBlock, does_not_leave_a_gradient_on_an_input_that_wants_none) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true});
    const at::Tensor x = input();
    at::Tensor seen;
    const at::Tensor y = run_block(stack.model, 0, -1, -1, x, [&](const at::Tensor& in) {
      seen = in;
      return TanhLinear::apply(in, stack.model.parameters()[0].get(), stack.gradients[0], false);
    });
    EXPECT_TRUE(seen.requires_grad());
    EXPECT_FALSE(x.requires_grad());
    y.sum().backward();
    EXPECT_FALSE(x.grad().defined());
    // Nor on the leaf that stands for it in the graph: that would hold one activation's worth of memory.
    const auto leaf = std::dynamic_pointer_cast<torch::autograd::AccumulateGrad>(seen.grad_fn()->next_edge(0).function);
    ASSERT_NE(leaf, nullptr);
    EXPECT_FALSE(leaf->variable.grad().defined());
  });
}

// Rows of a table by token; nothing but an anchor makes autograd record it.
struct TableRows : torch::autograd::Function<TableRows> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& anchor, const at::Tensor& ids,
                            const Parameter* table, at::Tensor gradient) {
    (void)anchor;
    context->save_for_backward({ids});
    context->saved_data["gradient"] = gradient;
    return table->value().index_select(0, ids);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grad) {
    const auto saved = context->get_saved_variables();
    context->saved_data["gradient"].toTensor().index_add_(0, saved[0], grad[0]);
    return {{}, {}, {}, {}};
  }
};

TEST_P(RunBlock, takes_integers_and_releases_at_the_end_of_backward) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true, true, true}, /*with_embedding=*/true);
    const at::Tensor ids = at::tensor({3, 0, 3, 10}, at::kLong);
    const at::Tensor rows = run_block(stack.model, 0, 1, -1, ids, [&](const at::Tensor& in) {
      return TableRows::apply(at::zeros({0}).requires_grad_(), in, stack.model.parameters()[0].get(),
                              stack.gradients[0]);
    });
    stack.forward(rows).sum().backward();
    const at::Tensor table = stack.whole[0].detach().clone().requires_grad_();
    at::Tensor h = table.index_select(0, ids);
    for (size_t i = 1; i < stack.whole.size(); ++i) h = h.matmul(stack.whole[i]).tanh();
    h.sum().backward();
    EXPECT_TRUE(at::allclose(stack.gradients[0], table.grad(), 1e-5, 1e-6));
    stack.model.weights_changed();
    EXPECT_THROW(stack.model.release(0), std::logic_error) << "a lease was left";
  });
}

TEST_P(RunBlock, an_exception_in_the_body_leaves_no_lease) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true, true, true, true});
    for (int64_t layer = 0; layer < 4; ++layer) {
      EXPECT_THROW(stack.forward(input(), layer), std::runtime_error);
      stack.expect_no_leases();
    }
  });
}

TEST_P(RunBlock, an_exception_in_backward_leaves_no_lease_once_the_graph_is_gone) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true, true, true, true});
    for (int64_t layer = 0; layer < 4; ++layer) {
      {
        const at::Tensor loss = stack.forward(input(), -1, layer).sum();
        EXPECT_THROW(loss.backward(), std::runtime_error);
      }
      stack.expect_no_leases();
    }
    for (at::Tensor& gradient : stack.gradients) gradient.zero_();
    stack.forward(input()).sum().backward();
    const auto expected = stack.expected_gradients(input());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(stack.gradients[i], expected[i], 1e-5, 1e-6)) << "layer " << i;
    }
  });
}

TEST_P(RunBlock, reset_leases_helps_while_the_graph_is_still_held) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true, true, true, true});
    at::Tensor loss = stack.forward(input(), -1, 3).sum();
    EXPECT_THROW(loss.backward(), std::runtime_error);
    stack.model.reset_leases();
    stack.expect_no_leases();
    const Lease lease(stack.model, 3);  // the block whose backward broke
    loss = at::Tensor();
    EXPECT_THROW(stack.model.acquire(1), std::logic_error) << "the dying graph released a lease that is not its own";
  });
}

TEST_P(RunBlock, a_graph_may_outlive_the_model) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    at::Tensor loss;
    {
      Stack stack(mesh, {true, true});
      loss = stack.forward(input(), -1, 1).sum();
      EXPECT_THROW(loss.backward(), std::runtime_error);
    }
    EXPECT_ANY_THROW(loss.backward());
  });
}

TEST_P(RunBlock, backward_may_run_twice) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {true, true, true});
    const at::Tensor loss = stack.forward(input()).sum();
    loss.backward({}, /*retain_graph=*/true);
    const at::Tensor once = stack.gradients[0].clone();
    loss.backward();
    EXPECT_TRUE(at::allclose(stack.gradients[0], 2 * once));
    stack.expect_no_leases();
  });
}

// Ordinary operations save a view of the weights. The view is right again, and accepted, once the block is back.
TEST_P(RunBlock, ordinary_operations_on_values_are_right_too) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    Stack stack(mesh, {false, false, false, false, false});
    const at::Tensor x = input().requires_grad_();
    at::Tensor h = x;
    for (int64_t u = 0; u < 5; ++u) {
      h = run_block(stack.model, u, u < 4 ? u + 1 : -1, u - 1, h, [&](const at::Tensor& in) {
        return in.matmul(stack.model.parameters()[static_cast<size_t>(u)]->value()).tanh();
      });
    }
    h.sum().backward();
    const at::Tensor plain = input().requires_grad_();
    at::Tensor p = plain;
    for (const at::Tensor& weight : stack.whole) p = p.matmul(weight).tanh();
    p.sum().backward();
    EXPECT_TRUE(at::allclose(x.grad(), plain.grad(), 1e-5, 1e-6));
  });
}

}  // namespace
}  // namespace ghostshard::fsdp
