// Optimizers that whiten a matrix's gradient from both sides: Shampoo (arXiv:1802.09568; as arXiv:2309.06497 runs it,
// in blocks and grafted) and SOAP (arXiv:2409.11321). They know how noisy their gradients are.
//
// A matrix is cut into *tiles* of at most side x side elements, those at its ends may be smaller. Each tile G [r, c]
// has two factors, averages over the steps (corrected for their start, as AdamW corrects its moments):
//
//   L = EMA(G·Gᵀ) [r, r],   R = EMA(Gᵀ·G) [c, c],   m = EMA(G)
//
//   Shampoo  step = L^(-1/4)·m·R^(-1/4), scaled to the norm of AdamW's step for the tile (grafting)
//   SOAP     step = Q·(Adam of Qᵀ·G·P)·Pᵀ, where Q and P are the eigenvectors of L and R
//   both     w = (1 − lr·weight_decay)·w − lr·step
//
// The roots are computed anew every refresh_every steps, in step 1 first. SOAP takes the eigenvectors at the end of
// step 1, and then follows them by one round of orthogonal iteration at the end of every refresh_every-th step: turned
// into directions of its own a gradient would be diagonal, and Adam would make steps of the rounding beside the
// diagonal. Its first step is AdamW's. Vectors, and matrices that are not chosen, go by AdamW.
//
// Known error variance. If every element of G is off by an independent error of variance F (set_error_variance: under
// differential privacy the noise, (σC/B)²), L holds c·F·I and R holds r·F·I on top of what the gradients tell. Shampoo
// takes them out before the root. Averages over n steps that count leave errors alone a spectrum around that mean,
// between (1 ± sqrt(r/(c·n)))² of it (Marchenko and Pastur 1967): what is below the upper edge says nothing about the
// gradients, so eigenvalues are raised to its distance from the mean, or to error_floor of the mean if that is more.
// Of errors alone both roots then are multiples of the identity, and the step is momentum with AdamW's norm. A multiple
// of the identity changes no eigenvector, but it slows orthogonal iteration down: SOAP takes the lower edge out, which
// leaves no negative eigenvalue.
//
// A tile's states are whole on one rank, which computes its step: the rank that holds the tile's rows, if one holds
// them all (Granule::tiles(side)), and then nothing travels; else the gradient travels there and the step back, as
// Muon's matrices do. Every mesh computes the same bits. The states of a matrix are those of its tiles: two moments,
// two factors and two roots or bases, 6 float32 an element where tiles are square.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/optimizer.h"

namespace ghostshard::fsdp {

struct TiledOptions {
  int64_t side = 128;
  int64_t refresh_every = 20;
  double factor_beta = 0.999;  // of L and R
  double weight_decay = 0.0;   // of the matrices
  AdamWOptions adamw;          // betas and epsilon of all moments; and the other parameters' weight decay
  // The matrices, among the chosen parameters of two extents; none: all of them.
  Chosen matrices;
};
struct ShampooOptions : TiledOptions {
  double error_floor = 0.1;  // of the mean of the errors' spectrum, in [0, 1]
};

// rule(): "shampoo" and "soap". Throw std::invalid_argument unless side >= 1, refresh_every >= 1, 0 <= factor_beta < 1
// and error_floor is in [0, 1], for other options as make_adamw does, and naming the parameter for matrices that the
// model axis cuts. step() is a collective. A gradient that is not finite ends the step in c10::Error.
std::unique_ptr<Optimizer> make_shampoo(ShardedModel& model, const ShampooOptions& options,
                                        const Chosen& chosen = nullptr);
std::unique_ptr<Optimizer> make_soap(ShardedModel& model, const TiledOptions& options, const Chosen& chosen = nullptr);

// float32 numbers that either keeps of a matrix [rows, columns].
int64_t tiled_numbers(int64_t rows, int64_t columns, int64_t side);

}  // namespace ghostshard::fsdp
