#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "dp/run/build_id.h"
#include "dp/run/digest.h"
#include "dp/run/private_run_state.h"
#include "dp/run/report_facts.h"
#include "fsdp/agree.h"

namespace ghostshard::dp {
namespace {

using Binds = Part::Binds;

std::string layout_of(const fsdp::ShardedModel& model) {
  Digest digest;
  for (const auto& parameter : model.parameters()) {
    digest.add(parameter->name());
    for (const int64_t extent : parameter->whole_shape()) digest.add(std::to_string(extent));
    digest.add(parameter->trainable() ? "trained" : "frozen");
  }
  return digest.text();
}

// How many collectives a step has depends on it.
std::string recording_of(const ClipperOptions& options) {
  Digest digest;
  digest.add(std::to_string(static_cast<int>(options.recording)));
  digest.add(std::to_string(options.hold_memory_bytes));
  for (const auto& way : options.planned_recording) {
    digest.add(way ? std::to_string(static_cast<int>(*way)) : "");
  }
  for (const bool streamed : options.streamed) digest.add(streamed ? "streamed" : "whole");
  return digest.text();
}

// Known without a collective. Which collectives follow depends on some of these.
std::vector<Part> parts_known_at_once(const RunOptions& options, const fsdp::ShardedModel& model,
                                      const fsdp::OptimizerState& optimizer) {
  std::vector<Part> parts = {
      {"the build of GhostShard", build_id()},
      {"whether the run is resumed", options.resume ? "yes" : "no"},
      {"steps between checkpoints", std::to_string(options.checkpoint_every)},
      {"the number of checkpoints kept", std::to_string(options.keep_checkpoints)},
      {"whether metrics without noise are shown", options.nonprivate_metrics ? "yes" : "no", Binds::kRun},
      {"whether the run stands in a budget register", options.budget_register ? "yes" : "", Binds::kRun},
      {"the plan of recording", recording_of(options.recording)},
      {"the model's parameters", layout_of(model), Binds::kRun},
      {"the model's compute dtype", c10::toString(model.compute_dtype()), Binds::kRun},
      {"the model's master weights", c10::toString(model.master_dtype()), Binds::kRun},
      {"the code of the model's weights on their way", model.gather_code() ? model.gather_code()->name() : "",
       Binds::kRun},
      {"the optimizer's rule", optimizer.rule(), Binds::kRun},
  };
  parts.insert(parts.end(), options.parts.begin(), options.parts.end());
  return parts;
}

void check_same_run(const RunBeginning& begun, const RunOptions& options) {
  const accountant::LedgerContents& ledger = begun.resumed->ledger;
  const std::optional<RunKey> first_key =
      options.noise_key_file.empty() ? std::nullopt : recall_key(options.noise_key_file, ledger);
  std::vector<Part> parts = begun.parts;
  // A checkpoint brings weights of its own, wherever and however the model was made this time.
  if (begun.checkpoint) {
    std::erase_if(parts, [](const Part& part) { return part.name == kStartingWeights; });
    const auto& binding = ledger.header.value("binding", nlohmann::json::object());
    const auto run = binding.value("run", nlohmann::json::object());
    parts.push_back({kStartingWeights, run.value(kStartingWeights, std::string()), Binds::kRun});
  }
  check_binding(ledger.header, parts, first_key ? &*first_key : nullptr);
}

// A limit that is given holds, also below what was promised. A given noise multiplier promises no epsilon: nothing
// without a limit of its own.
std::optional<accountant::Epsilon> limit_of(const DpPlan& plan, const RunOptions& options) {
  if (options.epsilon_limit || !plan.config().target_epsilon) return options.epsilon_limit;
  return plan.promised_epsilon();
}

// What is spent cannot be taken back: a limit below it could not be kept.
void require_limit_above_spent(const DpPlan& plan, const FoundRun& found, const RunOptions& options) {
  if (!options.epsilon_limit || found.releases == 0) return;
  const double spent = plan.epsilon_after(found.rounds, found.step, 0).upper;
  if (spent <= options.epsilon_limit->value()) return;
  char shown[32];
  std::snprintf(shown, sizeof shown, "%.4f", std::ceil(1e4 * spent) / 1e4);
  throw std::invalid_argument("--epsilon-limit must be at least what the ledger has charged already, epsilon " +
                              std::string(shown) + ", got " + nlohmann::json(options.epsilon_limit->value()).dump());
}

int64_t last_step(const DpPlan& plan, const FoundRun& found, const RunOptions& options) {
  const int64_t planned = plan.config().steps;
  const auto limit = limit_of(plan, options);
  return limit ? found.step + plan.steps_within(*limit, found.rounds, found.step, planned - found.step) : planned;
}

// For rank 0.
void settle_extent(RunBeginning& begun, const RunOptions& options) {
  const FoundRun& found = *begun.resumed;
  const DpPlan& plan = *begun.plan;
  require_limit_above_spent(plan, found, options);
  begun.extent.last = last_step(plan, found, options);
  const bool all_charged = options.has_outputs && found.steps_charged == plan.config().steps;
  begun.finished = found.reported && (all_charged || begun.extent.last == found.step);
  // An early end was in sight of what the ledger had spent, so nothing of it can be redone.
  if (begun.finished && !options.has_outputs && found.step == 0) {
    throw std::invalid_argument(
        "the run was reported, but neither its model nor a checkpoint is there, and no step can be redone within its "
        "epsilon: a higher limit (--epsilon-limit raises it) is needed, or a new run");
  }
  if (!begun.finished && begun.extent.last == 0) {  // there is a limit
    throw std::invalid_argument("no step can be redone within the promised or given epsilon of " +
                                nlohmann::json(limit_of(plan, options)->value()).dump() +
                                ", which the ledger has spent: a higher limit (--epsilon-limit raises it) is needed");
  }
  if (!begun.finished) require_writable(options.folder);
}

void check_folder_is_new(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder) && !std::filesystem::is_empty(folder)) {
    throw std::invalid_argument("the folder of a new run must be new or empty, " + folder.string() +
                                " already holds a run or other files");
  }
}

