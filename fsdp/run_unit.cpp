// A unit's forward stands between two identities in the autograd graph, entry and exit. Backward meets the exit first,
// which gathers the unit again, then body's operations, then the entry, which lets it go.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "fsdp/sharded_model.h"
#include "fsdp/unit_buffers.h"

namespace ghostshard::fsdp {

// What entry and exit of one run share. It lives in the graph: if backward ends by an exception, the lease goes when
// the graph does.
struct UnitPassage : torch::CustomClassHolder {
  UnitPassage(const ShardedModel& model, int64_t unit_index, int64_t next)
      : buffers(model.buffers_), unit(unit_index), next_backward(next) {}
  ~UnitPassage() override { leave(); }

  void enter() {
    if (held) return;
    const auto living = buffers.lock();
    if (living == nullptr) throw std::logic_error("backward through a model that has been destroyed");
    living->acquire(unit);
    held = true;
    epoch = living->epoch();
    if (next_backward >= 0) living->prefetch(next_backward);
  }

  void leave() noexcept {
    if (!held) return;
    held = false;
    if (const auto living = buffers.lock()) living->release_of_epoch(unit, epoch);
  }

  std::weak_ptr<UnitBuffers> buffers;
  int64_t unit;
  int64_t next_backward;
  bool held = false;
  uint64_t epoch = 0;
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using PassagePtr = c10::intrusive_ptr<UnitPassage>;

PassagePtr passage_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<UnitPassage>(context->saved_data.at("passage").toCapsule());
}

struct UnitExit : torch::autograd::Function<UnitExit> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y, const PassagePtr& passage) {
    context->saved_data["passage"] = c10::IValue::make_capsule(passage);
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list grad) {
    const PassagePtr passage = passage_of(context);
    passage->enter();
    // In case the entry is never reached: an input of integers, an output that does not depend on the input.
    torch::autograd::Engine::get_default_engine().queue_callback([passage] { passage->leave(); });
    return {grad[0], at::Tensor()};
  }
};

struct UnitEntry : torch::autograd::Function<UnitEntry> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const PassagePtr& passage,
                            bool gradient_wanted) {
    context->saved_data["passage"] = c10::IValue::make_capsule(passage);
    context->saved_data["gradient_wanted"] = gradient_wanted;
    return x;
  }
  static variable_list backward(AutogradContext* context, variable_list grad) {
    passage_of(context)->leave();
    const bool wanted = context->saved_data.at("gradient_wanted").toBool();
    return {wanted ? grad[0] : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor run_unit(ShardedModel& model, int64_t unit, int64_t next_forward, int64_t next_backward, const at::Tensor& x,
                    const std::function<at::Tensor(const at::Tensor&)>& body) {
  const bool recording = at::GradMode::is_enabled() && (x.requires_grad() || model.unit_trainable(unit));
  const Lease lease(model, unit);
  if (next_forward >= 0) model.prefetch(next_forward);
  if (!recording) {
    const at::NoGradGuard no_grad;
    return body(x);
  }
  const auto passage = c10::make_intrusive<UnitPassage>(model, unit, next_backward);
  at::Tensor input = x;
  if (torch::autograd::isDifferentiableType(x.scalar_type())) {
    // body's operations are recorded because of this input; the gradient itself stops at the entry if nobody wants it.
    const at::Tensor source = x.requires_grad() ? x : x.detach().requires_grad_();
    input = UnitEntry::apply(source, passage, x.requires_grad());
  }
  const at::Tensor y = body(input);
  return y.requires_grad() ? UnitExit::apply(y, passage) : y;
}

}  // namespace ghostshard::fsdp
