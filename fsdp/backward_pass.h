// Which backward pass is running. A block that recomputes its activations runs a backward of its own inside the one
// that the caller started; code that counts passes must see both as one.
#pragma once

namespace ghostshard::fsdp {

// Autograd's number of the outermost pass under way on this thread; -1 if there is none.
int current_backward_pass();

// While this object lives, passes started on this thread belong to the pass that runs now.
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