// Everything that one rank can find wrong by itself; must not communicate.
void decide(RunBeginning& begun, const DpConfig& config, const RunOptions& options, bool first_rank) {
  if (config.noise_blt.is_on() && options.budget_register) {
    throw std::invalid_argument(
        "a budget register counts steps that cost the same: noise buffers cannot be combined with one");
  }
  if (begun.resumed) {
    begun.plan = DpPlan::resume(config, begun.resumed->ledger);
    if (!begun.resumed->checkpoint.empty()) begun.checkpoint = fsdp::read_checkpoint(begun.resumed->checkpoint);
  } else {
    begun.plan = DpPlan::make(config);
  }
  if (begun.checkpoint && config.clip_quantile) {
    const auto& about = begun.checkpoint->about;
    if (!about.contains(kClipNorm) || !about.at(kClipNorm).is_number()) {
      throw std::invalid_argument("a checkpoint of a run whose clip norm adapts must hold it, " +
                                  begun.resumed->checkpoint + " does not");
    }
    begun.plan->go_on_with(accountant::ClipNorm(about.at(kClipNorm).get<double>()));
  }
  begun.extent.planned = begun.extent.last = begun.plan->config().steps;
  if (begun.resumed) begun.extent.first = begun.resumed->step;
  begun.plan->begin_session_at(begun.extent.first);
  if (begun.checkpoint) begun.extent.newest_checkpoint = begun.checkpoint->step;
  // A run id for each session: what an earlier one drew never comes again, whatever was copied.
  begun.key.emplace(first_rank && !options.noise_key_file.empty() ? RunKey::from_file(options.noise_key_file)
                                                                  : RunKey::generate());
  if (!first_rank) return;
  if (!begun.resumed) return check_folder_is_new(options.folder);
  check_same_run(begun, options);
  settle_extent(begun, options);
}

// Rank 0's decision on every rank. A collective.
void share_extent(RunBeginning& begun, fsdp::Mesh& mesh) {
  const nlohmann::json own = {{"last", begun.extent.last}, {"finished", begun.finished}};
  const auto decided = nlohmann::json::parse(fsdp::broadcast_text(mesh, own.dump()));
  begun.extent.last = decided.at("last").get<int64_t>();
  begun.finished = decided.at("finished").get<bool>();
}

