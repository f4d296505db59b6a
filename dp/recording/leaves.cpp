#include "dp/recording/leaves.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <string>
#include <unordered_map>
#include <unordered_set>

namespace ghostshard::dp {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

bool is_recorded_layer(const Node& node) { return node.name().find("ghostshard::dp") != std::string::npos; }

}  // namespace

std::vector<Leaf> leaves_of(const at::Tensor& loss) {
  std::vector<Leaf> leaves;
  std::unordered_map<const Node*, size_t> numbers;
  std::unordered_set<const Node*> seen;
  std::vector<Node*> waiting;
  if (loss.grad_fn() != nullptr) waiting.push_back(loss.grad_fn().get());
  while (!waiting.empty()) {
    Node* const node = waiting.back();
    waiting.pop_back();
    if (!seen.insert(node).second) continue;
    for (const auto& edge : node->next_edges()) {
      if (edge.function == nullptr) continue;
      const auto* accumulator = dynamic_cast<const AccumulateGrad*>(edge.function.get());
      if (accumulator == nullptr) {
        waiting.push_back(edge.function.get());
        continue;
      }
      const bool of_layer = is_recorded_layer(*node);
      if (of_layer && accumulator->variable.dim() == 0) continue;
      const auto [place, is_new] = numbers.emplace(accumulator, leaves.size());
      if (is_new) {
        leaves.push_back({.tensor = accumulator->variable, .input_of_layer = of_layer});
      } else {
        leaves[place->second].input_of_layer &= of_layer;
      }
    }
  }
  return leaves;
}

}  // namespace ghostshard::dp
