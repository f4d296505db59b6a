// How weights travel while blocks are gathered, if not as they are: in codes of a byte, with a scale for each *stretch*
// of consecutive elements of a parameter. Whoever has such codes implements it; fsdp lays out the messages.
//
// Each rank encodes its shard once per weight version, ranks exchange the codes, and every rank decodes all of
// them, its own too: the values that a gathered block shows are those of the codes, on every rank and on every mesh
// alike, one rank included. Stretches begin with a parameter's first element, and no shard boundary cuts one: a
// parameter that travels in codes has granules of whole stretches. Master weights stay as they are.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>

namespace ghostshard::fsdp {

class GatherCode {
 public:
  virtual ~GatherCode() = default;
  // For messages, and to compare runs: two codes of one name give the same values.
  virtual std::string name() const = 0;
  virtual int64_t stretch() const = 0;  // elements, at least 1
  // Parameters with fewer elements, and vectors, travel in the compute dtype.
  virtual int64_t least_elements() const = 0;
  // values [n] float32, codes [n] uint8, scales [ceil(n / stretch())] float32, all on the model's device; element 0
  // begins a stretch. decode() gives values of float32 or bfloat16. Each stretch must depend on its own values alone.
  virtual void encode(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales) const = 0;
  virtual void decode(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& values) const = 0;

  // Whether a parameter (this rank's part of it) of this shape travels in codes.
  bool takes(at::IntArrayRef shape) const {
    return shape.size() >= 2 && c10::multiply_integers(shape) >= least_elements();
  }
  // Bytes of `elements` consecutive elements of such a parameter, from its first on.
  int64_t bytes(int64_t elements) const {
    return elements + static_cast<int64_t>(sizeof(float)) * ((elements + stretch() - 1) / stretch());
  }
};

}  // namespace ghostshard::fsdp
