// The device's half of embedding_norm.h: pointers in, launches out. Rules as in kernels/linear_norm/device.h.
//
// Rows are sorted by a key, one for each sum; rows of equal keys keep their order. The rows of one sum then stand
// together, and one block adds them in that order. Rows whose id is out of range come last: they are added to nothing,
// and their units' norms are infinite.
#pragma once

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

struct Lookup {
  const int64_t* ids;  // [N]
  Matrix e;
  Units units;
  int64_t table_rows;
};

// Workspace: keys and row numbers, unsorted and sorted, [N] each, and the scratch that the sort itself asks for.
struct LookupOrder {
  int64_t* keys;
  int64_t* rows;
  int64_t* sorted_keys;
  int64_t* sorted_rows;
  void* scratch;
  size_t scratch_bytes;
};

// Bytes of scratch to sort this many pairs.
size_t sort_scratch_bytes(int64_t count);

// A stable sort by keys in [0, bound).
void sort_pairs(const LookupOrder& order, int64_t count, int64_t bound, Stream stream);

// Adds ‖G_u‖² of every unit with its error and mass to parts, and raises sum_error to that of add_scaled_lookups.
// Workspace: norms [N], squares [N], lengths [N].
struct LookupNorms {
  double* norms;
  double* squares;
  int64_t* lengths;
};
void add_lookup_norms(const Lookup& lookup, const LookupOrder& order, const LookupNorms& work, const Parts& parts,
                      Stream stream);

// out[v] += the sum of factors[u]·e_s over the rows s of unit u with ids[s] = v, unit after unit; out [V,d] float32, or
// float64 for float64 rows. A unit whose factor is 0 is not read.
void add_scaled_lookups(const Lookup& lookup, const LookupOrder& order, const float* factors, void* out, Stream stream);

// held[u][v] += the sum of e_s over the same rows; held [U,V,d] has the type of `out` above. Sets
// parts.value and value_error to those of the values then in held. partials: workspace [U, held_chunks()].
void add_lookups_to_held(const Lookup& lookup, const LookupOrder& order, void* held, double* partials,
                         const Parts& parts, Stream stream);
int64_t held_chunks(int64_t elements_of_a_unit);

}  // namespace ghostshard::kernels::device
