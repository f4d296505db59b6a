// Which optimizer each parameter of GPT-2 is trained by: its group's (--optimizer-groups), or the flags'.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "examples/gpt2/options.h"
#include "fsdp/parameters.h"

namespace ghostshard::gpt2 {

struct ParameterRule {
  OptimizerOptions optimizer;
  double rate = 1.0;          // of the run's learning rate
  bool every_matrix = false;  // muon, shampoo, soap: for embeddings too, if a group asks for them

  // Whether the optimizer takes the parameter as a matrix. By the flags only those of the transformer layers:
  // embeddings and the head, whose rows are tokens', go by AdamW.
  bool takes_as_matrix(const std::string& name, size_t extents) const;
};

class ParameterRules {
 public:
  // std::invalid_argument for the first group that names nothing that is trained, with a glob of its own or because the
  // groups before it have all that it matches, and for one whose optimizer takes matrices alone and that has a vector.
  ParameterRules(const Options& options, const std::vector<fsdp::BlockSpec>& blocks);

  // The groups' in their order, then the flags'.
  const std::vector<ParameterRule>& rules() const { return rules_; }
  size_t index(const std::string& parameter) const;
  const ParameterRule& of(const std::string& parameter) const { return rules_[index(parameter)]; }
  bool has_parameters(size_t rule) const { return parameters_[rule] > 0; }

 private:
  std::vector<ParameterRule> rules_;
  std::vector<int64_t> parameters_;  // that are trained by each
  std::map<std::string, size_t> index_;
};

}  // namespace ghostshard::gpt2
