#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "fsdp/optimizer.h"
#include "fsdp/optimizer/above_errors.h"
#include "fsdp/optimizer/elementwise.h"
#include "fsdp/optimizer/matrix_optimizer.h"
#include "fsdp/optimizer/orthogonalised.h"
#include "fsdp/optimizer/owned_slices.h"

namespace ghostshard::fsdp {
namespace {

constexpr const char* kMomentum = "momentum";
constexpr double kRootMeanSquare = 0.2;  // of a step, as AdamW's (arXiv:2502.16982, section 2.2)

MuonOptions::Pieces sections(const Parameter& parameter) {
  const ModelSplit& split = parameter.split();
  if (!split.cuts()) return {};
  return {.extent = split.extent, .count = split.sections};
}

class Muon final : public MatrixOptimizer {
 public:
  Muon(ShardedModel& model, const MuonOptions& options, const Chosen& chosen)
      : MatrixOptimizer(model,
                        {.name = "muon",
                         .matrices = options.matrices,
                         .weight_decay = options.weight_decay,
                         .adamw = options.adamw,
                         .rows = std::nullopt},
                        chosen),
        options_(options),
        slices_(model, matrices()),
        momentum_(at::zeros({slices_.elements()}, at::dtype(at::kFloat).device(model.device()))) {
    if (!options_.pieces) options_.pieces = sections;
    check();
  }

  std::string rule() const override {
    return options_.errors == MuonErrors::kKeep ? "muon" : corrects() ? "muon_corrected" : "muon_dropping";
  }
  void set_error_variance(double variance) override {
    Optimizer::set_error_variance(variance);
    if (steps() > 0) throw std::logic_error("the gradients' error variance is set before the first step");
    error_variance_ = variance;
  }
  std::vector<std::string> kinds() const override {
    std::vector<std::string> kinds = MatrixOptimizer::kinds();
    kinds.emplace_back(kMomentum);
    return kinds;
  }
  bool keeps(const std::string& kind, const Parameter& parameter) const override {
    return kind == kMomentum ? matrices()(parameter) : MatrixOptimizer::keeps(kind, parameter);
  }
  at::Tensor read(const std::string& kind, const FlatGroup& group, const OwnedRange& range) override {
    return kind == kMomentum ? momentum_of(group, range) : MatrixOptimizer::read(kind, group, range);
  }
  void write(const std::string& kind, const FlatGroup& group, const OwnedRange& range,
             const at::Tensor& values) override {
    kind == kMomentum ? void(momentum_of(group, range).copy_(values))
                      : MatrixOptimizer::write(kind, group, range, values);
  }
  int64_t state_bytes() const override {
    return static_cast<int64_t>(momentum_.nbytes()) + MatrixOptimizer::state_bytes();
  }

 private:
  void check() const {
    require(options_.momentum >= 0 && options_.momentum < 1, "momentum must be at least 0 and below 1",
            options_.momentum);
    for (const auto& parameter : model().parameters()) {
      if (!matrices()(*parameter)) continue;
      const auto [extent, count] = options_.pieces(*parameter);
      if (extent < 0 || extent > 1 || count < 1 || parameter->shape()[static_cast<size_t>(extent)] % count != 0) {
        throw std::invalid_argument("parameter '" + parameter->name() +
                                    "': the pieces must divide one of its two extents, got " + std::to_string(count) +
                                    " of extent " + std::to_string(extent));
      }
    }
  }

  at::Tensor momentum_of(const FlatGroup& group, const OwnedRange& range) {
    const int64_t at = slices_.find(group, range);
    if (at < 0) throw std::logic_error("the optimizer keeps no momentum of this range");
    return momentum_.narrow(0, at, range.count);
  }

  // Updates the momentum.
  at::Tensor sent_of(const at::Tensor& gradient, const FlatGroup& group, const OwnedRange& range) override {
    const at::Tensor fresh = gradient.mul(1 - options_.momentum);
    const at::Tensor momentum = momentum_of(group, range).mul_(options_.momentum).add_(fresh);
    return options_.nesterov ? momentum.mul(options_.momentum).add_(fresh) : momentum;
  }

  at::Tensor step_of(const MatrixPart& part, const at::Tensor& matrix) override {
    const auto [extent, count] = options_.pieces(*part.parameter);
    const int64_t rows = matrix.size(0), columns = matrix.size(1);
    at::Tensor result;
    if (extent == 0) {
      result = of_length(scale_of(rows / count, columns), matrix.view({count, rows / count, columns}));
      result = result.reshape({rows, columns});
    } else {
      const at::Tensor pieces = matrix.view({rows, count, columns / count}).transpose(0, 1).contiguous();
      result = of_length(scale_of(rows, columns / count), pieces);
      result = result.transpose(0, 1).reshape({rows, columns});
    }
    return result;
  }

  bool corrects() const { return options_.errors == MuonErrors::kCorrect; }
  // All singular values of the matrices [n, p, d] about `length`, or those of the errors 0.
  at::Tensor of_length(double length, const at::Tensor& matrices) const {
    const double variance = sent_variance();
    if (options_.errors == MuonErrors::kKeep || variance == 0) return orthogonalised(matrices, length);
    return orthogonalised_above(matrices, variance, corrects()).mul_(length);
  }
  // Of what sent_of() gives in this step.
  double sent_variance() const {
    const double m = options_.momentum, before = static_cast<double>(steps() - 1);
    const double memory = std::pow(m, 2) * (1 - std::pow(m, 2 * before)) / (1 - m * m);  // of the steps before
    const double sum = options_.nesterov ? (1 + m) * (1 + m) + m * m * memory : 1 + memory;
    return error_variance_ * (1 - m) * (1 - m) * sum;
  }

  static double scale_of(int64_t rows, int64_t columns) {
    return kRootMeanSquare * std::sqrt(static_cast<double>(std::max(rows, columns)));
  }

  MuonOptions options_;
  OwnedSlices slices_;
  at::Tensor momentum_;
  double error_variance_ = 0;
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(ShardedModel& model, const MuonOptions& options, const Chosen& chosen) {
  return std::make_unique<Muon>(model, options, chosen);
}

}  // namespace ghostshard::fsdp
