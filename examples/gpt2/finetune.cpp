#include "examples/gpt2/finetune.h"

#include <algorithm>
#include <iostream>

#include "accountant/report.h"
#include "accountant/standard_streams.h"
#include "dp/run/plain_run.h"
#include "dp/run/private_run.h"
#include "examples/gpt2/optimizers.h"
#include "examples/gpt2/parts.h"
#include "examples/gpt2/run_folder.h"
#include "examples/gpt2/summary.h"
#include "fsdp/agree.h"

namespace ghostshard::gpt2 {
namespace {

// All that a run is made of, before anything is written.
struct Prepared {
  std::optional<Inputs> in;
  std::optional<Gpt2> model;
  PlannedStep step;
  dp::StepCosts costs;
  std::vector<dp::Part> parts;
};

void build_model(Prepared& run, const Options& o, fsdp::Mesh& mesh) {
  const Inputs& in = *run.in;
  auto options = model_options(o);
  options.granule = granules_of(*in.rules, [&](const Granules& granules) {
    auto tried = options;
    tried.granule = granules;
    return std::make_unique<fsdp::ModelLayout>(mesh, block_specs(in.config, o.freeze, tried),
                                               options.gather_code.get());
  });
  run.step = planned_step(o, in, options, mesh, run.costs);
  options.residency = residency_of(run.step.plan);
  Gpt2& model = run.model.emplace(mesh, in.config, o.freeze, options);
  in.folder ? load_weights(model, *in.folder) : initialize(model, o.seed);
  if (in.folder) initialize_adapters(model.parameters(), o.seed);
}

// A mistake that only one rank can see ends all of them, with its message and before anything is written. A collective.
void prepare(Prepared& run, const Options& o, fsdp::Mesh& mesh) {
  run.parts = parts_of_options(o);
  dp::agree_on(mesh, run.parts);  // first of all: which collectives follow depends on the options
  run.costs = costs_of_run(mesh, o.output, model_options(o).compute_dtype, o.resume);
  fsdp::agree(mesh, [&] {
    run.in.emplace(read_inputs(o));
    const auto contents = parts_of_inputs(o, *run.in);
    run.parts.insert(run.parts.end(), contents.begin(), contents.end());
    build_model(run, o, mesh);
  });
}

// Those that are kept, and the one that is written before the oldest of them is removed.
int64_t most_checkpoints(const Options& o, int64_t steps) {
  const int64_t every = checkpoint_every(o);
  return every == 0 ? 0 : std::min(o.keep_checkpoints + 1, (steps + every - 1) / every);
}

dp::FolderOptions folder_options(const Options& o, dp::StopSignal& stop) {
  return {
      .folder = o.output,
      .resume = o.resume,
      .checkpoint_every = checkpoint_every(o),
      .keep_checkpoints = o.keep_checkpoints,
      .stop = &stop,
      .warn = [](const std::string& sentence) { std::cerr << "warning: " << accountant::one_line(sentence) << '\n'; }};
}

dp::RunOptions run_options(Prepared& run, const Options& o, dp::StopSignal& stop, bool has_model) {
  dp::RunOptions options{folder_options(o, stop)};
  options.noise_key_file = o.noise_key_file;
  if (o.epsilon_limit) options.epsilon_limit = accountant::Epsilon(*o.epsilon_limit);
  if (!o.budget_register.empty()) {
    auto& entry = options.budget_register.emplace(
        dp::BudgetRegisterOptions{.file = o.budget_register, .data_digest = digest_of_texts(run.parts)});
    if (o.budget_limit) entry.limit = accountant::Epsilon(*o.budget_limit);
  }
  options.recording = clipper_options(run.step, run.model->parameters());
  options.parts = run.parts;
  options.facts = report_facts(o, *run.in);
  options.nonprivate_metrics = o.allow_nonprivate_metrics;
  options.has_outputs = has_model;
  return options;
}

std::optional<double> epsilon_of(const dp::PrivateRun& run) { return run.epsilon(); }
std::optional<double> epsilon_of(const dp::PlainRun& /*run*/) { return std::nullopt; }

// With or without privacy. A collective.
template <class Run>
void train(Run& run, const Options& o, const Inputs& in, Gpt2& model, Observer& observer) {
  const auto write_metrics = [&] {
    const auto epsilon = epsilon_of(run);
    run.write_metrics(observer.after(run.course().done(), epsilon, run.batch_facts()));
  };
  if (run.needs_metrics()) write_metrics();
  while (auto step = run.next()) {
    {
      const auto resident = model.resident();
      step->add(in.data->row_counts(), o.microbatch, [&](std::span<const int64_t> units, const dp::RecorderPtr& r) {
        return model.summed_unit_losses(in.data->batch(units), r);
      });
    }
    step->update(in.rate.at(step->number()));
    write_metrics();
  }
  observer.finish_line();
}

// On every rank, what only rank 0 sees: a model is in the folder. A collective.
bool model_is_there(const Options& o, fsdp::Mesh& mesh) {
  const bool there = mesh.rank() == 0 && std::filesystem::exists(model_file(o));
  return !fsdp::broadcast_text(mesh, there ? "there" : "").empty();
}

// private_run: none without privacy. A collective.
template <class Run>
Ending train_and_save(Run& run, const dp::PrivateRun* private_run, Prepared& prepared, const Options& o,
                      dp::StopSignal& stop) {
  const Inputs& in = *prepared.in;
  Gpt2& model = *prepared.model;
  fsdp::Mesh& mesh = model.parameters().mesh();
  const bool first_rank = mesh.rank() == 0;
  keep_costs(mesh, o.output, prepared.step);
  if (first_rank) {
    std::filesystem::remove(model_file(o));  // an earlier session's
    announce(o, in, model, private_run);
    const auto& [blocks, shape, plan] = prepared.step;
    const auto budget = dp::MemoryBudget::parse(o.memory_budget);
    std::cerr << dp::explain_forced_price(plan, blocks, shape, budget);
    if (!o.explain_plan.empty()) {
      std::cerr << dp::explain(plan, blocks, shape, budget);
      if (o.explain_plan == "all") std::cerr << dp::explain_front(blocks, shape);
    }
    if (run.resumed()) announce_resumption(*run.resumed(), run.course(), private_run);
  }
  Observer observer(o, in, model, run.course());
  stop.begin_graceful();
  train(run, o, in, model, observer);
  if (run.course().stopped()) {
    if (first_rank) summarize_stop(run.course(), private_run);
    mesh.control().barrier();
    return Ending::kStopped;
  }
  if constexpr (std::is_same_v<Run, dp::PrivateRun>) {
    const auto report = run.finish();
    if (first_rank) std::cout << accountant::summarize_report(report) << '\n';
  }
  save_adapters(model, o.model, std::filesystem::path(o.output) / "adapter");
  save_folder(model, in.original_config, o.model, model_file(o).parent_path());  // last: where it is, all is there
  mesh.control().barrier();
  if (first_rank) summarize(o, run.course(), observer, private_run);
  return Ending::kDone;
}

Ending say_done(const Options& o, fsdp::Mesh& mesh) {
  if (mesh.rank() == 0)
    std::cout << "This run is done: " << accountant::one_line(o.output) << " holds its model and its report\n";
  mesh.control().barrier();
  return Ending::kDone;
}

}  // namespace

Ending finetune(const Options& o, fsdp::Mesh& mesh, dp::StopSignal& stop) {
  Prepared prepared;
  prepare(prepared, o, mesh);
  fsdp::ShardedModel& parameters = prepared.model->parameters();
  auto optimizer = make_optimizer(o, *prepared.in->rules, prepared.in->config, parameters);
  fsdp::agree(mesh, [&] {
    if (mesh.rank() != 0 || o.resume) return;
    check_output_can_hold(o.output, parameters, *optimizer, most_checkpoints(o, prepared.in->steps));
  });
  const bool has_model = model_is_there(o, mesh);
  if (o.non_private) {
    const dp::PlainConfig config{.units = prepared.in->data->units(),
                                 .expected_batch = o.expected_batch,
                                 .steps = prepared.in->steps,
                                 .seed = o.seed};
    dp::PlainRun run(parameters, std::move(optimizer), config, folder_options(o, stop), prepared.parts,
                     o.allow_nonprivate_metrics);
    if (has_model && run.course().done() == prepared.in->steps) return say_done(o, mesh);
    return train_and_save(run, nullptr, prepared, o, stop);
  }
  auto run = dp::PrivateRun::begin(parameters, std::move(optimizer), *prepared.in->budget,
                                   run_options(prepared, o, stop, has_model));
  if (has_model && run.was_finished()) return say_done(o, mesh);
  return train_and_save(run, &run, prepared, o, stop);
}

}  // namespace ghostshard::gpt2
