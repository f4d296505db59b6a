// A mesh that records the collectives of a rank, in their order and with their bytes, and moves no data.
//
// One process can be rank 0, then rank 1, up to rank 1,023, one after the other, and the records can be compared: ranks
// that issue different sequences would wait for each other forever on a real mesh. The bytes are those that fsdp's Gloo
// communicator hands to other ranks for the same call, so a test can state traffic without a network.
//
// Data of other ranks arrive as zeros: a gather of weights leaves this rank's slice and zeros, and in agree() no other
// rank has failed. Sums and maxima are this rank's own values, and a broadcast changes nothing. Values are therefore of
// no use; shapes and control flow are those of the real run. Failures are neither announced nor heard.
#pragma once

#include <string>
#include <vector>

#include "fsdp/communication/communicator_mesh.h"

namespace ghostshard::tests {

struct RecordedCall {
  std::string communicator;  // "gather", "reduce", "replicate", "model", "control"
  std::string call;          // the method's name
  std::string type;          // "Float", "Double", "Long"
  int64_t elements = 0;      // of the tensor that all ranks together fill or share
  int64_t bytes_sent = 0;    // by this rank
  bool operator==(const RecordedCall&) const = default;
};

class RecordingMesh final : public fsdp::CommunicatorMesh {
 public:
  // Throws std::invalid_argument unless 0 ≤ rank < shape.ranks().
  RecordingMesh(const fsdp::MeshShape& shape, int64_t rank);

  const std::vector<RecordedCall>& calls() const { return calls_; }
  // Of the calls on one communicator since the last forget().
  int64_t bytes_sent(const std::string& communicator) const;
  void forget() { calls_.clear(); }

 private:
  std::vector<RecordedCall> calls_;
};

}  // namespace ghostshard::tests
