// A block's forward stands between two identities in the autograd graph, entry and exit. Backward meets the exit first,
// which gathers the block again, then body's operations, then the entry, which releases the block. If activations are
// recomputed, one node stands for all three: it makes body's graph anew and runs it as a backward within the backward.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "fsdp/backward_pass.h"
#include "fsdp/saved_object.h"
#include "fsdp/sharded_model.h"
#include "fsdp/sharded_model/buffers.h"

namespace ghostshard::fsdp {

// What entry and exit of one run share. It lives in the graph: if backward ends by an exception, the lease goes when
// the graph does.
struct BlockPassage {
  BlockPassage(const ShardedModel& model, int64_t block_index, int64_t next)
      : buffers(model.buffers_), block(block_index), next_backward(next) {}
  BlockPassage(const BlockPassage&) = delete;
  BlockPassage& operator=(const BlockPassage&) = delete;
  ~BlockPassage() { leave(); }

  void enter() {
    if (held) return;
    const auto living = buffers.lock();
    if (living == nullptr) throw std::logic_error("backward through a model that has been destroyed");
    living->acquire(block);
    held = true;
    epoch = living->epoch();
    if (next_backward >= 0) living->prefetch(next_backward);
  }

  void leave() noexcept {
    if (!held) return;
    held = false;
    if (const auto living = buffers.lock()) living->release_of_epoch(block, epoch);
  }

  std::weak_ptr<BlockBuffers> buffers;
  int64_t block;
  int64_t next_backward;
  bool held = false;
  uint64_t epoch = 0;
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using PassagePtr = std::shared_ptr<BlockPassage>;

struct BlockExit : torch::autograd::Function<BlockExit> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y, const PassagePtr& passage) {
    save_object(context, passage);
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list grad) {
    const auto passage = saved_object<BlockPassage>(context);
    passage->enter();
    // In case the entry is never reached: an input of integers, an output that does not depend on the input.
    torch::autograd::Engine::get_default_engine().queue_callback([passage] { passage->leave(); });
    return {grad[0], at::Tensor()};
  }
};

struct BlockEntry : torch::autograd::Function<BlockEntry> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const PassagePtr& passage,
                            bool gradient_wanted) {
    save_object(context, passage);
    context->saved_data["gradient_wanted"] = gradient_wanted;
    return x;
  }
  static variable_list backward(AutogradContext* context, variable_list grad) {
    saved_object<BlockPassage>(context)->leave();
    const bool wanted = context->saved_data.at("gradient_wanted").toBool();
    return {wanted ? grad[0] : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct Recomputation {
  PassagePtr passage;
  std::function<at::Tensor(const at::Tensor&)> body;
  at::Tensor input;
};

struct RecomputedBlock : torch::autograd::Function<RecomputedBlock> {
  // Runs without grad mode, so body records nothing.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::shared_ptr<Recomputation>& again,
                            bool gradient_wanted) {
    again->input = x.detach();
    save_object(context, again);
    context->saved_data["gradient_wanted"] = gradient_wanted;
    return again->body(again->input);
  }
  static variable_list backward(AutogradContext* context, variable_list grad) {
    const auto again = saved_object<Recomputation>(context);
    if (again == nullptr) throw std::logic_error("a recomputed block's backward runs once");
    forget_object(context);  // frees body and input when this call ends, whatever becomes of the graph
    again->passage->enter();
    const at::Tensor input = again->input.detach().requires_grad_();
    {
      const NestedBackward nested;
      const at::AutoGradMode record(true);
      const at::Tensor y = again->body(input);
      if (y.requires_grad()) torch::autograd::backward({y}, {grad[0]});
    }
    again->passage->leave();
    const bool wanted = context->saved_data.at("gradient_wanted").toBool();
    return {wanted ? input.grad() : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor run_block(ShardedModel& model, int64_t block, int64_t next_forward, int64_t next_backward,
                     const at::Tensor& x, const std::function<at::Tensor(const at::Tensor&)>& body,
                     Activations activations) {
  const bool recording = at::GradMode::is_enabled() && (x.requires_grad() || model.block_trainable(block));
  const Lease lease(model, block);
  if (next_forward >= 0) model.prefetch(next_forward);
  if (!recording) {
    const at::NoGradGuard no_grad;
    return body(x);
  }
  const auto passage = std::make_shared<BlockPassage>(model, block, next_backward);
  at::Tensor input = x;
  if (torch::autograd::isDifferentiableType(x.scalar_type())) {
    // body's operations are recorded because of this input; the gradient itself stops at the entry if nobody wants it.
    const at::Tensor source = x.requires_grad() ? x : x.detach().requires_grad_();
    if (activations == Activations::kRecompute) {
      const auto again = std::make_shared<Recomputation>();
      again->passage = passage;
      again->body = body;
      return RecomputedBlock::apply(source, again, x.requires_grad());
    }
    input = BlockEntry::apply(source, passage, x.requires_grad());
  }
  const at::Tensor y = body(input);
  return y.requires_grad() ? BlockExit::apply(y, passage) : y;
}

}  // namespace ghostshard::fsdp
