#include "dp/recording/leaves.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <unordered_set>

namespace ghostshard::dp {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

// A tensor's name is of autograd, and PyTorch itself gives none.
const std::string& of_layer() {
  static const std::string name = "ghostshard: of a layer";
  return name;
}

}  // namespace

void mark_as_of_layer(const at::Tensor& leaf) { torch::autograd::impl::set_name(leaf, of_layer()); }

std::vector<at::Tensor> leaves_of(const at::Tensor& loss) {
  std::vector<at::Tensor> leaves;
  std::unordered_set<const Node*> seen;
  std::vector<Node*> waiting;
  if (loss.grad_fn() != nullptr) waiting.push_back(loss.grad_fn().get());
  while (!waiting.empty()) {
    Node& node = *waiting.back();
    waiting.pop_back();
    if (!seen.insert(&node).second) continue;
    for (const auto& edge : node.next_edges()) {  // a leaf has none
      if (edge.function != nullptr) waiting.push_back(edge.function.get());
    }
    const auto* accumulator = dynamic_cast<const AccumulateGrad*>(&node);
    if (accumulator != nullptr && accumulator->variable.name() != of_layer()) leaves.push_back(accumulator->variable);
  }
  return leaves;
}

}  // namespace ghostshard::dp