// Creates or takes over the run's folder: from here on there is a ledger. For rank 0.
void open_folder(RunBeginning& begun, const RunOptions& options, const fsdp::ShardedModel& model,
                 const std::string& optimizer) {
  std::filesystem::create_directories(options.folder);
  const auto path = options.folder / "ledger.jsonl";
  if (!begun.resumed) {
    nlohmann::json header = begun.plan->ledger_header(*begun.key);
    header["binding"] = binding_header(begun.parts, *begun.key);
    header["facts"] = run_facts(*begun.plan, *begun.key, model, begun.parts, optimizer, options);
    if (begun.registered) header["facts"].merge_patch(register_facts(begun.registered->data()));
    begun.ledger = accountant::LedgerWriter::create(path, header);
    return;
  }
  begun.ledger = accountant::LedgerWriter::reopen(path);
  if (begun.ledger->head() != begun.resumed->ledger.head) {
    throw std::runtime_error(path.string() + " was changed while it was being read");
  }
  // They state what the sessions before had spent.
  for (const char* name : {"privacy_report.json", "privacy_report.html"})
    std::filesystem::remove(options.folder / name);
  if (begun.extent.first < begun.extent.last) {
    begun.ledger->begin_epoch(begun.extent.first, begun.key->run_id_hex(), begun.key->public_facts());
  }
}

// The plan of the steps that are left, beside all other runs on the data; a resumed run may end earlier for it. For
// rank 0.
void register_session(RunBeginning& begun, const RunOptions& options) {
  const std::string session = begun.key->run_id_hex();
  const std::string run = begun.resumed ? begun.resumed->ledger.header.value("run_id", session) : session;
  Extent& extent = begun.extent;
  const int64_t steps = extent.last - extent.first;
  const int64_t charges = begun.registered->begin(*options.budget_register, *begun.plan, run, session,
                                                  registered_charges_of(*begun.plan, steps),
                                                  begun.resumed ? begun.resumed->rounds.most() : 0);
  extent.last = extent.first + std::min(steps, steps_of_registered(*begun.plan, charges));
}

}  // namespace

PrivateRun PrivateRun::begin(fsdp::ShardedModel& model, std::unique_ptr<fsdp::Optimizer> optimizer,
                             const DpConfig& config, RunOptions options) {
  TORCH_CHECK_VALUE(optimizer != nullptr, "a run needs an optimizer");
  fsdp::Mesh& mesh = model.mesh();
  RunBeginning begun;
  begun.parts = parts_known_at_once(options, model, *optimizer);
  agree_on(mesh, begun.parts);
  if (options.resume) begun.resumed = find_on_all(&find_private_run, options.folder, mesh);
  begun.parts.push_back({kStartingWeights, digest_of_weights(model), Binds::kRun});
  fsdp::agree(mesh, [&] { decide(begun, config, options, mesh.rank() == 0); });
  std::vector<Part> decided = {begun.parts.back()};
  const nlohmann::json constants = begun.plan->public_constants();
  for (const auto& constant : constants.items()) {
    decided.push_back({"the plan's " + constant.key(), constant.value().dump()});
  }
  decided.push_back({"the next step's clip norm", nlohmann::json(begun.plan->clip_norm().value()).dump()});
  agree_on(mesh, decided);
  share_extent(begun, mesh);
  optimizer->set_error_variance(begun.plan->release_variance());
  // Before anything is written: a damaged checkpoint ends here.
  if (begun.checkpoint) load_or_name_an_older(model, *optimizer, *begun.checkpoint);
  if (options.budget_register && !begun.finished) {
    begun.registered.emplace();
    fsdp::agree(mesh, [&] {
      if (mesh.rank() == 0) register_session(begun, options);
    });
    share_extent(begun, mesh);
  }
  begun.key->share(mesh);
  fsdp::agree(mesh, [&] {
    if (mesh.rank() != 0 || begun.finished) return;
    try {
      open_folder(begun, options, model, optimizer->rule());
    } catch (...) {
      if (begun.registered) begun.registered->give_up();
      throw;
    }
  });
  auto state = std::make_unique<State>(model, std::move(optimizer), std::move(options), std::move(begun));
  if (!state->beginning.finished) state->course.open_metrics();
  return PrivateRun(std::move(state));
}

}  // namespace ghostshard::dp
