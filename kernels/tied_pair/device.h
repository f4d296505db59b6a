// The device's half of tied_pair.h: pointers in, launches out. Rules as in kernels/linear_norm/device.h.
#pragma once

#include "kernels/device/types.h"
#include "kernels/embedding_norm/device.h"
#include "kernels/linear_norm/device.h"

namespace ghostshard::kernels::device {

// lookup: of the embedding. head: a = inputs h [M,d], g = logit gradients b [M,V], after measure_rows.
struct TiedPairWork {
  Lookup lookup;
  UnitRowsWork head;
  UnitTiles cross;     // of [lookups, tokens]
  double* partials;    // [cross tiles, 3] workspace
  double* e_norms;     // [N] workspace: norms of the embedding's rows, rounded up
  double* cross_sums;  // [2,U] workspace: the cross term with its factor 2, and its error
  bool* uncertain;     // [U] workspace: units whose norm must be recomputed in float64
};

// Adds the cross terms, formed in float64, to parts, and raises sum_error to that of both sums into one buffer. Marks
// the units whose norm is not certain enough then in `uncertain`, and keeps only those of them in head.wanted. After
// measure_rows.
void add_cross_terms(const TiedPairWork& work, const Parts& parts, Stream stream);

// Replaces the values and errors of the uncertain units in parts by the sum of the three terms. lookups, grams: the
// norms of the embedding and of the head in float64.
void replace_uncertain(const TiedPairWork& work, const Parts& lookups, const Parts& grams, const Parts& parts,
                       Stream stream);

}  // namespace ghostshard::kernels::device
