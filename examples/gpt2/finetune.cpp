#include "examples/gpt2/finetune.h"

#include <algorithm>
#include <iostream>
#include <iterator>

#include "accountant/report.h"
#include "dp/run/resume.h"
#include "examples/gpt2/parts.h"
#include "examples/gpt2/summary.h"
#include "examples/gpt2/training.h"
#include "fsdp/agree.h"

namespace ghostshard::gpt2 {
namespace {

// A run that has all it needs, before anything is written.
struct Prepared {
  std::optional<Inputs> in;
  std::optional<Gpt2> model;
  PlannedStep step;
  dp::StepCosts costs;
  std::unique_ptr<fsdp::Optimizer> optimizer;
  std::optional<fsdp::Checkpoint> checkpoint;  // the one to go on from
  std::vector<dp::Part> parts;
  Extent extent;                               // rank 0, of a resumed run
  Course course;
};

void build_model(Prepared& run, const Options& o, fsdp::Mesh& mesh) {
  const Inputs& in = *run.in;
  auto options = model_options(o);
  run.step = planned_step(o, in, options, mesh, run.costs);
  options.residency = residency_of(run.step.plan);
  Gpt2& model = run.model.emplace(mesh, in.config, o.freeze, options);
  // The checkpoint of a run with adapters holds the frozen base too.
  if (!run.checkpoint) {
    in.folder ? load_weights(model, *in.folder) : initialize(model, o.seed);
    if (in.folder) initialize_adapters(model.parameters(), o.seed);
  }
  run.optimizer = make_optimizer(o, model.parameters());
}

// For rank 0.
void check_same_run(const Prepared& run, const Options& o, const Resumption& resumed) {
  try {
    if (!run.in->plan) {
      // A run without privacy has no ledger: until its first checkpoint there is nothing that it goes on with.
      if (run.checkpoint) dp::check_binding(run.checkpoint->about, run.parts, nullptr);
      return;
    }
    std::optional<dp::RunKey> first_key;
    if (!o.noise_key_file.empty()) first_key = dp::recall_key(o.noise_key_file, resumed.ledger);
    dp::check_binding(resumed.ledger.header, run.parts, first_key ? &*first_key : nullptr);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("--resume: ") + error.what());
  }
}

// A mistake that only one rank can see ends all of them, with its message and before anything is written. A collective.
void prepare(Prepared& run, const Options& o, fsdp::Mesh& mesh, const std::optional<Resumption>& resumed) {
  const bool first_rank = mesh.rank() == 0;
  run.costs = costs_of_run(mesh, o.output, model_options(o).compute_dtype);
  fsdp::agree(mesh, [&] {
    run.in.emplace(read_inputs(o, mesh.rank(), resumed));
    run.course.last = run.in->steps;
    if (resumed && !resumed->checkpoint.empty()) run.checkpoint = fsdp::read_checkpoint(resumed->checkpoint);
    std::ranges::copy(parts_of_inputs(o, *run.in), std::back_inserter(run.parts));
    if (first_rank && resumed) {
      check_same_run(run, o, *resumed);
      run.extent = extent_of(o, *run.in, *resumed);
    }
    build_model(run, o, mesh);
  });
  dp::agree_on(mesh, run.parts);
}

// Creates or takes over the run's folder: from here on there is a ledger. For rank 0.
std::optional<accountant::LedgerWriter> begin_folder(Prepared& run, const Options& o, const fsdp::Mesh& mesh,
                                                     const std::optional<Resumption>& resumed) {
  const Inputs& in = *run.in;
  const std::filesystem::path output(o.output);
  std::filesystem::create_directories(output);
  keep_costs(mesh, output, run.costs);
  std::optional<accountant::LedgerWriter> ledger;
  if (!resumed) {
    if (in.plan) ledger = create_ledger(o, in, *run.model, run.parts);
    return ledger;
  }
  if (in.plan) ledger = reopen_ledger(o, *resumed);
  run.course.kept = prepare_folder(output, run.course.first);
  if (ledger && run.course.first < run.course.last) ledger->begin_epoch(run.course.first, in.key->run_id_hex(), in.key->public_facts());
  return ledger;
}

// Writes the report and prints its summary. For rank 0 of a private run.
void finish_report(const Prepared& run, const std::filesystem::path& output, const std::optional<Resumption>& resumed) {
  // The other facts are in the ledger's header since before the first step.
  auto facts = nlohmann::json::object();
  if (resumed) add_resumption(facts, run.course.first, run.course.last, run.in->steps);
  const auto report =
      accountant::build_report(accountant::read_ledger(output / "ledger.jsonl"), run.in->plan->delta(), facts);
  accountant::write_report(output, report);
  std::cout << accountant::summarize_report(report) << '\n';
}

// Trains, then writes and prints the results. A collective.
Ending train(Prepared& run, const Options& o, fsdp::Mesh& mesh, StopSignal& stop,
             const std::optional<Resumption>& resumed, std::optional<accountant::LedgerWriter>& ledger) {
  const Inputs& in = *run.in;
  Gpt2& model = *run.model;
  const bool first_rank = mesh.rank() == 0;
  accountant::LedgerWriter* const written = ledger ? &*ledger : nullptr;
  Observer observer(o, in, model, run.course);
  std::optional<dp::PrivateOptimizer> private_optimizer;
  if (in.plan) private_optimizer.emplace(std::move(run.optimizer));
  fsdp::OptimizerState& state = in.plan ? private_optimizer->state() : *run.optimizer;
  const nlohmann::json about = {{"binding", dp::binding_header(run.parts, dp::RunKey::generate())}};
  Checkpointing checkpoints(o, model.parameters(), state, written, about,
                            run.checkpoint ? std::optional(run.checkpoint->step) : std::nullopt);
  const Keeper keeper(stop, checkpoints, mesh);
  const Training training{o, in, run.course, model, observer, keeper};
  stop.begin_graceful();
  // NOLINTNEXTLINE(bugprone-use-after-move): without a plan the optimizer was not moved
  const Ending ending = in.plan ? train_privately(training, run.step, written, *private_optimizer)
                                : train_without_privacy(training, *run.optimizer);
  if (ending == Ending::kStopped) {
    if (first_rank) summarize_stop(in, checkpoints);
    mesh.control().barrier();
    return ending;
  }
  const std::filesystem::path output(o.output);
  if (in.plan && first_rank) finish_report(run, output, resumed);
  save_folder(model, in.original_config, o.model, output / "model");
  save_adapters(model, o.model, output / "adapter");
  mesh.control().barrier();
  if (first_rank) summarize(o, in, run.course, observer, ledger);
  return ending;
}

}  // namespace

