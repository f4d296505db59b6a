#include "fsdp/optimizer/tiled_optimizer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "fsdp/optimizer/elementwise.h"

namespace ghostshard::fsdp {
namespace {

constexpr std::array kStates = {"first_moment", "second_moment",  "left_factor",
                                "right_factor", "left_transform", "right_transform"};

struct StackShape {
  int64_t tiles, rows, columns;
  std::array<std::vector<int64_t>, kStates.size()> states() const {
    const std::vector<int64_t> moment = {tiles, rows, columns}, left = {tiles, rows, rows},
                               right = {tiles, columns, columns};
    return {moment, moment, left, right, left, right};
  }
};

// Of a matrix's `rows` rows: tiles of `side` columns, and one of those that remain.
std::vector<StackShape> stacks_of(int64_t rows, int64_t columns, int64_t side) {
  std::vector<StackShape> stacks;
  if (columns >= side) stacks.push_back({.tiles = columns / side, .rows = rows, .columns = side});
  if (columns % side > 0) stacks.push_back({.tiles = 1, .rows = rows, .columns = columns % side});
  return stacks;
}

// Of one state of a matrix, or of its first rows.
int64_t numbers_of(size_t state, int64_t rows, int64_t columns, int64_t side) {
  int64_t numbers = 0;
  for (int64_t first = 0; first < rows; first += side) {
    for (const StackShape& stack : stacks_of(std::min(side, rows - first), columns, side)) {
      numbers += c10::multiply_integers(stack.states()[state]);
    }
  }
  return numbers;
}

TiledOptions checked(const TiledOptions& options) {
  require(options.side >= 1, "the side of a tile must be at least 1", static_cast<double>(options.side));
  require(options.refresh_every >= 1, "refresh_every must be at least 1", static_cast<double>(options.refresh_every));
  require(options.factor_beta >= 0 && options.factor_beta < 1, "factor_beta must be at least 0 and below 1",
          options.factor_beta);
  return options;
}

// average = beta·average + (1 − beta)·fresh
void move_towards(const at::Tensor& average, const at::Tensor& fresh, double beta) {
  average.mul_(beta).add_(fresh.mul(1 - beta));
}

}  // namespace

int64_t tiled_numbers(int64_t rows, int64_t columns, int64_t side) {
  int64_t numbers = 0;
  for (size_t state = 0; state < kStates.size(); ++state) numbers += numbers_of(state, rows, columns, side);
  return numbers;
}

TiledOptimizer::TiledOptimizer(ShardedModel& model, const TiledOptions& options, const char* name, const Chosen& chosen)
    : MatrixOptimizer(model,
                      {.name = name,
                       .matrices = options.matrices,
                       .weight_decay = options.weight_decay,
                       .adamw = options.adamw,
                       .rows = checked(options).side},
                      chosen),
      options_(options) {
  for (const MatrixPart& part : exchange().computed_here()) {
    parts_.emplace(Key{part.parameter->id(), part.first_row}, allocated(part));
  }
}

TiledOptimizer::Part TiledOptimizer::allocated(const MatrixPart& part) const {
  Part made{.of = part, .states = {}, .stacks = {}};
  std::array<int64_t, kStates.size()> used{};
  for (size_t state = 0; state < kStates.size(); ++state) {
    made.states[state] = at::zeros({numbers_of(state, part.rows, part.columns(), options_.side)},
                                   at::dtype(at::kFloat).device(model().device()));
  }
  for (const StackShape& shape : stacks_of(part.rows, part.columns(), options_.side)) {
    std::array<at::Tensor, kStates.size()> views;
    const auto shapes = shape.states();
    for (size_t state = 0; state < kStates.size(); ++state) {
      const int64_t count = c10::multiply_integers(shapes[state]);
      views[state] = made.states[state].narrow(0, used[state], count).view(shapes[state]);
      used[state] += count;
    }
    made.stacks.push_back({views[0], views[1], views[2], views[3], views[4], views[5]});
  }
  return made;
}

// The order of the numbers depends on the tiles' side, so it belongs to the name.
std::string TiledOptimizer::kind(size_t state) const {
  return std::string(kStates[state]) + "_by_" + std::to_string(options_.side);
}

std::vector<StateRow> TiledOptimizer::rows() const {
  std::vector<StateRow> all;
  for (const auto& parameter : model().parameters()) {
    if (!matrices()(*parameter)) continue;
    const int64_t rows = parameter->shape()[0], columns = parameter->shape()[1];
    for (size_t state = 0; state < kStates.size(); ++state) {
      all.push_back({kind(state), parameter.get(), numbers_of(state, rows, columns, options_.side)});
    }
  }
  return all;
}

std::vector<StatePiece> TiledOptimizer::pieces() {
  std::vector<StatePiece> held;
  for (const auto& [key, part] : parts_) {
    for (size_t state = 0; state < kStates.size(); ++state) {
      const int64_t before = numbers_of(state, part.of.first_row, part.of.columns(), options_.side);
      held.push_back({kind(state), part.of.parameter, before, part.states[state]});
    }
  }
  return held;
}

int64_t TiledOptimizer::state_bytes() const {
  int64_t bytes = MatrixOptimizer::state_bytes();
  for (const auto& [key, part] : parts_) {
    for (const at::Tensor& state : part.states) bytes += static_cast<int64_t>(state.nbytes());
  }
  return bytes;
}

void TiledOptimizer::set_error_variance(double variance) {
  Optimizer::set_error_variance(variance);
  if (steps() > 0) throw std::logic_error("the gradients' error variance is set before the first step");
  error_variance_ = variance;
}

double TiledOptimizer::share_seen(double beta) const { return 1 - std::pow(beta, static_cast<double>(steps())); }

at::Tensor TiledOptimizer::step_of(const MatrixPart& part, const at::Tensor& sent) {
  std::vector<at::Tensor> moved;  // [r, n·c] of each stack
  int64_t column = 0;
  for (TileStack& stack : parts_.at({part.parameter->id(), part.first_row}).stacks) {
    const int64_t tiles = stack.first.size(0), rows = stack.first.size(1), columns = stack.first.size(2);
    const at::Tensor gradient =
        sent.narrow(1, column, tiles * columns).reshape({rows, tiles, columns}).transpose(0, 1).contiguous();
    column += tiles * columns;
    move_towards(stack.first, gradient, options_.adamw.beta1);
    move_towards(stack.left, gradient.matmul(gradient.transpose(-2, -1)), options_.factor_beta);
    move_towards(stack.right, gradient.transpose(-2, -1).matmul(gradient), options_.factor_beta);
    moved.push_back(step_of(stack, gradient).transpose(0, 1).reshape({rows, tiles * columns}));
  }
  return at::cat(moved, 1);
}

}  // namespace ghostshard::fsdp
