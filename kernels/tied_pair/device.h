// The device's half of tied_cross_term (linear_norm.h): pointers in, launches out. Internal; as in
// linear_norm_device.h.
#pragma once

#include "kernels/device/types.h"
#include "kernels/embedding_norm/device.h"
#include "kernels/linear_norm/device.h"

namespace ghostshard::kernels::device {

// lookup: the embedding's; head: a = inputs h [M,d], g = logit gradients b [M,V], measured (measure_rows).
struct TiedWork {
  Lookup lookup;
  UnitRowsWork head;
  UnitTiles cross;     // of [lookups, tokens]
  double* partials;    // [cross tiles, 3] workspace
  double* e_norms;     // [N] workspace: norms of the embedding's rows, rounded up
  double* cross_sums;  // [2,U] workspace: the cross term with its factor 2, and its error
  bool* uncertain;     // [U] workspace: units whose norm must be found again in float64
};

// Adds the cross terms, formed in float64, to parts, and raises sum_error to that of both sums into one buffer. What is
// not certain enough then is marked in `uncertain`, and of head.wanted such units alone stay. After measure_rows.
void add_cross_terms(const TiedWork& work, const Parts& parts, Stream stream);

// For the uncertain units: the three terms in the place of what parts hold. lookups, grams: with the norms of the
// embedding and of the head in float64.
void replace_uncertain(const TiedWork& work, const Parts& lookups, const Parts& grams, const Parts& parts,
                       Stream stream);

}  // namespace ghostshard::kernels::device