Ending finetune(const Options& o, fsdp::Mesh& mesh, StopSignal& stop) {
  const bool first_rank = mesh.rank() == 0;
  Prepared run;
  run.parts = parts_of_options(o);
  dp::agree_on(mesh, run.parts);  // first of all: which collectives follow depends on the options
  const std::optional<Resumption> resumed = find_resumption(o, mesh);
  prepare(run, o, mesh, resumed);
  if (resumed && settle_course(run.course, *resumed, run.extent, mesh)) {
    if (first_rank) std::cout << "This run is done: " << o.output << " holds its model and its report\n";
    mesh.control().barrier();
    return Ending::kDone;
  }
  if (run.checkpoint) fsdp::load_checkpoint(run.model->parameters(), *run.optimizer, *run.checkpoint);
  if (run.in->key) run.in->key->share(mesh);
  std::optional<accountant::LedgerWriter> ledger;
  fsdp::agree(mesh, [&] {
    if (first_rank) ledger = begin_folder(run, o, mesh, resumed);
  });
  if (first_rank) announce(o, *run.in, *run.model);
  if (first_rank && o.explain_plan) {
    std::cerr << dp::explain(run.step.plan, run.step.blocks, run.step.shape, budget_bytes(o));
  }
  if (first_rank && resumed) announce_resumption(*run.in, *resumed, run.course.last);
  return train(run, o, mesh, stop, resumed, ledger);
}

}  // namespace ghostshard::gpt2
