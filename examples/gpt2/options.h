// The command line of ghostshard-finetune-gpt2, and of its --config file: the same names.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "examples/gpt2/optimizer_options.h"
#include "fsdp/mesh.h"

namespace ghostshard::gpt2 {

struct Options {
  // What to train.
  std::string model;         // Hugging Face folder
  std::string model_config;  // config.json of a model with fresh weights
  std::string data;
  std::string eval_data;  // declared public
  std::string output;
  bool untied = false;
  std::vector<std::string> freeze;
  int64_t lora_rank = 0;
  std::optional<double> lora_alpha;
  std::vector<std::string> lora_targets{"attn.c_attn"};

  // The budget.
  std::optional<double> target_epsilon;
  std::optional<double> noise_multiplier;
  std::optional<double> delta;
  double clip_norm = 1.0;
  std::string clipping = "flat";  // examples/gpt2/clipping.h, as those below
  std::optional<double> clip_quantile, clip_rate, count_noise, min_clip_norm, max_clip_norm;
  int64_t noise_bands = 1;  // examples/gpt2/noise_bands.h, as the next two
  int64_t noise_chain = 1;
  int64_t noise_blt = 0;
  bool offload_noise = false;
  std::string sampling = "poisson";  // examples/gpt2/sampling.h
  std::string max_batch;             // examples/gpt2/max_batch.h
  int64_t expected_batch = 0;
  std::optional<int64_t> steps;
  std::optional<double> epochs;
  std::string noise_key_file;
  std::string public_note;
  std::string budget_register;
  std::optional<double> budget_limit;
  std::string tuning_note;
  bool non_private = false;
  bool allow_nonprivate_metrics = false;

  // How to train.
  int64_t microbatch = 16;
  bool activation_checkpointing = false;
  std::string compute_dtype = "float32";
  std::string gather_dtype = "compute";
  std::string master_dtype = "float32";
  std::string memory_budget;  // dp/planning/memory_budget.h
  std::string explain_plan;   // plan, all, or empty
  OptimizerOptions optimizer;
  std::string optimizer_groups_file;
  std::vector<OptimizerGroup> optimizer_groups;  // of that file, in its order
  bool offload_optimizer = false;
  double learning_rate = 1e-3;
  std::string lr_schedule = "constant";
  int64_t warmup_steps = 0;
  double min_learning_rate = 0.0;
  uint64_t seed = 0;
  int64_t eval_every = 0;
  std::optional<std::string> sample_tokens;  // of a public prompt
  int64_t sample_every = 0;
  int64_t timeout_seconds = 600;
  std::optional<fsdp::MeshShape> mesh;  // default: all ranks on the shard axis
  at::Device device = at::kCPU;         // CUDA without an index: each rank its own (fsdp/mesh.h)

  // Checkpoints and resuming.
  std::optional<int64_t> checkpoint_every;  // 0: only when stopped by a signal; default: see setup.cpp
  int64_t keep_checkpoints = 2;
  bool resume = false;
  std::optional<double> epsilon_limit;

  // Generation instead of training.
  std::optional<std::string> generate_tokens;
  int64_t max_new_tokens = 64;
  double temperature = 0.8;
  int64_t top_k = 40;

  std::string commit;  // that the program was built from, if it is known

  // Every option of the command line by name with its value as text (defaults too). A resumed run is compared by these.
  std::map<std::string, std::string> given;
};

// cpu, cuda or cuda:N; std::invalid_argument with a sentence for anything else.
at::Device device_of(const std::string& text);

// Throws std::invalid_argument with one sentence for any mistake. Returns nothing if --help or --version was asked for
// and answered.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace ghostshard::gpt2
