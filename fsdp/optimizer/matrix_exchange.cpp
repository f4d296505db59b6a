#include "fsdp/optimizer/matrix_exchange.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace ghostshard::fsdp {
namespace {

// Of one owner in one round: enough that a round's slices are of about the same length on all ranks, few enough that
// its buffers are small beside the model.
constexpr int64_t kMatricesOfARound = 4;

// p·d·min(p, d): the operations of a product of the matrix with itself.
double cost_of(const Parameter& parameter) {
  const auto rows = static_cast<double>(parameter.shape()[0]), columns = static_cast<double>(parameter.shape()[1]);
  return rows * columns * std::min(rows, columns);
}

at::Tensor floats(int64_t elements, at::Device device) {
  return at::zeros({elements}, at::dtype(at::kFloat).device(device));
}

}  // namespace

std::vector<int64_t> deal_out(const std::vector<double>& costs, const std::vector<int64_t>& fixed, int64_t ranks) {
  std::vector<double> work(static_cast<size_t>(ranks), 0);
  std::vector<int64_t> owners = fixed;
  for (size_t m = 0; m < costs.size(); ++m) {
    if (fixed[m] >= 0) work[static_cast<size_t>(fixed[m])] += costs[m];
  }
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  for (const size_t m : order) {
    if (fixed[m] >= 0) continue;
    const auto least = std::min_element(work.begin(), work.end());
    *least += costs[m];
    owners[m] = least - work.begin();
  }
  return owners;
}

struct MatrixExchange::Matrix {
  const FlatGroup* group;
  const Parameter* parameter;
  int64_t owner;
  // The ranks that hold parts of it, in rising order, and where each part lies in the slice between rank and owner.
  struct Share {
    int64_t rank;
    OwnedRange range;
    int64_t offset = 0;
  };
  std::vector<Share> shares;

  const Share* share_of(int64_t rank) const {
    const auto found = std::find_if(shares.begin(), shares.end(), [&](const Share& s) { return s.rank == rank; });
    return found == shares.end() ? nullptr : &*found;
  }
};

struct MatrixExchange::Round {
  std::vector<Matrix> matrices;
  int64_t slice = 0;     // elements between any two ranks
  bool travels = false;  // some rank holds a part of another's matrix
};

// buffers [ranks · slice], and what is under way into `received`.
struct MatrixExchange::Message {
  at::Tensor sent, received;
  std::unique_ptr<PendingCollective> pending;
};

MatrixExchange::~MatrixExchange() = default;

MatrixExchange::MatrixExchange(ShardedModel& model, const Chosen& chosen) : model_(model) {
  const int64_t ranks = model.mesh().shape().shard;
  std::vector<Matrix> matrices = matrices_of(model, chosen);
  std::vector<double> costs;
  std::vector<int64_t> fixed;
  for (const Matrix& matrix : matrices) {
    costs.push_back(cost_of(*matrix.parameter));
    fixed.push_back(matrix.shares.size() == 1 ? matrix.shares.front().rank : -1);
  }
  const auto owners = deal_out(costs, fixed, ranks);
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<int64_t> taken(static_cast<size_t>(ranks), 0);
  for (const size_t m : order) {
    matrices[m].owner = owners[m];
    const auto round = static_cast<size_t>(taken[static_cast<size_t>(owners[m])]++ / kMatricesOfARound);
    if (rounds_.size() <= round) rounds_.resize(round + 1);
    rounds_[round].matrices.push_back(std::move(matrices[m]));
  }
  for (Round& round : rounds_) lay_out(round);
}

std::vector<MatrixExchange::Matrix> MatrixExchange::matrices_of(const ShardedModel& model, const Chosen& chosen) {
  std::vector<Matrix> matrices;
  for (const auto& group : model.groups()) {
    if (!group->trainable()) continue;
    std::vector<Matrix> of_group;
    for (const Parameter* parameter : group->parameters()) {
      of_group.push_back({.group = group.get(), .parameter = parameter, .owner = -1, .shares = {}});
    }
    for (int64_t rank = 0; rank < group->plan().world_size(); ++rank) {
      for (const OwnedRange& range : group->plan().owned(rank)) {
        of_group[static_cast<size_t>(range.tensor)].shares.push_back({.rank = rank, .range = range});
      }
    }
    for (Matrix& matrix : of_group) {
      if (chosen(*matrix.parameter)) matrices.push_back(std::move(matrix));
    }
  }
  return matrices;
}

