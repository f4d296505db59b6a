// What an optimizer's options must be, beside each other and beside the run's: of the flags, and of each group alike.
#pragma once

#include "examples/gpt2/options.h"

namespace ghostshard::gpt2 {

// std::invalid_argument with one sentence for the first rule that the flags' optimizer or a group's breaks.
void check_optimizers(const Options& options);

}  // namespace ghostshard::gpt2
