// The command line of step_compare: the GPT-2, the batch and the device that it runs.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>

#include "dp/mechanism/clipper.h"
#include "examples/gpt2/config.h"
#include "kernels/machine_rates.h"

namespace ghostshard::gpt2 {

struct Shape {
  Config config;
  int64_t length = 100;
  int64_t texts = 8;  // in a microbatch, on each rank
  int64_t microbatches = 4;
  int64_t repeats = 5;
  std::string only;
  bool serve = false;
  dp::RecordingChoice recording = dp::RecordingChoice::kAutomatic;
  int64_t hold_mib = 1024;
  std::string memory_budget;  // dp/planning/memory_budget.h
  bool explain = false;
  bool front = false;
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;
  kernels::MeasuredLayer measured_layer{};  // on which the costs of a device are measured
  std::optional<double> peak_tflops;
  std::string commit, output, trace;

  int64_t tokens_of(int64_t ranks) const { return ranks * microbatches * texts * length; }
};

// std::invalid_argument for a text that names no device. Ends the program if CLI11 does: --help, mistakes.
Shape parse_shape(int argc, char** argv);

}  // namespace ghostshard::gpt2
