// Checks that the operations share. Each throws std::invalid_argument with the rule and the value.
#pragma once

#include <ATen/ATen.h>

#include <stdexcept>
#include <string>

#include "kernels/norm_parts.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// Throws std::invalid_argument with the text's parts joined. The text is built only on failure.
template <typename... Text>
void require(bool holds, const Text&... text) {
  if (!holds) {
    throw std::invalid_argument(c10::str(text...));
  }
}

inline void require_dense(const char* op, const char* name, const at::Tensor& x, at::Device device) {
  require(x.defined(), op, ": ", name, " must be a tensor; got an undefined one");
  require(x.device() == device && x.is_contiguous(), op, ": ", name, " must be contiguous and on ", device,
          "; got strides ", x.strides(), " on ", x.device());
}
// A contiguous tensor of exactly this shape and dtype on `device`.
inline void require_shape(const char* op, const char* name, const at::Tensor& x, at::IntArrayRef shape,
                          at::ScalarType type, at::Device device = at::kCPU) {
  require_dense(op, name, x, device);
  require(x.sizes() == shape && x.scalar_type() == type, op, ": ", name, " must be ", shape, " of ", type, "; got ",
          x.sizes(), " of ", x.scalar_type());
}
inline void require_dense_cpu(const char* op, const char* name, const at::Tensor& x) {
  require_dense(op, name, x, at::kCPU);
}

// A contiguous CPU matrix of float32 or float64.
inline void require_matrix(const char* op, const char* name, const at::Tensor& x) {
  require_dense_cpu(op, name, x);
  require(x.dim() == 2, op, ": ", name, " must have two dimensions; got shape ", x.sizes());
  require(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble, op, ": ", name,
          " must be float32 or float64; got ", x.scalar_type());
}

// The same, but rows may be apart: each may begin some elements after the end of the one before.
inline void require_apart_matrix(const char* op, const char* name, const at::Tensor& x) {
  const bool apart = x.defined() && x.device().is_cpu() && x.dim() == 2 && x.stride(1) == 1 && x.stride(0) >= x.size(1);
  require_matrix(op, name, apart ? x.slice(0, 0, 1) : x);
}

// Values from a row of such a matrix to the next.
inline int64_t row_stride(const at::Tensor& x) { return x.size(0) > 1 ? x.stride(0) : x.size(1); }

inline void require_rows(const char* op, const char* name, const at::Tensor& x, const Segments& segments) {
  require(x.size(0) == segments.rows(), op, ": ", name, " must have one row per row of the segments; got ", x.size(0),
          " rows for ", segments.rows());
}

// Rows a [N,d] and g [N,p] of one dtype that fit the segments; may be apart.
inline void require_row_pair(const char* op, const char* a_name, const at::Tensor& a, const char* g_name,
                             const at::Tensor& g, const Segments& segments) {
  require_apart_matrix(op, a_name, a);
  require_apart_matrix(op, g_name, g);
  require(a.scalar_type() == g.scalar_type(), op, ": ", a_name, " and ", g_name, " must have one dtype; got ",
          a.scalar_type(), " and ", g.scalar_type());
  require_rows(op, a_name, a, segments);
  require_rows(op, g_name, g, segments);
}

inline void require_factors(const char* op, const at::Tensor& factors, int64_t units, at::Device device = at::kCPU) {
  require_dense(op, "factors", factors, device);
  require(factors.dim() == 1 && factors.size(0) == units && factors.scalar_type() == at::kFloat, op,
          ": factors must be float32 of one per unit, ", units, "; got ", factors.scalar_type(), " of shape ",
          factors.sizes());
}

// The arguments of scaled_sum_held.
inline void require_held_sum(const char* op, const at::Tensor& held, const at::Tensor& factors, const at::Tensor& out,
                             at::Device device) {
  require_dense(op, "held", held, device);
  require_dense(op, "out", out, device);
  require(held.dim() >= 1 && held.sizes().slice(1) == out.sizes() && held.scalar_type() == out.scalar_type(), op,
          ": held must be [units, shape of out] and of its dtype; got ", held.sizes(), " ", held.scalar_type(),
          " for out ", out.sizes(), " ", out.scalar_type());
  require(out.scalar_type() == at::kFloat || out.scalar_type() == at::kDouble, op,
          ": out must be float32 (or float64 in tests); got ", out.scalar_type());
  require_factors(op, factors, held.size(0), device);
}

// The embedding's e and the head's h, two uses of one table by the same units.
inline void require_one_table(const char* op, const at::Tensor& e, const Segments& embedding_segments,
                              const at::Tensor& h, const Segments& head_segments) {
  require(e.dim() == 2 && e.size(1) == h.size(1) && e.scalar_type() == h.scalar_type(), op,
          ": e and h must have the columns of one table and one dtype; got ", e.sizes(), " ", e.scalar_type(), " and ",
          h.sizes(), " ", h.scalar_type());
  require(embedding_segments.units() == head_segments.units(), op,
          ": embedding and head must have the same units; got ", embedding_segments.units(), " and ",
          head_segments.units());
}

inline void require_parts(const NormParts& parts, int64_t units, at::Device device = at::kCPU) {
  for (const at::Tensor* part : {&parts.value, &parts.value_error, &parts.mass, &parts.sum_error}) {
    require_dense("NormParts", "every part", *part, device);
    require(part->dim() == 1 && part->size(0) == units && part->scalar_type() == at::kDouble,
            "NormParts: every part must be float64 of one per unit, ", units, "; got ", part->scalar_type(),
            " of shape ", part->sizes());
  }
}

// Held gradients [U, table rows, columns].
inline void require_held_table(const char* op, const at::Tensor& held, const Segments& segments, at::Device device) {
  require_dense(op, "held", held, device);
  require(held.dim() == 3 && held.size(0) == segments.units(), op, ": held must be [", segments.units(),
          ", table rows, columns]; got ", held.sizes());
}

// Ids int64 [N].
inline void require_id_rows(const char* op, const at::Tensor& ids, const Segments& segments, at::Device device) {
  require_dense(op, "ids", ids, device);
  require(ids.dim() == 1 && ids.scalar_type() == at::kLong && ids.size(0) == segments.rows(), op,
          ": ids must be int64 of one per row, ", segments.rows(), "; got ", ids.scalar_type(), " of shape ",
          ids.sizes());
}

// The same, and every id is in [0, table_rows).
inline void require_ids(const char* op, const at::Tensor& ids, const Segments& segments, int64_t table_rows) {
  require_id_rows(op, ids, segments, at::kCPU);
  const int64_t* id = ids.const_data_ptr<int64_t>();
  for (int64_t s = 0; s < ids.size(0); ++s) {
    require(id[s] >= 0 && id[s] < table_rows, op, ": every id must be in [0, ", table_rows, "); got ids[", s,
            "] = ", id[s]);
  }
}

}  // namespace ghostshard::kernels
