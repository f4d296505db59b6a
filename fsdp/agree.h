// Two things that all ranks of a mesh learn before any of them goes on: whether a piece of work succeeded, and a text
// of rank 0.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "fsdp/mesh.h"

namespace ghostshard::fsdp {

// agree() throws it on every rank if the work failed on one of them. On a rank whose own work failed the text is that
// error's; on the others it is "rank R: …" with the error of the first rank R that failed.
class AgreedFailure : public std::runtime_error {
 public:
  AgreedFailure(const std::string& message, bool callers_mistake)
      : std::runtime_error(message), callers_mistake_(callers_mistake) {}
  // The error was a caller's mistake (fsdp/failure.h).
  bool callers_mistake() const { return callers_mistake_; }

 private:
  bool callers_mistake_;
};

// Runs `work`, which must not communicate, and turns one rank's error into every rank's. Texts are cut after 1,023
// bytes. A collective over control().
void agree(Mesh& mesh, const std::function<void()>& work);

// Rank 0's text, on every rank; the other ranks' argument is ignored. For decisions that only one rank can make, for
// example from a file that it alone read. A collective over control().
std::string broadcast_text(Mesh& mesh, const std::string& text);

}  // namespace ghostshard::fsdp
