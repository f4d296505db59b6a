// The part of Shampoo and SOAP around their rules: tiles, their states on the ranks that compute them, averages, and
// when roots are refreshed.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/optimizer/matrix_optimizer.h"
#include "fsdp/shampoo.h"

namespace ghostshard::fsdp {

// Tiles of one shape that stand side by side in the same rows, and their states.
struct TileStack {
  at::Tensor first, second;                    // moments [n, r, c]
  at::Tensor left, right;                      // factors [n, r, r] and [n, c, c]
  at::Tensor left_transform, right_transform;  // roots or eigenvectors, of the factors' shapes
};

class TiledOptimizer : public MatrixOptimizer {
 public:
  std::vector<StateRow> rows() const final;
  std::vector<StatePiece> pieces() final;
  int64_t state_bytes() const final;
  void set_error_variance(double variance) final;

 protected:
  TiledOptimizer(ShardedModel& model, const TiledOptions& options, const char* name, const Chosen& chosen);

  // From the tiles' gradient [n, r, c] their step for a learning rate of 1. The first moment and the factors are up to
  // date.
  virtual at::Tensor step_of(TileStack& stack, const at::Tensor& gradient) = 0;

  const TiledOptions& options() const { return options_; }
  double error_variance() const { return error_variance_; }
  bool refreshes() const { return (steps() - 1) % options_.refresh_every == 0; }
  // How far an average with this decay has come: 1 − beta^steps.
  double share_seen(double beta) const;

 private:
  // Of all stacks of a part, one after the other. The order is that of TileStack.
  using States = std::array<at::Tensor, 6>;
  struct Part {
    MatrixPart of;
    States states;  // flat
    std::vector<TileStack> stacks;
  };
  using Key = std::pair<uint32_t, int64_t>;  // parameter, first row
  std::string kind(size_t state) const;
  Part allocated(const MatrixPart& part) const;
  at::Tensor step_of(const MatrixPart& part, const at::Tensor& sent) final;

  TiledOptions options_;
  double error_variance_ = 0;
  std::map<Key, Part> parts_;
};

}  // namespace ghostshard::fsdp
