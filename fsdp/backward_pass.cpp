#include "fsdp/backward_pass.h"

#include <torch/csrc/autograd/graph_task.h>

namespace ghostshard::fsdp {
namespace {
thread_local int outermost = -1;
}  // namespace

int current_backward_pass() { return outermost >= 0 ? outermost : torch::autograd::get_current_graph_task_id(); }

NestedBackward::NestedBackward() : previous_(outermost) { outermost = current_backward_pass(); }
NestedBackward::~NestedBackward() { outermost = previous_; }

}  // namespace ghostshard::fsdp
