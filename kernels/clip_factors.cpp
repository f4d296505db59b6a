#include "kernels/clip_factors.h"

#include "kernels/clip_factors/formula.h"
#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/device/rounding.h"
#include "kernels/host/checks.h"

namespace ghostshard::kernels {

at::Tensor clip_factors(const at::Tensor& squared_norms, double limit) {
  constexpr const char* op = "clip_factors";
  require(squared_norms.defined() && squared_norms.dim() == 1 && squared_norms.is_contiguous() &&
              squared_norms.scalar_type() == at::kDouble,
          op, ": squared norms must be a contiguous float64 vector");
  require(limit > 0 && device::is_finite(limit), op, ": the limit must be finite and > 0; got ", limit);
  if (device::runs_on_device(squared_norms)) {
    return on_device::clip_factors(squared_norms, limit);
  }
  const int64_t units = squared_norms.size(0);
  at::Tensor factors = at::empty({units}, squared_norms.options().dtype(at::kFloat));
  const double* bounds = squared_norms.const_data_ptr<double>();
  float* out = factors.mutable_data_ptr<float>();
  for (int64_t u = 0; u < units; ++u) out[u] = clip_factor(bounds[u], limit);
  return factors;
}

}  // namespace ghostshard::kernels
