#include "dp/gathering/weight_code.h"

#include <stdexcept>
#include <string>

namespace ghostshard::dp {
namespace {

using kernels::WeightCode;

class CodedGather final : public fsdp::GatherCode {
 public:
  CodedGather(WeightCode code, int64_t least) : code_(code), least_(least) {}

  std::string name() const override {
    return std::string(code_ == WeightCode::kInt8 ? "int8" : "float8") + " by " + std::to_string(stretch());
  }
  int64_t stretch() const override { return kernels::kWeightStretch; }
  int64_t least_elements() const override { return least_; }
  void encode(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales) const override {
    kernels::encode_weights(values, code_, codes, scales);
  }
  void decode(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& values) const override {
    kernels::decode_weights(codes, scales, code_, values);
  }

 private:
  WeightCode code_;
  int64_t least_;
};

}  // namespace

std::shared_ptr<const fsdp::GatherCode> weight_code(WeightCode code, int64_t least_elements) {
  if (!(least_elements >= 1)) {
    throw std::invalid_argument("parameters that travel in codes must have at least 1 element, got " +
                                std::to_string(least_elements));
  }
  return std::make_shared<CodedGather>(code, least_elements);
}

}  // namespace ghostshard::dp
