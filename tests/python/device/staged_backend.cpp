#include "tests/python/device/staged_backend.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <utility>

namespace ghostshard::tests {
namespace {

using Pairs = std::vector<std::pair<at::Tensor, at::Tensor>>;  // on the device, in host memory
using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

class StagedWork final : public c10d::Work {
 public:
  StagedWork(Works below, Pairs received, std::vector<at::Tensor> kept)
      : below_(std::move(below)), received_(std::move(received)), kept_(std::move(kept)) {}

  bool isCompleted() override {
    for (const auto& work : below_) {
      if (!work->isCompleted()) return false;
    }
    return true;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (const auto& work : below_) work->wait(timeout);
    const at::NoGradGuard no_grad;
    for (const auto& [there, here] : received_) there.detach().copy_(here.view(there.sizes()));
    below_.clear();
    received_.clear();
    kept_.clear();
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }

 private:
  Works below_;
  Pairs received_;
  std::vector<at::Tensor> kept_;
};

at::Tensor on_host_like(const at::Tensor& x) { return at::empty(x.sizes(), x.options().device(at::kCPU)); }

c10::intrusive_ptr<c10d::Work> staged(c10::intrusive_ptr<c10d::Work> below, Pairs received,
                                      std::vector<at::Tensor> kept = {}) {
  return c10::make_intrusive<StagedWork>(Works{std::move(below)}, std::move(received), std::move(kept));
}

// Of a collective that changes its one tensor. call: the same below, on the tensor in host memory.
template <class Call>
c10::intrusive_ptr<c10d::Work> staged_in_place(const at::Tensor& there, const Call& call) {
  std::vector<at::Tensor> here{there.cpu()};
  auto work = call(here);
  return staged(std::move(work), {{there, here.front()}});
}

}  // namespace

StagedBackend::StagedBackend(c10::intrusive_ptr<c10d::Backend> below)
    : Backend(below->getRank(), below->getSize()), below_(std::move(below)) {}

void StagedBackend::startCoalescing() {
  if (std::exchange(coalescing_, true)) throw std::logic_error("coalescing twice");
  ++groups_;
}

c10::intrusive_ptr<c10d::Work> StagedBackend::endCoalescing() {
  if (!std::exchange(coalescing_, false)) throw std::logic_error("no coalescing to end");
  return c10::make_intrusive<StagedWork>(std::exchange(group_, {}), std::exchange(received_, {}),
                                         std::exchange(sent_, {}));
}

// Two groups may be under way at once: the number of the group keeps their messages apart.
c10::intrusive_ptr<c10d::Work> StagedBackend::send(std::vector<at::Tensor>& tensors, int to, int /*tag*/) {
  if (!coalescing_) throw std::logic_error("a send on its own could wait for its peer's");
  std::vector<at::Tensor> here{tensors.front().cpu()};
  sent_.push_back(here.front());
  group_.push_back(below_->send(here, to, groups_));
  return nullptr;
}

c10::intrusive_ptr<c10d::Work> StagedBackend::recv(std::vector<at::Tensor>& tensors, int from, int /*tag*/) {
  if (!coalescing_) throw std::logic_error("a receive on its own could wait for its peer's");
  std::vector<at::Tensor> here{on_host_like(tensors.front())};
  received_.emplace_back(tensors.front(), here.front());
  group_.push_back(below_->recv(here, from, groups_));
  return nullptr;
}

c10::intrusive_ptr<c10d::Work> StagedBackend::_allgather_base(at::Tensor& out, at::Tensor& in,
                                                              const c10d::AllgatherOptions& options) {
  at::Tensor all = on_host_like(out), mine = in.cpu();
  auto work = below_->_allgather_base(all, mine, options);
  return staged(std::move(work), {{out, all}}, {mine});
}

c10::intrusive_ptr<c10d::Work> StagedBackend::allgather_into_tensor_coalesced(std::vector<at::Tensor>& outs,
                                                                              std::vector<at::Tensor>& ins,
                                                                              const c10d::AllgatherOptions& options) {
  Works works;
  for (size_t i = 0; i < outs.size(); ++i) works.push_back(_allgather_base(outs[i], ins[i], options));
  return c10::make_intrusive<StagedWork>(std::move(works), Pairs{}, std::vector<at::Tensor>{});
}

c10::intrusive_ptr<c10d::Work> StagedBackend::_reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                                                   const c10d::ReduceScatterOptions& options) {
  at::Tensor own = on_host_like(out), all = in.cpu();
  auto work = below_->_reduce_scatter_base(own, all, options);
  return staged(std::move(work), {{out, own}}, {all});
}

c10::intrusive_ptr<c10d::Work> StagedBackend::reduce_scatter_tensor_coalesced(
    std::vector<at::Tensor>& outs, std::vector<at::Tensor>& ins, const c10d::ReduceScatterOptions& options) {
  Works works;
  for (size_t i = 0; i < outs.size(); ++i) works.push_back(_reduce_scatter_base(outs[i], ins[i], options));
  return c10::make_intrusive<StagedWork>(std::move(works), Pairs{}, std::vector<at::Tensor>{});
}

c10::intrusive_ptr<c10d::Work> StagedBackend::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                                  const c10d::AllreduceCoalescedOptions& options) {
  Works works;
  for (at::Tensor& tensor : tensors) {
    std::vector<at::Tensor> one{tensor};
    works.push_back(allreduce(one, options));
  }
  return c10::make_intrusive<StagedWork>(std::move(works), Pairs{}, std::vector<at::Tensor>{});
}

c10::intrusive_ptr<c10d::Work> StagedBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                        const c10d::BroadcastOptions& options) {
  return staged_in_place(tensors.front(), [&](auto& here) { return below_->broadcast(here, options); });
}

c10::intrusive_ptr<c10d::Work> StagedBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                        const c10d::AllreduceOptions& options) {
  return staged_in_place(tensors.front(), [&](auto& here) { return below_->allreduce(here, options); });
}

c10::intrusive_ptr<c10d::Work> StagedBackend::scatter(std::vector<at::Tensor>& outs,
                                                      std::vector<std::vector<at::Tensor>>& ins,
                                                      const c10d::ScatterOptions& options) {
  std::vector<at::Tensor> own{on_host_like(outs.front())};
  std::vector<std::vector<at::Tensor>> parts;  // of the root alone
  for (const auto& of_all : ins) {
    parts.emplace_back();
    for (const at::Tensor& part : of_all) parts.back().push_back(part.cpu());
  }
  auto work = below_->scatter(own, parts, options);
  return staged(std::move(work), {{outs.front(), own.front()}},
                parts.empty() ? std::vector<at::Tensor>{} : parts.front());
}

c10::intrusive_ptr<c10d::Work> StagedBackend::barrier(const c10d::BarrierOptions& /*options*/) {
  return below_->barrier(c10d::BarrierOptions{});
}

}  // namespace ghostshard::tests
