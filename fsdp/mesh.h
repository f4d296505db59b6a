// The ranks of a run and the channels between them.
//
// A mesh joins a run that `torchrun --no-python` started (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; if
// TORCHELASTIC_USE_AGENT_STORE is set, torchrun serves the store and every rank is a client). Without these variables
// it has one rank and no process group. CPUs talk by Gloo, CUDA devices (one to a rank) by NCCL.
//
// It has three axes. Ranks along *shard* hold different slices of the weights (fully sharded data parallel). Ranks
// along *replicate* hold the same slices and see other data (hybrid sharding). Ranks along *model* see the same data
// and hold different parts of split layers (tensor parallel, arXiv:1909.08053). The model axis is the innermost,
//
//   rank = (replica · shard + shard_rank) · model + model_rank
//
// because it is the busiest: neighbouring ranks form it, and torchrun puts neighbours on one host.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ghostshard::fsdp {

// A collective under way. wait() blocks until it is complete and rethrows its error. Every handle must be waited for:
// the destructor frees memory and never communicates.
class PendingCollective {
 public:
  virtual ~PendingCollective() = default;
  virtual void wait() = 0;
};

// One communicator for contiguous tensors of float32, float64 or int64 on one device. Every rank must issue the same
// calls in the same order, from one thread at a time. With one rank each call is a copy or nothing. A lost peer or a
// time-out is a std::runtime_error naming the call and the communicator; after one the communicator cannot be used any
// more. std::invalid_argument for other tensors, naming call, argument, rule and value.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  // out [size·n] becomes the concatenation of every rank's in [n]; in may be the rank's own slice of out.
  virtual std::unique_ptr<PendingCollective> all_gather(at::Tensor out, at::Tensor in) = 0;
  // Slice r of in [size·n] goes to rank r; slice r of out comes from rank r.
  virtual std::unique_ptr<PendingCollective> all_to_all(at::Tensor out, at::Tensor in) = 0;
  // all_to_all for a caller who reads this rank's own slice from in: that slice of out stays as it is.
  virtual std::unique_ptr<PendingCollective> exchange(at::Tensor out, at::Tensor in) = 0;
  virtual void broadcast(at::Tensor tensor, int64_t root) = 0;
  // Both combine in rank order: the same bits on every rank, and from run to run.
  virtual void all_reduce_sum(at::Tensor tensor) = 0;
  virtual void all_reduce_max(at::Tensor tensor) = 0;
  virtual void barrier() = 0;
  // Payload bytes this rank has handed to other ranks so far, for reports and benches.
  virtual int64_t bytes_sent() const = 0;
};

struct MeshShape {
  int64_t replicate = 1;
  int64_t shard = 1;
  int64_t model = 1;

  int64_t ranks() const { return replicate * shard * model; }
  std::string text() const;  // "2x4x1"
  // REPLICATExSHARDxMODEL, whole numbers of at least 1; std::invalid_argument otherwise.
  static MeshShape parse(const std::string& text);
  bool operator==(const MeshShape&) const = default;
};

class Mesh {
 public:
  // From torchrun's environment. Without a shape all ranks stand on the shard axis. device: of the models; CUDA without
  // an index is the device numbered LOCAL_RANK. Throws std::invalid_argument (variable and value) for an environment
  // that is there but wrong, for a shape of another number of ranks, and for a device that the build or the machine
  // does not have; std::runtime_error if the other ranks do not come within the time-out.
  static std::unique_ptr<Mesh> from_environment(std::chrono::seconds timeout,
                                                const std::optional<MeshShape>& shape = std::nullopt,
                                                at::Device device = at::kCPU);
  // One rank, no environment, no process group.
  static std::unique_ptr<Mesh> single(at::Device device = at::kCPU);
  // For ranks that are threads or processes of a test, with an explicit store address.
  static std::unique_ptr<Mesh> connect(const std::string& address, int port, int64_t rank, int64_t world_size,
                                       bool serve_store, std::chrono::seconds timeout,
                                       const std::optional<MeshShape>& shape = std::nullopt);
  virtual ~Mesh() = default;

  const MeshShape& shape() const { return shape_; }
  // Among all ranks of the run: for control(), for messages, and to choose who writes.
  int64_t rank() const { return rank_; }
  int64_t world_size() const { return shape_.ranks(); }
  // Where this rank stands on each axis.
  int64_t replica() const { return rank_ / shape_.model / shape_.shard; }
  int64_t shard_rank() const { return rank_ / shape_.model % shape_.shard; }
  int64_t model_rank() const { return rank_ % shape_.model; }
  // Among the ranks that see different data (replicate × shard), to which a sampler deals. Ranks that differ only on
  // the model axis have the same data_rank().
  int64_t data_rank() const { return rank_ / shape_.model; }
  int64_t data_size() const { return shape_.replicate * shape_.shard; }

  // Where the weights of models on this mesh are, and everything that is computed from them. The first four
  // communicators take tensors on this device; control() always takes the host's.
  at::Device device() const { return device_; }

  // Each kind of traffic has a communicator of its own, so that none waits for another.
  virtual Communicator& gather() = 0;     // shard axis: weights
  virtual Communicator& reduce() = 0;     // shard axis: gradients
  virtual Communicator& replicate() = 0;  // replicate axis: gradients of the same slice, in order of replicas
  virtual Communicator& model() = 0;      // model axis: activations and norms
  virtual Communicator& control() = 0;    // all ranks

  // Tells every other rank that this one gives up, and why. Never throws and never blocks for long. The first message
  // of the run wins.
  virtual void announce_failure(const std::string& message) noexcept = 0;
  // Calls on_failure once, on a thread of the mesh, when another rank has announced a failure (message begins with
  // "rank R: "). Polls the store twice a second on a connection of its own. On a device, on_failure is also called (and
  // the others are told) when one of this rank's queued collectives is not complete within the time-out.
  virtual void watch_failures(std::function<void(const std::string&)> on_failure) = 0;

 protected:
  Mesh(int64_t rank, const MeshShape& shape, at::Device device = at::kCPU)
      : rank_(rank), shape_(shape), device_(device) {}

 private:
  int64_t rank_;
  MeshShape shape_;
  at::Device device_;
};

}  // namespace ghostshard::fsdp
