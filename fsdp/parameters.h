// The parameters of a model, grouped as they are gathered and reduced: their names, their shapes, where their elements
// lie and which rank owns which. Two classes derive from it: fsdp/sharded_model.h stores the parameters itself;
// fsdp/foreign_model.h describes parameters that somebody else shards (PyTorch's fully_shard) or does not shard at all.
//
// A *block* (a transformer layer, an embedding) is gathered and released as a whole. Its parameters form up to two flat
// groups, trainable and frozen, each with a ShardPlan.
//
// On a mesh with a model axis a parameter may be cut (fsdp/model_split.h): then shape(), numel(), value() and the plan
// are of this rank's part, and all ranks' parts have one shape. A parameter that is not cut is the same on every model
// rank, and stays the same as long as every rank computes the same bits from it: model peers must be machines of one
// kind.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/granule.h"
#include "fsdp/mesh.h"
#include "fsdp/model_split.h"
#include "fsdp/shard_plan.h"

namespace ghostshard::fsdp {

class FlatGroup;
class GroupedParameters;

enum class Residency { kRegather, kKeep };

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;  // of the whole parameter
  bool trainable = true;
  ModelSplit split{};  // among the ranks of the model axis
  // What stays on one rank. None: whole rows if that costs little padding, else single elements.
  std::optional<Granule> granule{};
};

struct BlockSpec {
  std::string name;
  std::vector<ParameterSpec> parameters;
  Residency residency = Residency::kRegather;
};

// Stable address for the life of the model.
class Parameter {
 public:
  const std::string& name() const { return name_; }
  uint32_t id() const { return id_; }  // position in order of declaration; does not depend on ranks or freezing
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t numel() const;
  const std::vector<int64_t>& whole_shape() const { return whole_shape_; }
  int64_t whole_numel() const;
  // True if its elements are dealt out over the model axis, false if they are the same on every model rank.
  bool cut() const { return shape_ != whole_shape_; }
  const ModelSplit& split() const { return split_; }
  // Where the elements [first, first + count) of this rank's part lie in the whole parameter.
  std::vector<ElementRun> whole_runs(int64_t first, int64_t count) const;
  bool trainable() const { return trainable_; }
  // Elements of this rank's part that its specification keeps together; none if it leaves that to the plan.
  std::optional<int64_t> granule() const { return granule_; }
  int64_t block() const { return block_; }
  const FlatGroup& group() const { return *group_; }
  int64_t offset() const { return offset_; }  // of the first element within the group's flat buffer
  // [shape], whole, in the model's compute dtype. Throws std::logic_error naming the parameter unless its block is
  // gathered now.
  at::Tensor value() const;

 private:
  friend class GroupedParameters;
  std::string name_;
  uint32_t id_ = 0;
  std::vector<int64_t> shape_, whole_shape_;
  ModelSplit split_;
  std::optional<int64_t> granule_;
  bool trainable_ = true;
  int64_t block_ = 0;
  int64_t offset_ = 0;
  const FlatGroup* group_ = nullptr;
  const GroupedParameters* model_ = nullptr;
};

// Which of a model's parameters.
using Chosen = std::function<bool(const Parameter&)>;

// The parameters of one block that share a flat buffer, all trainable or all frozen.
class FlatGroup {
 public:
  int64_t index() const { return index_; }  // among all groups of the model
  int64_t block() const { return block_; }
  bool trainable() const { return trainable_; }
  const ShardPlan& plan() const { return plan_; }                             // over the shard axis
  std::vector<OwnedRange> owned() const { return plan_.owned(shard_rank_); }  // by this rank; the same on all replicas
  const std::vector<const Parameter*>& parameters() const { return parameters_; }  // in the plan's order
  // [shard_size], this rank's master weights, float32 or bfloat16; undefined if somebody else stores them.
  at::Tensor shard() const { return shard_; }

 private:
  friend class GroupedParameters;
  int64_t index_ = 0;
  int64_t block_ = 0;
  bool trainable_ = true;
  int64_t shard_rank_ = 0;
  ShardPlan plan_;
  std::vector<const Parameter*> parameters_;
  at::Tensor shard_;
};

class GroupedParameters {
 public:
  virtual ~GroupedParameters() = default;
  GroupedParameters(const GroupedParameters&) = delete;
  GroupedParameters& operator=(const GroupedParameters&) = delete;

  Mesh& mesh() const { return mesh_; }
  // The mesh's: of weights, gradients, optimizer states and everything that is recorded and drawn for them.
  at::Device device() const { return mesh_.device(); }
  int64_t block_count() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t parameter_count() const;                            // elements of whole parameters, trainable and frozen
  int64_t trainable_parameter_count() const;                  // likewise
  const Parameter& parameter(const std::string& name) const;  // std::out_of_range naming it
  const std::vector<std::unique_ptr<Parameter>>& parameters() const { return parameters_; }
  const std::vector<std::unique_ptr<FlatGroup>>& groups() const { return groups_; }
  bool block_trainable(int64_t block) const;

 protected:
  using Planner = std::function<ShardPlan(const std::vector<const Parameter*>&, int64_t world_size)>;
  // Throws std::invalid_argument for a name used twice, a shape without elements, a cut that leaves a remainder, or a
  // granule that the shape does not have.
  GroupedParameters(Mesh& mesh, std::vector<BlockSpec> blocks, const Planner& plan);
  const std::vector<BlockSpec>& blocks() const { return blocks_; }
  void allocate_shards(at::ScalarType dtype);
  void declare(const BlockSpec& block, int64_t index, const Planner& plan);
  virtual at::Tensor value_of(const Parameter& parameter) const = 0;

 private:
  friend class Parameter;
  Mesh& mesh_;
  std::vector<BlockSpec> blocks_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::unique_ptr<FlatGroup>> groups_;
};

}  // namespace ghostshard::fsdp
