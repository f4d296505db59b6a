#include "fsdp/optimizer/matrix_exchange.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "fsdp/optimizer.h"

namespace ghostshard::fsdp {
namespace {

// Of one owner in one round: enough that a round's slices are of about the same length on all ranks, few enough that
// its buffers are small beside the model.
constexpr int64_t kMatricesOfARound = 4;
constexpr int64_t kFloatBytes = 4;

// p·d·min(p, d): the operations of a product of the matrix with itself.
double cost_of(const MatrixPart& part) {
  return static_cast<double>(part.elements()) * static_cast<double>(std::min(part.rows, part.columns()));
}

at::Tensor floats(int64_t elements, at::Device device) {
  return at::zeros({elements}, at::dtype(at::kFloat).device(device));
}

// What two runs of a matrix's elements have in common; count <= 0: nothing.
OwnedRange common(const OwnedRange& range, int64_t first, int64_t count) {
  const int64_t begin = std::max(range.first, first), end = std::min(range.first + range.count, first + count);
  return {.tensor = range.tensor,
          .first = begin,
          .count = end - begin,
          .shard_offset = range.shard_offset + begin - range.first};
}

}  // namespace

Chosen whole_matrices(const GroupedParameters& model, const Chosen& wanted, const char* optimizer) {
  const Chosen chosen = [wanted](const Parameter& parameter) {
    return parameter.trainable() && parameter.shape().size() == 2 && (!wanted || wanted(parameter));
  };
  for (const auto& parameter : model.parameters()) {
    if (!chosen(*parameter) || !parameter->cut()) continue;
    throw std::invalid_argument("parameter '" + parameter->name() + "': " + optimizer +
                                " needs whole matrices, so the mesh must have no model axis, it cuts this one");
  }
  return chosen;
}

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
  MatrixPart part;
  int64_t owner;
  // The ranks that hold elements of it, in rising order, and where a rank's lie in the slice between it and the owner.
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
  int64_t slice = 0;  // elements between any two ranks; 0 if nothing travels
};

// buffers [ranks · slice], and what is under way into `received`. kept: by matrix, what a rank gives itself.
struct MatrixExchange::Message {
  at::Tensor sent, received;
  std::unique_ptr<PendingCollective> pending;
  std::vector<at::Tensor> kept;
};

MatrixExchange::~MatrixExchange() = default;