void MatrixExchange::lay_out(Round& round) {
  std::stable_sort(round.matrices.begin(), round.matrices.end(),
                   [](const Matrix& a, const Matrix& b) { return a.owner < b.owner; });
  std::map<int64_t, int64_t> used;  // by rank, of its slice to this owner
  int64_t owner = -1;
  for (Matrix& matrix : round.matrices) {
    if (matrix.owner != owner) used.clear();
    owner = matrix.owner;
    for (Matrix::Share& share : matrix.shares) {
      int64_t& end = used[share.rank];
      share.offset = end;
      end += share.range.count;
      round.slice = std::max(round.slice, end);
      round.travels = round.travels || share.rank != matrix.owner;
    }
  }
}

MatrixExchange::Message MatrixExchange::send(const Round& round, const Slice& slice) {
  Mesh& mesh = model_.mesh();
  const int64_t ranks = mesh.shape().shard, self = mesh.shard_rank();
  Message message{.sent = floats(ranks * round.slice, model_.device()), .received = {}, .pending = nullptr};
  for (const Matrix& matrix : round.matrices) {
    const Matrix::Share* mine = matrix.share_of(self);
    if (mine == nullptr) continue;
    message.sent.narrow(0, matrix.owner * round.slice + mine->offset, mine->range.count)
        .copy_(slice(*matrix.group, mine->range));
  }
  message.received = round.travels ? floats(ranks * round.slice, model_.device()) : message.sent;
  if (round.travels) message.pending = mesh.reduce().all_to_all(message.received, message.sent);
  return message;
}

std::vector<at::Tensor> MatrixExchange::whole_matrices(const Round& round, Message& received) const {
  if (received.pending != nullptr) received.pending->wait();
  std::vector<at::Tensor> whole;
  for (const Matrix& matrix : round.matrices) {
    if (matrix.owner != model_.mesh().shard_rank()) continue;
    whole.push_back(at::empty(matrix.parameter->shape(), received.received.options()));
    const at::Tensor flat = whole.back().view({-1});
    for (const auto& [rank, range, offset] : matrix.shares) {
      flat.narrow(0, range.first, range.count)
          .copy_(received.received.narrow(0, rank * round.slice + offset, range.count));
    }
  }
  return whole;
}

MatrixExchange::Message MatrixExchange::send_back(const Round& round, const std::vector<at::Tensor>& results) {
  Mesh& mesh = model_.mesh();
  const int64_t ranks = mesh.shape().shard;
  Message message{.sent = floats(ranks * round.slice, model_.device()), .received = {}, .pending = nullptr};
  size_t next = 0;
  for (const Matrix& matrix : round.matrices) {
    if (matrix.owner != mesh.shard_rank()) continue;
    const at::Tensor flat = results[next++].reshape({-1});
    for (const auto& [rank, range, offset] : matrix.shares) {
      message.sent.narrow(0, rank * round.slice + offset, range.count).copy_(flat.narrow(0, range.first, range.count));
    }
  }
  message.received = round.travels ? floats(ranks * round.slice, model_.device()) : message.sent;
  if (round.travels) message.pending = mesh.gather().all_to_all(message.received, message.sent);
  return message;
}

void MatrixExchange::take_back(const Round& round, Message& received, const Take& take) const {
  if (received.pending != nullptr) received.pending->wait();
  for (const Matrix& matrix : round.matrices) {
    const Matrix::Share* mine = matrix.share_of(model_.mesh().shard_rank());
    if (mine == nullptr) continue;
    take(*matrix.group, mine->range,
         received.received.narrow(0, matrix.owner * round.slice + mine->offset, mine->range.count));
  }
}

void MatrixExchange::run(const Slice& slice, const Compute& compute, const Take& take) {
  if (rounds_.empty()) return;
  Message coming = send(rounds_.front(), slice);
  std::optional<Message> returning;  // of the round before
  for (size_t r = 0; r < rounds_.size(); ++r) {
    Message now = std::exchange(coming, {});
    if (r + 1 < rounds_.size()) coming = send(rounds_[r + 1], slice);
    std::vector<at::Tensor> results;
    size_t next = 0;
    const auto whole = whole_matrices(rounds_[r], now);
    for (const Matrix& matrix : rounds_[r].matrices) {
      if (matrix.owner == model_.mesh().shard_rank()) results.push_back(compute(*matrix.parameter, whole[next++]));
    }
    if (returning) take_back(rounds_[r - 1], *returning, take);
    returning = send_back(rounds_[r], results);
  }
  take_back(rounds_.back(), *returning, take);
}

}  // namespace ghostshard::fsdp
