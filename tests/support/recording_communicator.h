// A mesh that writes down which collectives a rank issues, in which order and with how many bytes, and moves no data.
//
// One process can be rank 0, then rank 1, … of 1,024, one after the other, and the records can be compared: ranks that
// issue different sequences would wait for each other forever on a real mesh. Bytes are those that this engine's Gloo
// communicator hands to other ranks for the same call, so that traffic can be stated without a network.
//
// What other ranks would send arrives as zeros (a gather of weights leaves this rank's slice and zeros, agree() hears
// that all is well), sums and maxima are this rank's own values, a broadcast keeps what is there. Values are therefore
// of no use, shapes and control flow are those of the real run. Failures are neither announced nor heard.
#pragma once

#include <string>
#include <vector>

#include "fsdp/mesh.h"

namespace ghostshard::fsdp {

struct RecordedCall {
  std::string communicator;  // "gather", "reduce", "replicate", "model", "control"
  std::string call;          // the method's name
  std::string type;          // "Float", "Double", "Long"
  int64_t elements = 0;      // of the tensor that all ranks together fill or share
  int64_t bytes_sent = 0;    // by this rank
  bool operator==(const RecordedCall&) const = default;
};

class RecordingMesh final : public Mesh {
 public:
  // Throws std::invalid_argument unless 0 ≤ rank < shape.ranks().
  RecordingMesh(const MeshShape& shape, int64_t rank);
  ~RecordingMesh() override;

  const std::vector<RecordedCall>& calls() const { return calls_; }
  // Of the calls on one communicator since the last forget().
  int64_t bytes_sent(const std::string& communicator) const;
  void forget() { calls_.clear(); }

  Communicator& gather() override { return *gather_; }
  Communicator& reduce() override { return *reduce_; }
  Communicator& replicate() override { return *replicate_; }
  Communicator& model() override { return *model_; }
  Communicator& control() override { return *control_; }
  void announce_failure(const std::string&) noexcept override {}
  void watch_failures(std::function<void(const std::string&)>) override {}

 private:
  std::vector<RecordedCall> calls_;
  std::unique_ptr<Communicator> gather_, reduce_, replicate_, model_, control_;
};

}  // namespace ghostshard::fsdp