MatrixExchange::MatrixExchange(const GroupedParameters& model, const Chosen& chosen, std::optional<int64_t> rows)
    : model_(model) {
  const int64_t ranks = model.mesh().shape().shard;
  std::vector<Matrix> matrices = parts_of(model, chosen, rows);
  std::vector<double> costs;
  std::vector<int64_t> fixed;
  for (const Matrix& matrix : matrices) {
    costs.push_back(cost_of(matrix.part));
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

std::vector<MatrixExchange::Matrix> MatrixExchange::parts_of(const GroupedParameters& model, const Chosen& chosen,
                                                             std::optional<int64_t> rows) {
  std::vector<Matrix> matrices;
  for (const auto& group : model.groups()) {
    if (!group->trainable()) continue;
    std::vector<std::vector<Matrix>> of_group(group->parameters().size());
    for (size_t p = 0; p < of_group.size(); ++p) {
      const Parameter* parameter = group->parameters()[p];
      if (!chosen(*parameter)) continue;
      const int64_t all = parameter->shape()[0], most = std::min(rows.value_or(all), all);
      for (int64_t first = 0; first < all; first += most) {
        const MatrixPart part{.parameter = parameter, .first_row = first, .rows = std::min(most, all - first)};
        of_group[p].push_back({.group = group.get(), .part = part, .owner = -1, .shares = {}});
      }
    }
    for (int64_t rank = 0; rank < group->plan().world_size(); ++rank) {
      for (const OwnedRange& range : group->plan().owned(rank)) {
        for (Matrix& matrix : of_group[static_cast<size_t>(range.tensor)]) {
          const MatrixPart& part = matrix.part;
          const OwnedRange mine = common(range, part.first_row * part.columns(), part.elements());
          if (mine.count > 0) matrix.shares.push_back({.rank = rank, .range = mine});
        }
      }
    }
    for (auto& parts : of_group) std::move(parts.begin(), parts.end(), std::back_inserter(matrices));
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
      if (share.rank == matrix.owner) continue;
      int64_t& end = used[share.rank];
      share.offset = end;
      end += share.range.count;
      round.slice = std::max(round.slice, end);
    }
  }
}

MatrixExchange::Message MatrixExchange::message_of(const Round& round) const {
  const int64_t elements = model_.mesh().shape().shard * round.slice;
  return {.sent = floats(elements, model_.device()),
          .received = floats(elements, model_.device()),
          .pending = nullptr,
          .kept = std::vector<at::Tensor>(round.matrices.size())};
}

MatrixExchange::Message MatrixExchange::send(const Round& round, const Slice& slice) {
  Mesh& mesh = model_.mesh();
  Message message = message_of(round);
  for (size_t m = 0; m < round.matrices.size(); ++m) {
    const Matrix& matrix = round.matrices[m];
    const Matrix::Share* mine = matrix.share_of(mesh.shard_rank());
    if (mine == nullptr) continue;
    const at::Tensor values = slice(*matrix.group, mine->range);
    if (mine->rank == matrix.owner) {
      message.kept[m] = values;
    } else {
      message.sent.narrow(0, matrix.owner * round.slice + mine->offset, mine->range.count).copy_(values);
    }
  }
  if (round.slice > 0) message.pending = mesh.reduce().all_to_all(message.received, message.sent);
  return message;
}

std::vector<at::Tensor> MatrixExchange::whole_parts(const Round& round, Message& received) const {
  if (received.pending != nullptr) received.pending->wait();
  std::vector<at::Tensor> whole;
  for (size_t m = 0; m < round.matrices.size(); ++m) {
    const Matrix& matrix = round.matrices[m];
    if (matrix.owner != model_.mesh().shard_rank()) continue;
    const std::vector<int64_t> shape = {matrix.part.rows, matrix.part.columns()};
    if (matrix.shares.size() == 1) {
      whole.push_back(received.kept[m].view(shape));
      continue;
    }
    whole.push_back(at::empty(shape, received.received.options()));
    const at::Tensor flat = whole.back().view({-1});
    for (const auto& [rank, range, offset] : matrix.shares) {
      const int64_t first = range.first - matrix.part.first_row * matrix.part.columns();
      flat.narrow(0, first, range.count)
          .copy_(rank == matrix.owner ? received.kept[m]
                                      : received.received.narrow(0, rank * round.slice + offset, range.count));
    }
  }
  return whole;
}

MatrixExchange::Message MatrixExchange::send_back(const Round& round, const std::vector<at::Tensor>& results) {
  Mesh& mesh = model_.mesh();
  Message message = message_of(round);
  size_t next = 0;
  for (size_t m = 0; m < round.matrices.size(); ++m) {
    const Matrix& matrix = round.matrices[m];
    if (matrix.owner != mesh.shard_rank()) continue;
    const at::Tensor flat = results[next++].reshape({-1});
    for (const auto& [rank, range, offset] : matrix.shares) {
      const int64_t first = range.first - matrix.part.first_row * matrix.part.columns();
      const at::Tensor values = flat.narrow(0, first, range.count);
      if (rank == matrix.owner) {
        message.kept[m] = values;
      } else {
        message.sent.narrow(0, rank * round.slice + offset, range.count).copy_(values);
      }
    }
  }
  if (round.slice > 0) message.pending = mesh.gather().all_to_all(message.received, message.sent);
  return message;
}

void MatrixExchange::take_back(const Round& round, Message& received, const Take& take) const {
  if (received.pending != nullptr) received.pending->wait();
  for (size_t m = 0; m < round.matrices.size(); ++m) {
    const Matrix& matrix = round.matrices[m];
    const Matrix::Share* mine = matrix.share_of(model_.mesh().shard_rank());
    if (mine == nullptr) continue;
    take(*matrix.group, mine->range,
         mine->rank == matrix.owner
             ? received.kept[m]
             : received.received.narrow(0, matrix.owner * round.slice + mine->offset, mine->range.count));
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
    const auto whole = whole_parts(rounds_[r], now);
    for (const Matrix& matrix : rounds_[r].matrices) {
      if (matrix.owner == model_.mesh().shard_rank()) results.push_back(compute(matrix.part, whole[next++]));
    }
    if (returning) take_back(rounds_[r - 1], *returning, take);
    returning = send_back(rounds_[r], results);
  }
  take_back(rounds_.back(), *returning, take);
}

std::vector<MatrixPart> MatrixExchange::computed_here() const {
  std::vector<MatrixPart> parts;
  for (const Round& round : rounds_) {
    for (const Matrix& matrix : round.matrices) {
      if (matrix.owner == model_.mesh().shard_rank()) parts.push_back(matrix.part);
    }
  }
  return parts;
}

int64_t MatrixExchange::message_bytes(const Round& round) const {
  return 2 * model_.mesh().shape().shard * round.slice * kFloatBytes;
}

// In the middle of round r: its message and the next one's on the way there, its own and the last one's on the way
// back, its parts and their results.
int64_t MatrixExchange::buffer_bytes() const {
  int64_t most = 0;
  for (size_t r = 0; r < rounds_.size(); ++r) {
    std::map<int64_t, int64_t> elements;  // by owner
    for (const Matrix& matrix : rounds_[r].matrices) elements[matrix.owner] += matrix.part.elements();
    int64_t bytes = 0;
    for (const auto& [owner, count] : elements) bytes = std::max(bytes, 2 * count * kFloatBytes);
    bytes += 2 * message_bytes(rounds_[r]);
    if (r > 0) bytes += message_bytes(rounds_[r - 1]);
    if (r + 1 < rounds_.size()) bytes += message_bytes(rounds_[r + 1]);
    most = std::max(most, bytes);
  }
  return most;
}

int64_t MatrixExchange::largest_part_bytes() const {
  int64_t most = 0;
  for (const Round& round : rounds_) {
    for (const Matrix& matrix : round.matrices) most = std::max(most, matrix.part.elements() * kFloatBytes);
  }
  return most;
}

int64_t matrix_step_bytes(const GroupedParameters& model, const Chosen& matrices, std::optional<int64_t> rows) {
  // Orthogonalising a square one holds it with norm 1 and, in float64, its Gram matrix, the sum, a factor, its inverse
  // and what LAPACK copies; roots and eigenvectors hold less.
  constexpr int64_t kCopiesToCompute = 11;
  const MatrixExchange exchange(model, whole_matrices(model, matrices, "the optimizer"), rows);
  return exchange.buffer_bytes() + kCopiesToCompute * exchange.largest_part_bytes();
}

}  // namespace ghostshard::fsdp
