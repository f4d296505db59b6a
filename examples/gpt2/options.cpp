#include "examples/gpt2/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "accountant/did_you_mean.h"
#include "dp/planning/memory_budget.h"
#include "examples/gpt2/clipping.h"
#include "examples/gpt2/flags_file.h"
#include "examples/gpt2/max_batch.h"
#include "examples/gpt2/noise_bands.h"
#include "examples/gpt2/optimizer_groups.h"
#include "examples/gpt2/option_rules.h"
#include "examples/gpt2/sampling.h"
#include "examples/gpt2/typed_words.h"
#include "fsdp/failure.h"
#include "fsdp/regular_file.h"

namespace ghostshard::gpt2 {
namespace {

const CLI::Validator kWholeNumber(
    [](std::string& text) -> std::string {
      const bool digits = text.find_first_not_of("0123456789") == std::string::npos;  // an empty one: check_values
      return digits && text.size() <= 18 ? "" : "must be a whole number from 0 to 10^18, got " + text;
    },
    "", "whole number");

const CLI::Validator kMemoryBudget(
    [](std::string& text) -> std::string {
      try {
        dp::MemoryBudget::parse(text);
        return "";
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
    },
    "", "memory budget");

const CLI::Validator kOptimizer(
    [](std::string& text) -> std::string {
      const auto names = optimizer_names();
      if (std::find(names.begin(), names.end(), text) != names.end()) return "";
      std::string all;
      for (const std::string& name : names) all += (all.empty() ? "" : ",") + name;
      const std::string near = accountant::nearest_name(text, names);
      return text + " not in {" + all + "}" + (near.empty() ? "" : "; did you mean " + near + "?");
    },
    "", "optimizer");

fsdp::MeshShape mesh_of(const std::string& text) {
  try {
    return fsdp::MeshShape::parse(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("--mesh: ") + error.what());
  }
}

CLI::Option_group* add_what_to_train(CLI::App& app, Options& o) {
  auto* group = app.add_option_group("What to train");
  group->add_option("--model", o.model, "Hugging Face folder with config.json and model.safetensors");
  group->add_option("--model-config", o.model_config, "A config.json: start from fresh weights (see --seed)");
  group->add_option("--data", o.data, "Texts to train on, written by `ghostshard data prepare`");
  group->add_option("--eval-data", o.eval_data, "Texts you declare public; their loss is shown and written");
  group->add_option("--output", o.output, "New folder for report, metrics, ledger, checkpoints and model");
  group->add_flag("--untied", o.untied, "Train the head apart from the token embedding (starts as its copy)");
  group->add_option("--freeze", o.freeze,
                    "Keep parameters fixed: glob over their names, e.g. 'transformer.w*'; repeatable");
  group->add_option("--lora-rank", o.lora_rank, "Train low-rank adapters of this rank and nothing else (0: none)")
      ->check(kWholeNumber)
      ->capture_default_str();
  group->add_option("--lora-alpha", o.lora_alpha, "Adapters count alpha/rank times (default: the rank)");
  group
      ->add_option("--lora-targets", o.lora_targets,
                   "Projections that get adapters: globs over attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj")
      ->delimiter(',')
      ->capture_default_str();
  return group;
}

CLI::Option_group* add_budget(CLI::App& app, Options& o) {
  auto* group = app.add_option_group("The privacy budget");
  group->add_option("--target-epsilon", o.target_epsilon, "Spend at most this epsilon: the noise follows from it");
  group->add_option("--noise-multiplier", o.noise_multiplier,
                    "Or give sigma: noise per coordinate is sigma x clip norm");
  group->add_option("--delta", o.delta, "Default: min(1e-6, n^-1.1) for n texts");
  add_clipping(group, o);
  group->add_option("--expected-batch", o.expected_batch, "Mean texts per step; each is drawn with probability this/n");
  group->add_option("--steps", o.steps, "Optimizer steps")->check(kWholeNumber);
  group->add_option("--epochs", o.epochs, "Or expected passes over the data");
  group->add_option("--noise-key-file", o.noise_key_file,
                    "32 secret bytes, mode 0600 (default: drawn by the system, never stored)");
  group->add_option(
      "--budget-register", o.budget_register,
      "A file in which all runs on these texts add up; made if it is not there, with a secret key beside it");
  group->add_option("--budget-limit", o.budget_limit,
                    "Epsilon of all runs in the register on these texts together; their first run must give it");
  group->add_option("--public-note", o.public_note,
                    "Public data that the starting weights have seen; goes into the report");
  group->add_option("--tuning-note", o.tuning_note, "How these flags were chosen; goes into the report");
  group->add_flag("--allow-nonprivate-metrics", o.allow_nonprivate_metrics,
                  "Write losses, batch sizes, times and memory of private steps: NOT covered by the guarantee");
  group->add_flag("--non-private", o.non_private, "The same loop without clipping and noise, to compare; no guarantee");
  return group;
}

void add_memory(CLI::Option_group* group, Options& o) {
  group->add_option("--microbatch", o.microbatch, "Texts at a time on each rank")->capture_default_str();
  group->add_flag("--activation-checkpointing", o.activation_checkpointing,
                  "Keep only each block's input and compute the block again in backward: less memory, more time");
  group
      ->add_option(
          "--memory-budget", o.memory_budget,
          "What a rank may take for weights, optimizer, sums and one microbatch, beside the program itself: MiB, "
          "or 1.05x for 1.05 times the same step without privacy (default: the fastest plan that the machine has "
          "room for, up to 1.5x)")
      ->check(kMemoryBudget);
  group
      ->add_flag(
          "--explain-plan{plan}", o.explain_plan,
          "Print what each block keeps, records and sends, and why, before the first step; --explain-plan=all: the "
          "plans for all budgets too")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, std::string>{{"plan", "plan"}, {"all", "all"}, {"true", "plan"}, {"false", ""}}));
  group
      ->add_option(
          "--compute-dtype", o.compute_dtype,
          "float32 or bfloat16: of gathered weights and activations; sums and, but for --master-dtype, master weights "
          "stay float32")
      ->capture_default_str()
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  group
      ->add_option("--gather-dtype", o.gather_dtype,
                   "compute: weights travel between ranks in --compute-dtype; int8, float8: matrices in a byte each, "
                   "with a scale for 256 of them. Layers compute with the values that travel; master weights, sums and "
                   "saved files stay float32")
      ->capture_default_str()
      ->check(CLI::IsMember({"compute", "int8", "float8"}));
  group
      ->add_option("--master-dtype", o.master_dtype,
                   "float32, or bfloat16: weights take 2 bytes on their rank instead of 4, or 6 with --compute-dtype "
                   "bfloat16, which it needs; each step rounds them at random without bias")
      ->capture_default_str()
      ->check(CLI::IsMember({"float32", "bfloat16"}));
}

void add_optimizer(CLI::Option_group* group, Options& o) {
  group
      ->add_option("--optimizer", o.optimizer.name,
                   "adamw; adamw8bit, adamw16bit: its moments in 2 or 4 bytes a parameter instead of 8; muon, shampoo, "
                   "soap: orthogonal "
                   "or whitened steps for the layers' matrices, adamw for the rest; sgd")
      ->capture_default_str()
      ->check(kOptimizer);
  group->add_option("--optimizer-groups", o.optimizer_groups_file,
                    "A TOML file that gives some parameters an optimizer, a learning rate or a weight decay of their "
                    "own: [[group]] tables with name, match = [globs over names] and options called as these flags");
  group->add_option(
      "--second-moment-floor", o.optimizer.second_moment_floor,
      "With adamw, adamw8bit or adamw16bit: take the noise's known variance out of the second moment, but leave this "
      "share of it, e.g. 0.1");
  group->add_flag("--muon-heads", o.optimizer.muon_heads,
                  "With muon: each head's queries, keys and values by themselves");
  group->add_option(
      "--muon-noise", o.optimizer.muon_noise,
      "With muon, keep (default): every direction of a matrix becomes as long as the others; drop: none "
      "that the noise alone could have; correct: the same, and longer by what noise takes off on average");
  group->add_option("--tile-side", o.optimizer.tile_side, "With shampoo or soap: the most rows and columns of a tile")
      ->check(kWholeNumber)
      ->default_str("128");
  group
      ->add_option("--refresh-every", o.optimizer.refresh_every,
                   "With shampoo or soap: steps between roots or eigenvectors")
      ->check(kWholeNumber)
      ->default_str("20");
  group
      ->add_option("--factor-decay", o.optimizer.factor_decay, "With shampoo or soap: of the averages of their factors")
      ->default_str("0.999");
  group->add_flag(
      "--offload-optimizer", o.offload_optimizer,
      "With --device cuda: keep the optimizer's moments in host memory and update the weights there; 8 bytes "
      "a parameter less on the device with adamw, for 12 that are copied each step");
  group->add_option("--learning-rate", o.learning_rate, "The highest, see --lr-schedule")->capture_default_str();
  group->add_option("--lr-schedule", o.lr_schedule, "constant, linear or cosine: how the rate falls after the warm-up")
      ->capture_default_str()
      ->check(CLI::IsMember({"constant", "linear", "cosine"}));
  group->add_option("--warmup-steps", o.warmup_steps, "Steps over which the rate climbs to its highest")
      ->check(kWholeNumber)
      ->capture_default_str();
  group->add_option("--min-learning-rate", o.min_learning_rate, "The rate at the end of a falling schedule")
      ->capture_default_str();
  group->add_option("--weight-decay", o.optimizer.weight_decay, "Decoupled, on matrices")->capture_default_str();
  group->add_option("--momentum", o.optimizer.momentum, "For sgd, and for muon (default 0.95)")->default_str("0");
  group->add_option("--seed", o.seed, "Fresh weights and generated text only: neither noise nor sampling follow it")
      ->check(kWholeNumber)
      ->capture_default_str();
  group->add_option("--eval-every", o.eval_every, "Steps between losses on --eval-data (0: about ten in a run)")
      ->capture_default_str();
  group->add_option("--sample-tokens", o.sample_tokens,
                    "Continue these token ids of a public prompt now and then, into samples.jsonl; as text: "
                    "`ghostshard finetune --sample-prompt TEXT --tokenizer DIR|gpt2`");
  group->add_option("--sample-every", o.sample_every, "Steps between samples (0: about ten in a run)")
      ->check(kWholeNumber)
      ->capture_default_str();
}

void add_ranks(CLI::Option_group* group, Options& o, std::string& mesh, std::string& device) {
  group->add_option("--mesh", mesh,
                    "REPLICATExSHARDxMODEL ranks, e.g. 1x2x2 (default: all on the shard axis); MODEL cuts every layer");
  group
      ->add_option("--device", device,
                   "cpu; cuda: each rank the device of its LOCAL_RANK; or cuda:N. For training alone")
      ->capture_default_str();
  group->add_option("--timeout", o.timeout_seconds, "Seconds after which a silent rank ends the run")
      ->capture_default_str();
}

CLI::Option_group* add_resuming(CLI::App& app, Options& o) {
  auto* group = app.add_option_group("Stopping and resuming (SIGTERM and Ctrl-C end in a checkpoint, exit code 3)");
  group
      ->add_option("--checkpoint-every", o.checkpoint_every,
                   "Steps between checkpoints (0: only when stopped; default: 100, with --non-private 0)")
      ->check(kWholeNumber);
  group->add_option("--keep-checkpoints", o.keep_checkpoints, "How many of the newest to keep")
      ->check(kWholeNumber)
      ->capture_default_str();
  group->add_flag("--resume", o.resume, "Go on with the run in --output: the same flags, and its key file if any");
  group->add_option(
      "--epsilon-limit", o.epsilon_limit,
      "With --resume: end before epsilon exceeds this instead of the target. A higher one lets steps that "
      "are repeated push epsilon beyond the target, a lower one ends the run earlier; one below what is "
      "spent is refused");
  return group;
}

CLI::Option_group* add_generation(CLI::App& app, Options& o) {
  auto* group = app.add_option_group("Generating text");
  group->add_option("--generate-tokens", o.generate_tokens,
                    "Continue these token ids with --model and stop: \"464,3290\" (an empty text: its end token). "
                    "`ghostshard generate` does it with text");
  group->add_option("--max-new-tokens", o.max_new_tokens, "How many tokens at most")->capture_default_str();
  group->add_option("--temperature", o.temperature, "0: always the likeliest token")->capture_default_str();
  group->add_option("--top-k", o.top_k, "Choose among the k likeliest (0: all)")->capture_default_str();
  return group;
}

// What is wrong with a file of flags; CLI11 would wait for a pipe. It finds out itself whether there is one.
std::string unreadable(std::string& path) {
  try {
    if (!std::filesystem::exists(path)) return "";
    (void)fsdp::read_text(path);
    return "";
  } catch (const std::exception&) {
    return fsdp::current_failure().sentence;
  }
}

}  // namespace

