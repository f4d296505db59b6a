#include "kernels/machine_rates.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>

#include "kernels/linear_norm.h"
#include "kernels/scaled_sum.h"

namespace ghostshard::kernels {
namespace {

class Timer {
 public:
  explicit Timer(at::Device device) : device_(device) {}
  // The shortest of some runs, after one that does not count.
  double seconds(const std::function<void()>& work) const {
    constexpr int kRuns = 5;
    work();
    double best = HUGE_VAL;
    for (int run = 0; run < kRuns; ++run) {
      wait();
      const auto begin = Clock::now();
      work();
      wait();
      best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return std::max(best, 1e-9);  // a clock may not tell less from nothing
  }

 private:
  using Clock = std::chrono::steady_clock;
  void wait() const {
    if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
  at::Device device_;
};

}  // namespace

MachineRates usual_rates(at::DeviceType device, at::ScalarType rows) {
  if (device == at::kCPU) {
    return {.product_flops = 85e9,
            .gram_flops = 90e9,
            .bytes = 10e9,
            .seconds_per_row_element = 0.25e-9,
            // Error bounds grow with the rows. From about this length on, the first rows show that float32 will not do,
            // and the unit is recomputed in float64, in whole products of half the speed.
            .narrow_from_rows = 1024,
            .narrow_slowdown = 4};
  }
  const bool tensor_cores = rows == at::kBFloat16 || rows == at::kHalf;
  const double bytes = 1e12, flops = tensor_cores ? 150e12 : 10e12;
  return {.product_flops = flops,
          .gram_flops = flops,
          .bytes = bytes,
          .seconds_per_row_element = (tensor_cores ? 2 : 4) * 3 / bytes,
          // Tensor cores are trusted with twice the roundings.
          .narrow_from_rows = tensor_cores ? 512.0 : 1024.0,
          .narrow_slowdown = 4};
}

MachineRates measured_rates(at::Device device, at::ScalarType rows, const MeasuredLayer& layer) {
  const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::nullopt : std::make_optional(device));
  const at::NoGradGuard no_grad;
  const Segments segments = Segments::even(layer.units, layer.rows);
  const auto random = [&](int64_t columns) { return at::randn({segments.rows(), columns}).to(device, rows); };
  const at::Tensor a = random(layer.inputs), g = random(layer.outputs);
  const at::Tensor factors = at::full({layer.units}, 0.5F, at::dtype(at::kFloat).device(device));
  const at::Tensor out = at::zeros({layer.outputs, layer.inputs}, factors.options());
  at::Tensor held = at::empty({layer.units, layer.outputs, layer.inputs}, factors.options());
  NormParts parts = NormParts::zeros(layer.units, device);
  const Timer timer(device);

  const auto elements = [](const at::Tensor& x) { return static_cast<double>(x.numel()); };
  const double product_flops = 2 * elements(a) * static_cast<double>(layer.outputs);
  NormParts once = NormParts::zeros(layer.units, device);
  gram_norm(a, g, segments, once);
  const double product = timer.seconds([&] { scaled_sum_rows(a, g, segments, factors, out, &once); });
  const double holding = timer.seconds([&] {
    per_unit_gradient(a, g, segments, held, /*accumulate=*/false, parts);
    scaled_sum_held(held, factors, out);
  });
  const double gram = timer.seconds([&] { gram_norm(a, g, segments, parts); });
  // Equal rows of alternating signs: their contributions cancel completely, whatever the arithmetic.
  const at::Tensor signs =
      at::arange(segments.rows(), at::kLong).remainder(2).mul(2).sub(1).unsqueeze(1).to(device, rows);
  const at::Tensor same = at::ones_like(a), cancelling = at::ones_like(g).mul(signs);
  const double narrow = timer.seconds([&] { gram_norm(same, cancelling, segments, parts); });
  const double row = timer.seconds([&] { a.to(at::kFloat).square().sum(1); });

  // The products write the held gradients and the sum reads them; the time beyond the product's is spent on that.
  const double held_bytes = 8 * elements(held);
  const double gram_flops = static_cast<double>(segments.sum_of_squared_lengths() * (layer.inputs + layer.outputs));
  MachineRates rates = usual_rates(device.type(), rows);
  rates.product_flops = product_flops / product;
  rates.gram_flops = gram_flops / gram;
  rates.bytes = held_bytes / std::max(holding - product, 0.05 * holding);
  rates.seconds_per_row_element = row / elements(a);
  rates.narrow_slowdown = std::max(1.0, narrow / gram);
  return rates;
}

}  // namespace ghostshard::kernels
