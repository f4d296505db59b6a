// The device's half of linear_norm.h: pointers in, launches out.
//
// The caller has checked shapes, allocated outputs and workspaces on the stream's device, and uploaded offsets. No
// function waits for the device. A launch that fails throws std::runtime_error; if no device code is linked, every
// function throws std::invalid_argument.
#pragma once

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

// Rows of two matrices, and the values of them that the norms need. A workspace is written before it is read.
struct UnitRowsWork {
  Matrix a, g;
  Units units;
  double* a_norms;    // [N] workspace: norms of the rows, rounded up
  double* g_norms;    // [N] workspace
  double* unit_sums;  // [3,U] workspace: sums over a unit's rows of |a|·|g|, |a|, |g|
  bool* wanted;       // [U] workspace: units whose norm has still to be found
};

// Finds row norms, their sums by unit, and the wanted units: those whose mass is finite and not zero.
void measure_rows(const UnitRowsWork& work, Stream stream);

// Adds mass and non-finite values to parts, and raises sum_error to that of scaled_sum_rows. After measure_rows.
void add_masses(const UnitRowsWork& work, const Parts& parts, Stream stream);

// Adds the norms of the wanted units that have tiles, by Gram matrices in the rows' own arithmetic (float32 for 16
// bits), if they are certain enough; those units are then no longer wanted. Does nothing for float64 rows:
// add_gram_norms_float64 is for them. tiles: of the lower triangles; partials [tiles,3] workspace.
void add_gram_norms(const UnitRowsWork& work, const UnitTiles& tiles, double* partials, const Parts& parts,
                    Stream stream);
// The same in float64, whether certain or not: there is no better arithmetic.
void add_gram_norms_float64(const UnitRowsWork& work, const UnitTiles& tiles, double* partials, const Parts& parts,
                            Stream stream);

// The gradient of every unit, the sum over its rows of g_tᵀa_t, tile by tile. tiles: of [p,d]; partials [tiles]
// workspace.
struct GradientWork {
  Matrix a, g;
  Units units;
  UnitTiles tiles;
  double* partials;
};

// Writes the gradients to held [U,p,d] (or adds them), float32 or, for float64 rows, float64. Sets parts.value and
// value_error to those of the values then in held.
void hold_gradients(const GradientWork& work, void* held, bool accumulate, const Parts& parts, Stream stream);

// Adds the squared norms of gradients that are not kept, for the wanted units that have tiles; they are then no longer
// wanted.
void add_passing_norms(const GradientWork& work, const UnitRowsWork& rows, const Parts& parts, Stream stream);

}  // namespace ghostshard::kernels::device
