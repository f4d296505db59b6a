// Which backward pass is running. A block that recomputes its activations runs a backward of its own inside the one
// that the caller started; to whoever counts passes they are one.
#pragma once

namespace ghostshard::fsdp {

// The outermost pass under way on this thread: autograd's number of it, -1 outside of any.
int current_backward_pass();

// While it lives, passes started on this thread belong to the one that runs now.
class NestedBackward {
 public:
  NestedBackward();
  ~NestedBackward();
  NestedBackward(const NestedBackward&) = delete;
  NestedBackward& operator=(const NestedBackward&) = delete;

 private:
  int previous_;
};

}  // namespace ghostshard::fsdp
