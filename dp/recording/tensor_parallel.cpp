#include "dp/recording/tensor_parallel.h"

#include <torch/csrc/autograd/custom_function.h>

namespace ghostshard::dp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// In float32 whatever came in: a sum of rounded parts would be coarser than the layer it replaces.
at::Tensor summed(fsdp::Mesh& mesh, const at::Tensor& part) {
  at::Tensor sum =
      part.scalar_type() == at::kFloat ? part.clone(at::MemoryFormat::Contiguous) : part.to(at::kFloat).contiguous();
  mesh.model().all_reduce_sum(sum);
  return sum.to(part.scalar_type());
}

// The mesh outlives the model, and the model the graph.
fsdp::Mesh& mesh_of(AutogradContext* context) {
  return *reinterpret_cast<fsdp::Mesh*>(context->saved_data.at("mesh").toInt());
}

// Every rank reads the same x; its gradient is the sum of what the ranks' columns say.
struct CopyToModel : Function<CopyToModel> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t mesh) {
    context->saved_data["mesh"] = mesh;
    return x;
  }
  static variable_list backward(AutogradContext* context, variable_list grad) {
    return {summed(mesh_of(context), grad[0]), at::Tensor()};
  }
};

// Every rank adds its part; each part's gradient is that of the sum.
struct SumOverModel : Function<SumOverModel> {
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& part, int64_t mesh) {
    return summed(*reinterpret_cast<fsdp::Mesh*>(mesh), part);
  }
  static variable_list backward(AutogradContext* /*context*/, variable_list grad) { return {grad[0], at::Tensor()}; }
};

int64_t handle(fsdp::Mesh& mesh) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(&mesh)); }

}  // namespace

LinearSplit column_split(bool stored_transposed, int64_t sections) {
  return {.weight = {.extent = stored_transposed ? 1 : 0, .sections = sections},
          .bias = {.extent = 0, .sections = sections}};
}

LinearSplit row_split(bool stored_transposed) { return {.weight = {.extent = stored_transposed ? 0 : 1}, .bias = {}}; }

at::Tensor column_split_linear(fsdp::Mesh& mesh, const LinearUse& use, const at::Tensor& x, const SegmentsPtr& segments,
                               const RecorderPtr& recorder) {
  const bool alone = mesh.shape().model == 1 || !at::GradMode::is_enabled() || !x.requires_grad();
  return linear(use, alone ? x : CopyToModel::apply(x, handle(mesh)), segments, recorder);
}

at::Tensor row_split_linear(fsdp::Mesh& mesh, const LinearUse& use, const at::Tensor& x, const SegmentsPtr& segments,
                            const RecorderPtr& recorder) {
  if (mesh.shape().model == 1) return linear(use, x, segments, recorder);
  LinearUse own = use;
  own.adds_bias = mesh.model_rank() == 0;
  return SumOverModel::apply(linear(own, x, segments, recorder), handle(mesh));
}

}  // namespace ghostshard::dp
