#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "fsdp/optimizer.h"
#include "fsdp/optimizer/elementwise.h"
#include "fsdp/optimizer/matrix_exchange.h"
#include "fsdp/optimizer/newton_schulz.h"
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

class Muon final : public Optimizer {
 public:
  Muon(ShardedModel& model, const MuonOptions& options)
      : model_(model),
        options_(with_defaults(options)),
        slices_(model, options_.matrices),
        exchange_(model, options_.matrices),
        momentum_(at::zeros({slices_.elements()}, at::dtype(at::kFloat).device(model.device()))),
        rest_(make_adamw_of(model, options.adamw, StatesAt::kWithModel,
                            [is_matrix = options_.matrices](const Parameter& p) { return !is_matrix(p); })) {
    check();
  }

  std::string rule() const override { return "muon"; }
  int64_t steps() const override { return rest_->steps(); }
  void set_steps(int64_t steps) override { rest_->set_steps(steps); }
  std::vector<std::string> kinds() const override {
    std::vector<std::string> kinds = rest_->kinds();
    kinds.emplace_back(kMomentum);
    return kinds;
  }
  bool keeps(const std::string& kind, const Parameter& parameter) const override {
    if (kind != kMomentum) return rest_->keeps(kind, parameter);
    return parameter.trainable() && options_.matrices(parameter);
  }
  at::Tensor read(const std::string& kind, const FlatGroup& group, const OwnedRange& range) override {
    return kind == kMomentum ? momentum_of(group, range) : rest_->read(kind, group, range);
  }
  void write(const std::string& kind, const FlatGroup& group, const OwnedRange& range,
             const at::Tensor& values) override {
    kind == kMomentum ? void(momentum_of(group, range).copy_(values)) : rest_->write(kind, group, range, values);
  }
  int64_t state_bytes() const override { return static_cast<int64_t>(momentum_.nbytes()) + rest_->state_bytes(); }

  void step(const ShardBuffers& gradient, double learning_rate) override {
    rest_->step(gradient, learning_rate);  // checks the rate, counts, and says that weights have changed
    const at::NoGradGuard no_grad;
    exchange_.run([&](const FlatGroup& group, const OwnedRange& range) { return direction(gradient, group, range); },
                  [&](const Parameter& parameter, const at::Tensor& matrix) { return step_of(parameter, matrix); },
                  [&](const FlatGroup& group, const OwnedRange& range, const at::Tensor& values) {
                    const at::Tensor weights = group.shard().narrow(0, range.shard_offset, range.count);
                    weights.mul_(1 - learning_rate * options_.weight_decay).sub_(values.mul(learning_rate));
                  });
    model_.weights_changed();
  }

 private:
  static MuonOptions with_defaults(MuonOptions options) {
    const auto own = options.matrices;
    options.matrices = [own](const Parameter& parameter) {
      if (parameter.shape().size() != 2) return false;
      return !own || own(parameter);
    };
    if (!options.pieces) options.pieces = sections;
    return options;
  }

  void check() const {
    require(options_.momentum >= 0 && options_.momentum < 1, "momentum must be at least 0 and below 1",
            options_.momentum);
    require(options_.weight_decay >= 0 && std::isfinite(options_.weight_decay),
            "weight_decay must be finite and not negative", options_.weight_decay);
    require(options_.iterations >= 1, "iterations must be at least 1", static_cast<double>(options_.iterations));
    for (const auto& parameter : model_.parameters()) {
      if (!parameter->trainable() || !options_.matrices(*parameter)) continue;
      const auto rule = [&](const std::string& text) {
        throw std::invalid_argument("parameter '" + parameter->name() + "': " + text);
      };
      if (parameter->cut()) rule("muon needs whole matrices, so the mesh must have no model axis, it cuts this one");
      const auto [extent, count] = options_.pieces(*parameter);
      if (extent < 0 || extent > 1 || count < 1 || parameter->shape()[static_cast<size_t>(extent)] % count != 0) {
        rule("the pieces must divide one of its two extents, got " + std::to_string(count) + " of extent " +
             std::to_string(extent));
      }
    }
  }

  at::Tensor momentum_of(const FlatGroup& group, const OwnedRange& range) {
    const int64_t at = slices_.find(group, range);
    if (at < 0) throw std::logic_error("the optimizer keeps no momentum of this range");
    return momentum_.narrow(0, at, range.count);
  }

  // Updates the momentum. Every operation is rounded by itself, so that no bit depends on where a range begins.
  at::Tensor direction(const ShardBuffers& gradient, const FlatGroup& group, const OwnedRange& range) {
    const at::Tensor fresh =
        gradient.shard(group).narrow(0, range.shard_offset, range.count).mul(1 - options_.momentum);
    const at::Tensor momentum = momentum_of(group, range).mul_(options_.momentum).add_(fresh);
    return options_.nesterov ? momentum.mul(options_.momentum).add_(fresh) : momentum;
  }

  // For a learning rate of 1.
  at::Tensor step_of(const Parameter& parameter, const at::Tensor& matrix) const {
    const auto [extent, count] = options_.pieces(parameter);
    const int64_t rows = matrix.size(0), columns = matrix.size(1);
    at::Tensor result;
    if (extent == 0) {
      result = orthogonalised(matrix.view({count, rows / count, columns}), options_.iterations);
      result = result.mul(scale_of(rows / count, columns)).reshape({rows, columns});
    } else {
      const at::Tensor pieces = matrix.view({rows, count, columns / count}).transpose(0, 1).contiguous();
      result = orthogonalised(pieces, options_.iterations).mul(scale_of(rows, columns / count));
      result = result.transpose(0, 1).reshape({rows, columns});
    }
    return result;
  }

  static double scale_of(int64_t rows, int64_t columns) {
    return kRootMeanSquare * std::sqrt(static_cast<double>(std::max(rows, columns)));
  }

  ShardedModel& model_;
  MuonOptions options_;
  OwnedSlices slices_;
  MatrixExchange exchange_;
  at::Tensor momentum_;
  std::unique_ptr<Optimizer> rest_;
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(ShardedModel& model, const MuonOptions& options) {
  return std::make_unique<Muon>(model, options);
}

}  // namespace ghostshard::fsdp
