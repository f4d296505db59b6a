// One rank's error becomes every rank's error, before any of them goes on.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "fsdp/mesh.h"

namespace ghostshard::fsdp {

// What agree() throws on every rank if one of them failed. The text is the rank's own error, or "rank R: …" of the
// first one that failed.
class AgreedFailure : public std::runtime_error {
 public:
  AgreedFailure(const std::string& message, bool callers_mistake)
      : std::runtime_error(message), callers_mistake_(callers_mistake) {}
  // A caller's mistake (std::invalid_argument, c10::ValueError) rather than anything else.
  bool callers_mistake() const { return callers_mistake_; }

 private:
  bool callers_mistake_;
};

// Runs work, which must not communicate, and lets every rank know how it went. A collective over control().
void agree(Mesh& mesh, const std::function<void()>& work);

}  // namespace ghostshard::fsdp
