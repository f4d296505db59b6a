// What all ranks, and all sessions of a run, must have alike (dp/run/agreement.h): the command line, and the content of
// the files that it names.
#pragma once

#include <vector>

#include "dp/run/agreement.h"
#include "examples/gpt2/setup.h"

namespace ghostshard::gpt2 {

// Every option binds the run unless it is listed as free, so that a new one binds until somebody has thought about it.
// The paths of files may differ from rank to rank; their content is compared.
std::vector<dp::Part> parts_of_options(const Options& options);

// The files that this rank has read. std::runtime_error if one cannot be read again.
std::vector<dp::Part> parts_of_inputs(const Options& options, const Inputs& in);
// Of the file in --data, as one of these parts has it.
std::string digest_of_texts(const std::vector<dp::Part>& parts);

}  // namespace ghostshard::gpt2
