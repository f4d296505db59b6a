// Fingerprints of tensors on a device: the device sums their bytes; fingerprint.cpp mixes in shapes and segments.
#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/fingerprint/device.h"
#include "kernels/host/checks.h"

namespace ghostshard::kernels::on_device {

uint64_t sum_of_bits(const at::Tensor& a_rows, const at::Tensor& g_rows) {
  const auto rows = [](const at::Tensor& x) { return x.is_contiguous() || (x.dim() == 2 && x.stride(1) == 1); };
  require(rows(a_rows) && rows(g_rows) && a_rows.device() == g_rows.device(),
          "fingerprint: tensors must have contiguous rows and be on one device");
  const c10::DeviceGuard guard(a_rows.device());
  const at::Tensor a = a_rows.contiguous(), g = g_rows.contiguous();  // without the gaps between rows
  const auto bytes_of = [](const at::Tensor& x) { return static_cast<int64_t>(x.nbytes()); };
  const int64_t a_chunks = device::fingerprint_chunks(bytes_of(a)), g_chunks = device::fingerprint_chunks(bytes_of(g));
  const at::Tensor sums = at::empty({a_chunks + g_chunks + 1}, a.options().dtype(at::kLong));
  auto* data = reinterpret_cast<uint64_t*>(sums.mutable_data_ptr<int64_t>());
  device::Stream stream = device::current_stream(a);
  device::fingerprint_chunks_of(a.const_data_ptr(), bytes_of(a), 0, data + 1, stream);
  // g's places have the highest bit set, which no place of a has.
  device::fingerprint_chunks_of(g.const_data_ptr(), bytes_of(g), uint64_t{1} << 63, data + 1 + a_chunks, stream);
  device::fingerprint_join(data + 1, a_chunks + g_chunks, data, stream);
  return static_cast<uint64_t>(sums.narrow(0, 0, 1).item<int64_t>());
}

}  // namespace ghostshard::kernels::on_device
