#include "dp/recording/tensor_parallel.h"

#include <torch/csrc/autograd/custom_function.h>

#include "fsdp/saved_object.h"

namespace ghostshard::dp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// In float32 whatever the part's dtype: a sum of rounded parts would be coarser than the layer it replaces.
at::Tensor summed(fsdp::Mesh& mesh, const at::Tensor& part) {
  at::Tensor sum =
      part.scalar_type() == at::kFloat ? part.clone(at::MemoryFormat::Contiguous) : part.to(at::kFloat).contiguous();
  mesh.model().all_reduce_sum(sum);
  return sum.to(part.scalar_type());
}

// Every rank reads the same x; its gradient is the sum of the gradients from the ranks' columns.
struct CopyToModel : Function<CopyToModel> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, fsdp::Mesh* mesh) {
    fsdp::save_object(context, fsdp::borrowed(*mesh));  // it outlives the model, and the model the graph
    return x;
  }
  static variable_list backward(AutogradContext* context, variable_list grad) {
    return {summed(*fsdp::saved_object<fsdp::Mesh>(context), grad[0]), at::Tensor()};
  }
};

// Every rank adds its part; the gradient of each part is that of the sum.
struct SumOverModel : Function<SumOverModel> {
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& part, fsdp::Mesh* mesh) {
    return summed(*mesh, part);
  }
  static variable_list backward(AutogradContext* /*context*/, variable_list grad) { return {grad[0], at::Tensor()}; }
};

}  // namespace

LinearSplit column_split(bool stored_transposed, int64_t sections) {
  return {.weight = {.extent = stored_transposed ? 1 : 0, .sections = sections},
          .bias = {.extent = 0, .sections = sections}};
}

LinearSplit row_split(bool stored_transposed) { return {.weight = {.extent = stored_transposed ? 0 : 1}, .bias = {}}; }

at::Tensor column_split_linear(fsdp::Mesh& mesh, const LinearUse& use, const at::Tensor& x, const SegmentsPtr& segments,
                               const RecorderPtr& recorder) {
  const bool alone = mesh.shape().model == 1 || !at::GradMode::is_enabled() || !x.requires_grad();
  return linear(use, alone ? x : CopyToModel::apply(x, &mesh), segments, recorder);
}

at::Tensor row_split_linear(fsdp::Mesh& mesh, const LinearUse& use, const at::Tensor& x, const SegmentsPtr& segments,
                            const RecorderPtr& recorder) {
  if (mesh.shape().model == 1) return linear(use, x, segments, recorder);
  LinearUse own = use;
  own.adds_bias = mesh.model_rank() == 0;
  return SumOverModel::apply(linear(own, x, segments, recorder), &mesh);
}

}  // namespace ghostshard::dp
