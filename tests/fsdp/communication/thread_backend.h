// A c10d backend between threads of one process that behaves like one whose work is queued on a device: a call returns
// at once, received data are there after waiting for its work, and the works of one rank are done in the order of the
// calls.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <tuple>
#include <utility>
#include <vector>

namespace ghostshard::tests {

// Where messages wait for their receivers, in the order of each sender.
class Mailboxes {
 public:
  void put(int from, int to, const at::Tensor& message) {
    const std::lock_guard lock(mutex_);
    boxes_[{from, to}].push_back(message.clone());
    arrived_.notify_all();
  }
  // False if nothing comes in time.
  bool take(int from, int to, at::Tensor into, std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    auto& box = boxes_[{from, to}];
    if (!arrived_.wait_for(lock, patience, [&] { return !box.empty(); })) return false;
    into.copy_(box.front().view(into.sizes()));
    box.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<int, int>, std::deque<at::Tensor>> boxes_;
};

class ThreadBackend final : public c10d::Backend {
 public:
  ThreadBackend(std::shared_ptr<Mailboxes> mail, int rank, int size) : Backend(rank, size), mail_(std::move(mail)) {}

  const std::string getBackendName() const override { return "threads"; }
  std::vector<std::string> calls;  // as they came

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                 const c10d::AllgatherOptions& /*options*/) override {
    calls.emplace_back("allgather");
    const int64_t n = in.numel();
    std::vector<Receipt> receipts;
    for (int peer = 0; peer < getSize(); ++peer) {
      if (peer != getRank()) mail_->put(getRank(), peer, in);
      if (peer != getRank()) receipts.push_back({peer, out.narrow(0, peer * n, n)});
    }
    at::Tensor own = out.narrow(0, getRank() * n, n);
    if (own.data_ptr() != in.data_ptr()) own.copy_(in);
    return queue(std::move(receipts));
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    calls.emplace_back("broadcast");
    const int root = static_cast<int>(options.rootRank);
    if (getRank() != root) return queue({{root, tensors.front()}});
    for (int peer = 0; peer < getSize(); ++peer) {
      if (peer != root) mail_->put(root, peer, tensors.front());
    }
    return queue({});
  }
  void startCoalescing() override {
    if (std::exchange(coalescing_, true)) throw std::logic_error("coalescing twice");
    calls.emplace_back("start");
  }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    if (!std::exchange(coalescing_, false)) throw std::logic_error("no coalescing to end");
    calls.emplace_back("end");
    return queue(std::exchange(group_, {}));
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int /*tag*/) override {
    if (!coalescing_) throw std::logic_error("a send on its own could wait for its peer's");
    calls.push_back("send " + std::to_string(to));
    mail_->put(getRank(), to, tensors.front());
    return nullptr;
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int /*tag*/) override {
    if (!coalescing_) throw std::logic_error("a receive on its own could wait for its peer's");
    calls.push_back("recv " + std::to_string(from));
    group_.push_back({from, tensors.front()});
    return nullptr;
  }

 private:
  struct Receipt {
    int from;
    at::Tensor into;
  };

  class QueuedWork final : public c10d::Work {
   public:
    QueuedWork(std::shared_ptr<Mailboxes> mail, int rank, std::vector<Receipt> receipts,
               c10::intrusive_ptr<QueuedWork> before)
        : mail_(std::move(mail)), rank_(rank), receipts_(std::move(receipts)), before_(std::move(before)) {}
    bool isCompleted() override { return advance(std::chrono::milliseconds(0)); }
    bool wait(std::chrono::milliseconds /*timeout*/) override {
      if (!advance(std::chrono::seconds(20))) throw std::runtime_error("nothing came");
      return true;
    }

   private:
    bool advance(std::chrono::milliseconds patience) {
      const std::lock_guard lock(mutex_);
      if (before_ != nullptr && !before_->advance(patience)) return false;
      before_.reset();
      while (!receipts_.empty()) {
        const Receipt& next = receipts_.back();
        if (!mail_->take(next.from, rank_, next.into, patience)) return false;
        receipts_.pop_back();
      }
      return true;
    }
    std::mutex mutex_;
    std::shared_ptr<Mailboxes> mail_;
    int rank_;
    std::vector<Receipt> receipts_;
    c10::intrusive_ptr<QueuedWork> before_;
  };

  c10::intrusive_ptr<c10d::Work> queue(std::vector<Receipt> receipts) {
    last_ = c10::make_intrusive<QueuedWork>(mail_, getRank(), std::move(receipts), last_);
    return last_;
  }

  std::shared_ptr<Mailboxes> mail_;
  bool coalescing_ = false;
  std::vector<Receipt> group_;
  c10::intrusive_ptr<QueuedWork> last_;
};

}  // namespace ghostshard::tests