at::Device device_of(const std::string& text) {
  const std::string cuda = "cuda";
  if (text == "cpu") return at::kCPU;
  if (text == cuda) return at::kCUDA;
  const std::string index = text.starts_with(cuda + ":") ? text.substr(cuda.size() + 1) : "";
  const bool digits = !index.empty() && index.size() <= 2 && index.find_first_not_of("0123456789") == std::string::npos;
  if (!digits)
    throw std::invalid_argument("--device must be cpu, cuda (each rank the device of its LOCAL_RANK) or cuda:N, got '" +
                                text + "'");
  return {at::kCUDA, static_cast<c10::DeviceIndex>(std::stoi(index))};
}

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options o;
  std::string mesh, device = "cpu";
  CLI::App app{
      "Fine-tunes GPT-2 with differential privacy, on one process or on several: `ghostshard finetune -n 2`\n"
      "starts two on this machine, `torchrun --no-python ghostshard finetune` those of several machines.\n"
      "Each text of --data (or each user, as it was prepared) is one privacy unit. The files in --output are "
      "covered by the guarantee in\n"
      "privacy_report.json; losses and batch sizes of the private data are never shown unless you allow it.\n\n"
      "  ghostshard finetune -n 2 --model gpt2-folder --data private.safetensors --eval-data public.safetensors \\\n"
      "      --output run1 --target-epsilon 8 --expected-batch 512 --epochs 3\n"};
  app.get_formatter()->column_width(36);
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.config_formatter(std::make_shared<FlagsFile>(app));
  app.set_config("--config", "", "Read any of these flags from a TOML or INI file, without the dashes")
      ->check(CLI::Validator(unreadable, ""));
  app.set_version_flag("--version", "ghostshard-finetune-gpt2 0.1.0");

  auto* how = app.add_option_group("How to train");
  const std::vector<CLI::Option_group*> groups = {add_what_to_train(app, o), add_budget(app, o), how,
                                                  add_resuming(app, o), add_generation(app, o)};
  add_noise_bands(groups[1], o);
  add_sampling(groups[1], o);
  add_max_batch(groups[1], o);
  add_memory(how, o);
  add_optimizer(how, o);
  add_ranks(how, o, mesh, device);

  check_values(app, groups);
  refuse_empty_words(app, groups, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& answered) {
    app.exit(answered);
    return std::nullopt;
  } catch (const CLI::ConfigError& error) {
    throw std::invalid_argument(mistake_in_file(app.get_config_ptr()->as<std::string>(), error, groups) +
                                " (see --help)");
  } catch (const CLI::ParseError& error) {
    throw std::invalid_argument(mistake_in_words(error, app, groups) + " (see --help)");
  }
  if (!mesh.empty()) o.mesh = mesh_of(mesh);
  o.device = device_of(device);
  o.given = values_of(groups);
  if (!o.optimizer_groups_file.empty() && !o.generate_tokens) {
    o.optimizer_groups = read_optimizer_groups(o.optimizer_groups_file, o);
  }
  check_options(o);
  return o;
}

}  // namespace ghostshard::gpt2
