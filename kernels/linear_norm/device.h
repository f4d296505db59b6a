// The device's half of linear_norm.h: pointers in, launches out. Internal.
//
// The caller has checked shapes, allocated what is named here on the stream's device, and uploaded offsets. Nothing is
// waited for. Errors are std::runtime_error, from launches; with no device code linked, std::invalid_argument.
#pragma once

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

// Rows of two matrices and what the norms need of them. Workspace is written before it is read.
struct UnitRowsWork {
  Matrix a, g;
  Units units;
  double* a_norms;    // [N] workspace: norms of the rows, rounded up
  double* g_norms;    // [N] workspace
  double* unit_sums;  // [3,U] workspace: sums over a unit's rows of |a|·|g|, |a|, |g|
  bool* wanted;       // [U] workspace: units whose norm is still to be found
};

// Row norms, their sums by unit, and which units are wanted: those whose mass is finite and not zero.
void measure_rows(const UnitRowsWork& work, Stream stream);

// Adds mass and non-finite values to parts, and raises sum_error to that of scaled_sum_rows. After measure_rows.
void add_masses(const UnitRowsWork& work, const Parts& parts, Stream stream);

// Adds the norms of the wanted units that have tiles, by Gram matrices in the rows' own arithmetic (float32 for 16
// bits), where that is certain enough; those units are then no longer wanted. Nothing for float64 rows, which have no
// arithmetic beside float64. tiles: of the lower triangles; partials [tiles,3] workspace.
void add_gram_norms(const UnitRowsWork& work, const UnitTiles& tiles, double* partials, const Parts& parts,
                    Stream stream);
// The same in float64, certain or not: there is nothing better.
void add_gram_norms_float64(const UnitRowsWork& work, const UnitTiles& tiles, double* partials, const Parts& parts,
                            Stream stream);

// The gradient g_tᵀa_t of every unit, tile by tile. tiles: of [p,d]; partials [tiles] workspace.
struct GradientWork {
  Matrix a, g;
  Units units;
  UnitTiles tiles;
  double* partials;
};

// Writes it into held [U,p,d] (or adds it), float32 or, for float64 rows, float64; parts.value and value_error become
// those of what is then there.
void hold_gradients(const GradientWork& work, void* held, bool accumulate, const Parts& parts, Stream stream);

// Adds the squares of gradients that are not kept, of the wanted units that have tiles; they are then no longer wanted.
void add_passing_norms(const GradientWork& work, const UnitRowsWork& rows, const Parts& parts, Stream stream);

}  // namespace ghostshard::kernels::device
