#include "examples/gpt2/parameter_rules.h"

#include <algorithm>
#include <stdexcept>

#include "examples/gpt2/name_glob.h"

namespace ghostshard::gpt2 {
namespace {

std::vector<fsdp::ParameterSpec> trained(const std::vector<fsdp::BlockSpec>& blocks) {
  std::vector<fsdp::ParameterSpec> all;
  for (const fsdp::BlockSpec& block : blocks) {
    std::copy_if(block.parameters.begin(), block.parameters.end(), std::back_inserter(all),
                 [](const fsdp::ParameterSpec& spec) { return spec.trainable; });
  }
  return all;
}

void require_matrix(const OptimizerGroup& group, const fsdp::ParameterSpec& spec) {
  if (!group.names_optimizer || !group.optimizer.takes_matrices() || spec.shape.size() == 2) return;
  throw std::invalid_argument(group.names.at("optimizer") + " " + group.optimizer.name +
                              " is for matrices, the group has the vector '" + spec.name + "'");
}

}  // namespace

bool ParameterRule::takes_as_matrix(const std::string& name, size_t extents) const {
  return optimizer.takes_matrices() && extents == 2 && (every_matrix || name.starts_with("transformer.h."));
}

ParameterRules::ParameterRules(const Options& o, const std::vector<fsdp::BlockSpec>& blocks) {
  const auto specs = trained(blocks);
  for (const OptimizerGroup& group : o.optimizer_groups) {
    for (const std::string& glob : group.match) {
      const bool found = std::any_of(specs.begin(), specs.end(), [&](const auto& s) { return matches(glob, s.name); });
      if (!found) {
        throw std::invalid_argument(group.names.at("match") + " must match parameters that are trained, '" + glob +
                                    "' matches none");
      }
    }
    rules_.push_back({.optimizer = group.optimizer, .rate = group.rate, .every_matrix = group.names_optimizer});
  }
  rules_.push_back({.optimizer = o.optimizer});
  parameters_.resize(rules_.size(), 0);
  for (const fsdp::ParameterSpec& spec : specs) {
    const auto first =
        std::find_if(o.optimizer_groups.begin(), o.optimizer_groups.end(), [&](const OptimizerGroup& group) {
          return std::any_of(group.match.begin(), group.match.end(),
                             [&](const std::string& glob) { return matches(glob, spec.name); });
        });
    const auto rule = static_cast<size_t>(first - o.optimizer_groups.begin());
    if (first != o.optimizer_groups.end()) require_matrix(*first, spec);
    index_[spec.name] = rule;
    ++parameters_[rule];
  }
  for (size_t group = 0; group < o.optimizer_groups.size(); ++group) {
    if (has_parameters(group)) continue;
    throw std::invalid_argument(o.optimizer_groups[group].names.at("match") +
                                " must leave the group a parameter, groups before it have all that it matches");
  }
}

size_t ParameterRules::index(const std::string& parameter) const {
  const auto found = index_.find(parameter);
  return found == index_.end() ? rules_.size() - 1 : found->second;
}

}  // namespace ghostshard::gpt2
