#include "examples/gpt2/finetune.h"

#include <sys/resource.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <optional>

#include "accountant/report.h"
#include "dp/mechanism/optimizer.h"
#include "dp/mechanism/plan.h"
#include "dp/run/nonprivate.h"
#include "examples/gpt2/checkpoint.h"
#include "examples/gpt2/checkpointing.h"
#include "examples/gpt2/evaluate.h"
#include "examples/gpt2/generate.h"
#include "examples/gpt2/progress.h"
#include "examples/gpt2/resume.h"
#include "examples/gpt2/run_folder.h"
#include "examples/gpt2/step_model.h"
#include "fsdp/agree.h"
#include "fsdp/learning_rate.h"

namespace ghostshard::gpt2 {
namespace {

// What the options name, read and checked.
struct Inputs {
  std::optional<Folder> folder;
  Config config;
  nlohmann::json original_config;
  std::optional<Dataset> data;
  std::optional<Dataset> eval;
  int64_t steps = 0;
  fsdp::LearningRateSchedule rate;
  std::optional<dp::DpPlan> plan;
  std::optional<dp::RunKey> key;
  bool new_epoch = false;  // a resumed run's key is another one than before
};

// From which step to which, and what was there before.
struct Course {
  int64_t first = 0;
  int64_t last = 0;
  dp::Attempts attempts;
  int64_t releases = 0;  // charged before
  KeptMetrics kept;      // rank 0
};

dp::RunKey noise_key(const Options& o) {
  if (!o.noise_key_file.empty()) return dp::RunKey::from_file(o.noise_key_file);
  return dp::RunKey::generate();
}

void check_public(const Dataset& texts, const std::string& path) {
  const auto declared = texts.metadata().find("declared");
  if (declared != texts.metadata().end() && declared->second == "private") {
    throw std::invalid_argument(path +
                                ": --eval-data must be public, the file was declared private when it was prepared");
  }
  if (texts.loss_tokens() == 0) {
    throw std::invalid_argument(path + ": there must be at least one token to predict, found none");
  }
}

int64_t steps_of_epochs(double epochs, int64_t units, int64_t expected_batch) {
  const double steps = std::ceil(epochs * static_cast<double>(units) / static_cast<double>(expected_batch));
  if (!(steps <= 1e12)) {
    throw std::invalid_argument("--epochs must give at most 1e12 steps, gives " + nlohmann::json(steps).dump());
  }
  return static_cast<int64_t>(steps);
}

ModelOptions model_options(const Options& o) {
  return {.lora = {.rank = o.lora_rank,
                   .alpha = o.lora_alpha.value_or(static_cast<double>(o.lora_rank)),
                   .targets = o.lora_targets},
          .activation_checkpointing = o.activation_checkpointing,
          .compute_dtype = o.compute_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat};
}

// Everything a user can get wrong. Writes nothing and does not communicate. The key is rank 0's business.
Inputs read_inputs(const Options& o, int64_t rank, const std::optional<Resumption>& resumed) {
  Inputs in;
  if (!o.model.empty()) {
    in.folder = open_folder(o.model);
    in.config = in.folder->config;
    in.original_config = in.folder->original_config;
  } else {
    in.config = read_config(o.model_config);
    std::ifstream(o.model_config) >> in.original_config;
  }
  if (o.untied) in.config.tie_word_embeddings = false;
  in.data.emplace(o.data, in.config.vocab_size, in.config.n_positions);
  if (!o.eval_data.empty()) {
    in.eval.emplace(o.eval_data, in.config.vocab_size, in.config.n_positions);
    check_public(*in.eval, o.eval_data);
  }
  const int64_t n = in.data->units();
  if (o.expected_batch > n) {
    throw std::invalid_argument("--expected-batch must be at most the number of texts in " + o.data + " (" +
                                std::to_string(n) + "), got " + std::to_string(o.expected_batch));
  }
  in.steps = o.steps ? *o.steps : steps_of_epochs(*o.epochs, n, o.expected_batch);
  if (!(o.warmup_steps < in.steps)) {
    throw std::invalid_argument("--warmup-steps must be fewer than the run's " + std::to_string(in.steps) +
                                " steps, got " + std::to_string(o.warmup_steps));
  }
  in.rate = {.peak = o.learning_rate,
             .steps = in.steps,
             .shape = fsdp::schedule_shape(o.lr_schedule),
             .warmup_steps = o.warmup_steps,
             .minimum = o.min_learning_rate};
  in.rate.check();
  if (!o.non_private) {
    dp::DpConfig config{.units = n, .expected_batch = o.expected_batch, .steps = in.steps};
    config.clip_norm = accountant::ClipNorm(o.clip_norm);
    config.clipping = o.clipping == "flat" ? dp::Clipping::kFlat : dp::Clipping::kPerLayer;
    config.unit_of_privacy = in.data->unit_of_privacy();
    if (o.target_epsilon) config.target_epsilon = accountant::Epsilon(*o.target_epsilon);
    if (o.noise_multiplier) config.noise_multiplier = accountant::NoiseMultiplier(*o.noise_multiplier);
    if (o.delta) config.delta = accountant::Delta(*o.delta);
    in.plan = resumed ? dp::DpPlan::resume(config, resumed->ledger) : dp::DpPlan::make(config);
    // The other ranks' keys are placeholders until rank 0 shares its own.
    if (resumed && rank == 0) {
      ResumedKey key = resumed_key(o, resumed->ledger);
      in.new_epoch = key.new_epoch;
      in.key.emplace(std::move(key.key));
    } else {
      in.key.emplace(rank == 0 ? noise_key(o) : dp::RunKey::generate());
    }
  }
  if (!resumed) check_output_is_new(o.output);
  return in;
}

RunFacts run_facts(const Options& o, const Inputs& in) {
  RunFacts facts{.options = binding_options(o),
                 .model_config = in.original_config,
                 .units = in.data->units(),
                 .steps = in.steps,
                 .data_tag = ""};
  // Only a key that can come again could meet another file.
  if (in.key && in.key->origin() == "key file") facts.data_tag = in.key->tag_of_file(o.data);
  return facts;
}

// Without privacy the batches may follow the seed, so that a run can be repeated.
dp::RunKey seeded_key(uint64_t seed) {
  std::array<uint8_t, 32> bytes{};
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(seed >> (8 * i));
  return dp::RunKey::from_bytes(bytes, dp::RunId{});
}

std::optional<double> budget_bytes(const Options& o) {
  return o.memory_budget_mib ? std::optional(*o.memory_budget_mib * (1 << 20)) : std::nullopt;
}

// From public numbers alone: expected batch, and the lengths of the public texts where there are any.
PlannedStep planned_step(const Options& o, const Inputs& in, const ModelOptions& options, const fsdp::Mesh& mesh,
                         const dp::StepCosts& costs) {
  PlannedStep step;
  step.shape.costs = costs;
  step.blocks = planned_blocks(in.config, block_specs(in.config, o.freeze, options), options, mesh.shape().model);
  const int64_t mine = std::max<int64_t>(1, o.expected_batch / mesh.data_size());
  step.shape.units = std::min(o.microbatch, mine);
  step.shape.microbatches = (mine + o.microbatch - 1) / o.microbatch;
  step.shape.rows_per_unit =
      in.eval ? std::max<int64_t>(1, in.eval->tokens() / in.eval->units()) : in.config.n_positions;
  step.shape.shard_ranks = mesh.shape().shard;
  step.shape.optimizer_values = o.offload_optimizer ? 0 : o.optimizer == "adamw" ? 2 : o.momentum > 0 ? 1 : 0;
  step.shape.value_bytes = options.compute_dtype == at::kFloat ? 4 : 2;
  step.shape.records = !o.non_private;
  step.plan = dp::plan_step(step.blocks, step.shape, budget_bytes(o));
  return step;
}

std::unique_ptr<fsdp::Optimizer> make_optimizer(const Options& o, fsdp::ShardedModel& parameters) {
  const auto states = o.offload_optimizer ? fsdp::StatesAt::kHost : fsdp::StatesAt::kWithModel;
  if (o.optimizer == "sgd") {
    return fsdp::make_sgd(parameters, {.momentum = o.momentum, .weight_decay = o.weight_decay}, states);
  }
  return fsdp::make_adamw(parameters, {.weight_decay = o.weight_decay}, states);
}

// Losses and batch sizes of private data, gathered only where the user allowed it.
struct PrivateMetrics {
  bool wanted = false;
  at::Tensor loss_and_units = at::zeros({2}, at::kDouble);

  void begin() { loss_and_units.zero_(); }
  void add(const at::Tensor& loss, int64_t units) {
    if (!wanted) return;
    double* values = loss_and_units.data_ptr<double>();
    values[0] += loss.item<double>();
    values[1] += static_cast<double>(units);
  }
  void fill(MetricsLine& line, fsdp::Mesh& mesh) const {
    if (!wanted) return;
    if (mesh.model_rank() != 0) loss_and_units.zero_();  // model peers saw the same texts
    if (mesh.world_size() > 1) mesh.control().all_reduce_sum(loss_and_units);
    const double* values = loss_and_units.const_data_ptr<double>();
    line.private_batch = static_cast<int64_t>(values[1]);
    if (values[1] > 0) line.private_loss = values[0] / values[1];
  }
};

// Everything that happens beside a step: evaluation, metrics.jsonl, the progress line.
class Observer {
 public:
  Observer(const Options& o, const Inputs& in, Gpt2& model, const Course& course)
      : options_(o),
        in_(in),
        model_(model),
        mesh_(model.parameters().mesh()),
        course_(course),
        progress_(in.steps, mesh_.rank() == 0, course.first) {
    every_ = o.eval_every > 0 ? o.eval_every : std::max<int64_t>(1, in.steps / 10);
    if (mesh_.rank() == 0) metrics_.emplace(std::filesystem::path(o.output) / "metrics.jsonl", o.resume);
    const KeptMetrics& kept = course.kept;
    if (kept.first_eval_loss) {
      first_ = {.loss = *kept.first_eval_loss, .standard_error = 0};
      last = {.loss = *kept.last_eval_loss, .standard_error = *kept.last_eval_standard_error};
    }
    if (in.eval) {
      tokens_per_text_ = static_cast<double>(in.eval->tokens()) / static_cast<double>(in.eval->units());
    }
    private_metrics.wanted = o.allow_nonprivate_metrics;
  }

  void after(int64_t steps_done, std::optional<double> epsilon) {
    const double session = progress_.seconds() - evaluating_;
    const int64_t steps_of_session = steps_done - course_.first;
    MetricsLine line{.step = steps_done,
                     .seconds = course_.kept.seconds + session,
                     .learning_rate = in_.rate.at(std::max<int64_t>(steps_done, 1) - 1)};
    line.epsilon = epsilon;
    if (tokens_per_text_ && steps_of_session > 0) {
      line.tokens_per_second =
          *tokens_per_text_ * static_cast<double>(options_.expected_batch * steps_of_session) / session;
    }
    if (steps_of_session > 0) private_metrics.fill(line, mesh_);
    if (in_.eval && (steps_done % every_ == 0 || steps_done == course_.last)) {
      const double before = progress_.seconds();
      const Evaluation result = evaluate(model_, *in_.eval, options_.microbatch);
      evaluating_ += progress_.seconds() - before;
      line.eval_loss = result.loss;
      line.eval_standard_error = result.standard_error;
      if (!first_) first_ = result;
      last = result;
    }
    if (metrics_) metrics_->write(line);
    if (steps_of_session > 0) {
      progress_.show({.step = steps_done, .epsilon = epsilon, .public_loss = line.eval_loss});
    }
    if (steps_done == course_.last) progress_.finish();
  }

  // The line a run begins with, unless an earlier session has written it.
  void before_first(std::optional<double> epsilon) {
    // Every rank has to evaluate or none; only rank 0 knows what the file holds.
    const at::Tensor there = at::full({1}, course_.kept.has_step ? 1 : 0, at::kLong);
    if (mesh_.world_size() > 1) mesh_.control().broadcast(there, 0);
    if (there.item<int64_t>() == 0) after(course_.first, epsilon);
  }
  void finish_line() { progress_.finish(); }

  const std::optional<Evaluation>& first() const { return first_; }
  double training_seconds() const { return progress_.seconds() - evaluating_; }

  std::optional<Evaluation> last;
  PrivateMetrics private_metrics;

 private:
  const Options& options_;
  const Inputs& in_;
  Gpt2& model_;
  fsdp::Mesh& mesh_;
  const Course& course_;
  Progress progress_;
  std::optional<MetricsFile> metrics_;
  std::optional<double> tokens_per_text_;
  std::optional<Evaluation> first_;
  int64_t every_ = 1;
  double evaluating_ = 0;
};

// One forward and one backward of a microbatch; what the recorder saw is what the step is made of.
void forward_and_backward(Gpt2& model, const TokenBatch& batch, const dp::RecorderPtr& recorder, Observer& observer) {
  const at::Tensor loss = model.summed_unit_losses(batch, recorder);
  loss.backward();
  observer.private_metrics.add(loss, batch.units());
}

// What a run does beside its steps: watch for a signal, save itself.
struct Keeper {
  StopSignal& stop;
  Checkpointing& checkpoints;
  fsdp::Mesh& mesh;

  bool stop_wanted() const {
    const at::Tensor wanted = at::full({1}, stop.requested() ? 1 : 0, at::kLong);
    if (mesh.world_size() > 1) mesh.control().all_reduce_max(wanted);
    return wanted.item<int64_t>() != 0;
  }
  // Throws fsdp::AgreedFailure where the run was to end with a checkpoint that cannot be written.
  Ending after(int64_t steps_done, const Course& course, int64_t planned_steps, Observer& observer) const {
    const bool stopping = stop_wanted() && steps_done < course.last;
    if (!stopping && !checkpoints.due(steps_done, course.last, planned_steps)) return Ending::kDone;
    const std::string reason = checkpoints.save(steps_done);
    if (stopping) observer.finish_line();
    if (reason.empty()) return stopping ? Ending::kStopped : Ending::kDone;
    const std::string newest =
        checkpoints.newest() ? "the newest one is of step " + std::to_string(*checkpoints.newest()) : "there is none";
    const std::string sentence =
        "no checkpoint of step " + std::to_string(steps_done) + " could be written (" + newest + "): " + reason;
    if (stopping) throw fsdp::AgreedFailure("stopped by a signal, but " + sentence, false);
    if (mesh.rank() == 0) std::cerr << "warning: " << sentence << "; the run goes on\n";
    return Ending::kDone;
  }
};

Ending train_privately(const Options& o, const Inputs& in, const Course& course, const PlannedStep& step_plan,
                       Gpt2& model, const dp::RunKey& key, accountant::LedgerWriter* ledger,
                       dp::PrivateOptimizer& optimizer, Observer& observer, const Keeper& keeper) {
  const dp::DpPlan& plan = *in.plan;
  fsdp::Mesh& mesh = model.parameters().mesh();
  const dp::PoissonSampler sampler = plan.sampler(key, mesh.data_rank(), mesh.data_size());
  dp::Clipper clipper = plan.clipper(model.parameters(), clipper_options(step_plan, model.parameters()));
  dp::GaussianMechanism mechanism = plan.mechanism(model.parameters(), key, ledger);
  const auto spent = plan.accountant();
  if (course.releases > 0) spent->compose(plan.event(), course.releases);

  observer.before_first(course.releases > 0 ? spent->epsilon(plan.delta()).upper : 0.0);
  for (int64_t step = course.first; step < course.last; ++step) {
    const dp::StepId id = course.attempts.of(step);
    observer.private_metrics.begin();
    dp::ClippedSum sum = clipper.begin(mechanism, id);
    {
      const auto resident = model.resident();
      for (const auto& units : sampler.draw_local(id, o.microbatch, in.data->row_counts())) {
        const TokenBatch batch = in.data->batch(units);
        const auto tape = clipper.record(batch.units());
        forward_and_backward(model, batch, tape, observer);
        if (clipper.second_pass(sum, tape)) model.summed_unit_losses(batch, tape).backward();
        clipper.add(sum, tape);
      }
    }
    optimizer.step(mechanism.release(std::move(sum), id), in.rate.at(step));
    spent->compose(plan.event(), 1);
    observer.after(step + 1, spent->epsilon(plan.delta(), accountant::Effort::kQuick).upper);
    if (keeper.after(step + 1, course, in.steps, observer) == Ending::kStopped) return Ending::kStopped;
  }
  return Ending::kDone;
}

Ending train_without_privacy(const Options& o, const Inputs& in, const Course& course, Gpt2& model,
                             fsdp::Optimizer& optimizer, Observer& observer, const Keeper& keeper) {
  fsdp::Mesh& mesh = model.parameters().mesh();
  const dp::RunKey key = seeded_key(o.seed);
  const auto sampler =
      dp::nonprivate_sampler(key, in.data->units(), o.expected_batch, mesh.data_rank(), mesh.data_size());
  dp::PlainAccumulator accumulator(model.parameters(), static_cast<double>(o.expected_batch));

  observer.before_first(std::nullopt);
  for (int64_t step = course.first; step < course.last; ++step) {
    observer.private_metrics.begin();
    accumulator.begin();
    {
      const auto resident = model.resident();
      for (const auto& units : sampler.draw_local({step}, o.microbatch, in.data->row_counts())) {
        forward_and_backward(model, in.data->batch(units), accumulator.recorder(), observer);
      }
    }
    optimizer.step(accumulator.reduce(), in.rate.at(step));
    observer.after(step + 1, std::nullopt);
    if (keeper.after(step + 1, course, in.steps, observer) == Ending::kStopped) return Ending::kStopped;
  }
  return Ending::kDone;
}

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

void announce(const Options& o, const Inputs& in, Gpt2& model) {
  const Config& c = in.config;
  std::cerr << "GPT-2: " << c.n_layer << " blocks, width " << c.n_embd << ", vocabulary " << c.vocab_size << ", "
            << model.parameters().parameter_count() << " parameters, " << model.parameters().trainable_parameter_count()
            << " trained, on " << model.parameters().mesh().world_size() << " rank(s)"
            << (o.mesh ? ", mesh " + o.mesh->text() : "") << '\n';
  const std::string unit = in.data->unit_of_privacy();
  std::cerr << "Data: ";
  if (unit != "text") std::cerr << in.data->units() << " units (" << unit << ") of ";
  std::cerr << in.data->texts() << " texts, expected batch " << o.expected_batch << ", " << in.steps << " steps\n";
  if (!in.plan) {
    std::cerr << "No privacy: --non-private trains without clipping and noise, nothing is guaranteed\n";
    return;
  }
  std::cerr << "Budget: noise multiplier " << text("%.4f", in.plan->noise_multiplier().value()) << ", clip norm "
            << text("%g", o.clip_norm) << ", epsilon " << text("%.4f", in.plan->epsilon_after(in.steps).upper)
            << " at delta " << text("%g", in.plan->delta().value()) << " after all steps\n";
  if (in.plan->delta().value() >= 1.0 / static_cast<double>(in.data->units())) {
    std::cerr << "warning: delta should be well below 1/n = " << text("%g", 1.0 / static_cast<double>(in.data->units()))
              << "; at " << text("%g", in.plan->delta().value()) << " publishing one text whole would be allowed\n";
  }
  if (o.allow_nonprivate_metrics) {
    std::cerr << "warning: losses and batch sizes of the private data will be written; they are not covered by the "
                 "guarantee\n";
  }
}

void summarize_loss(const Observer& observer) {
  if (!observer.first() || !observer.last) return;
  std::cout << "Public evaluation loss: " << text("%.4f", observer.first()->loss) << " before, "
            << text("%.4f", observer.last->loss) << " after (standard error "
            << text("%.4f", observer.last->standard_error) << ")\n";
}

double peak_memory_mib() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

// ---------------------------------------------------------------------------------------------------------------
// Going on

// What rank 0 found in the folder, on every rank.
std::optional<Resumption> find_resumption(const Options& o, fsdp::Mesh& mesh) {
  if (!o.resume) return std::nullopt;
  std::optional<Resumption> found;
  fsdp::agree(mesh, [&] {
    if (mesh.rank() == 0) found.emplace(find_run(o));
  });
  const std::string told = fsdp::broadcast_text(mesh, found ? found->to_json().dump() : "");
  return found ? std::move(found) : Resumption::from_json(nlohmann::json::parse(told));
}

// How far the run may go: to its last planned step, or to the last one that keeps the promised epsilon, since steps
// that are redone are charged again.
int64_t last_step(const Options& o, const Inputs& in, const Resumption& resumed) {
  if (!in.plan || !std::isfinite(in.plan->epsilon_after(in.steps).upper)) return in.steps;
  const double promised = in.plan->promised_epsilon().value();
  const accountant::Epsilon limit(std::max(promised, o.epsilon_limit.value_or(promised)));
  return resumed.step + in.plan->steps_within(limit, resumed.releases, in.steps - resumed.step);
}

bool is_done(const Resumption& resumed, const Inputs& in, int64_t last) {
  return resumed.outputs_whole && (!in.plan || resumed.steps_charged == in.steps || last == resumed.step);
}

void announce_resumption(const Inputs& in, const Resumption& resumed, int64_t last) {
  if (resumed.checkpoint.empty()) {
    std::cerr << "Resuming at the start: no checkpoint was written\n";
  } else {
    std::cerr << "Resuming after step " << resumed.step << " from " << resumed.checkpoint << '\n';
  }
  if (!in.plan) return;
  if (in.new_epoch) {
    std::cerr << "Coins and noise follow from a new key from here on (epoch " << resumed.ledger.epochs.size() + 1
              << " in the ledger)\n";
  }
  if (in.key->origin() != "key file") {
    std::cerr << "Of --data only the number of texts was compared with the run's\n";
  }
  if (const int64_t redone = resumed.attempts.redone(); redone > 0) {
    const double promised = in.plan->promised_epsilon().value();
    const double whole = in.plan->epsilon_after(resumed.releases + in.steps - resumed.step).upper;
    std::cerr << redone
              << " step(s) after it were charged and their results are lost: they are redone with new coins and "
              << "noise and charged again; to the planned end that would be epsilon " << text("%.4f", whole)
              << " (promised: " << text("%.4f", promised) << ")\n";
    if (last < in.steps) {
      std::cerr << "To keep the promise the run will end after step " << last << " of " << in.steps
                << "; --epsilon-limit raises it\n";
    }
  }
}

}  // namespace

Ending finetune(const Options& o, fsdp::Mesh& mesh, StopSignal& stop) {
  const bool first_rank = mesh.rank() == 0;
  const std::filesystem::path output(o.output);
  std::optional<Inputs> read;
  std::optional<Gpt2> built;
  PlannedStep step;
  std::unique_ptr<fsdp::Optimizer> optimizer;
  std::optional<accountant::LedgerWriter> ledger;
  std::optional<fsdp::Checkpoint> checkpoint;
  RunFacts facts_of_run;
  Course course;
  bool done = false;
  const std::optional<Resumption> resumed = find_resumption(o, mesh);
  const dp::StepCosts costs = costs_of_run(mesh, output, model_options(o).compute_dtype);
  // A mistake that only one rank can see ends all of them, with its message and before anything is written.
  fsdp::agree(mesh, [&] {
    read.emplace(read_inputs(o, mesh.rank(), resumed));
    course.last = read->steps;
    if (resumed && !resumed->checkpoint.empty()) checkpoint = fsdp::read_checkpoint(resumed->checkpoint);
    if (first_rank) facts_of_run = run_facts(o, *read);
    if (first_rank && checkpoint) check_same_run(checkpoint->about, facts_of_run);
    if (first_rank && resumed) {
      course.last = last_step(o, *read, *resumed);
      done = is_done(*resumed, *read, course.last);
      if (!done && course.last == 0) {
        throw std::invalid_argument("--resume: no step can be redone within the promised epsilon of " +
                                    text("%.4f", read->plan->promised_epsilon().value()) +
                                    ", which the ledger has spent: --epsilon-limit raises it");
      }
    }
    auto options = model_options(o);
    step = planned_step(o, *read, options, mesh, costs);
    options.residency = residency_of(step.plan);
    built.emplace(mesh, read->config, o.freeze, options);
    // The checkpoint of a run with adapters holds the frozen base too.
    if (!checkpoint) {
      read->folder ? load_weights(*built, *read->folder) : initialize(*built, o.seed);
      if (read->folder) initialize_adapters(built->parameters(), o.seed);
    }
    optimizer = make_optimizer(o, built->parameters());
  });
  Inputs& in = *read;
  Gpt2& model = *built;
  if (resumed) {
    const auto decided =
        nlohmann::json::parse(fsdp::broadcast_text(mesh, nlohmann::json{{"last", course.last}, {"done", done}}.dump()));
    course.first = resumed->step;
    course.last = decided.at("last").get<int64_t>();
    course.attempts = resumed->attempts;
    course.releases = resumed->releases;
    if (decided.at("done").get<bool>()) {
      if (first_rank) std::cout << "This run is done: " << output.string() << " holds its model and its report\n";
      mesh.control().barrier();
      return Ending::kDone;
    }
  }
  if (checkpoint) fsdp::load_checkpoint(model.parameters(), *optimizer, *checkpoint);
  if (in.key) in.key->share(mesh);
  fsdp::agree(mesh, [&] {
    if (!first_rank) return;
    std::filesystem::create_directories(output);
    keep_costs(mesh, output, costs);
    if (!resumed) {
      if (!in.plan) return;
      nlohmann::json header = in.plan->ledger_header(*in.key);
      header["facts"] =
          report_facts(o, *in.plan, *in.key, mesh.world_size(), model.parameters().trainable_parameter_count());
      header["facts"]["provenance"]["mesh"] = mesh.shape().text();
      ledger = accountant::LedgerWriter::create(output / "ledger.jsonl", header);
      return;
    }
    if (in.plan) {
      ledger = accountant::LedgerWriter::reopen(output / "ledger.jsonl");
      if (ledger->head() != resumed->ledger.head) {
        throw std::runtime_error((output / "ledger.jsonl").string() + " was changed while it was being read");
      }
    }
    course.kept = prepare_folder(output, course.first);
    if (in.new_epoch) ledger->begin_epoch(course.first, in.key->run_id_hex(), in.key->public_facts());
  });
  if (first_rank) announce(o, in, model);
  if (first_rank && o.explain_plan) std::cerr << dp::explain(step.plan, step.blocks, step.shape, budget_bytes(o));
  if (first_rank && resumed) announce_resumption(in, *resumed, course.last);

  Observer observer(o, in, model, course);
  Ending ending = Ending::kDone;
  std::optional<dp::PrivateOptimizer> private_optimizer;
  if (in.plan) private_optimizer.emplace(std::move(optimizer));
  fsdp::OptimizerState& state = in.plan ? private_optimizer->state() : *optimizer;
  Checkpointing checkpoints(o, model.parameters(), state, ledger ? &*ledger : nullptr, to_json(facts_of_run),
                            checkpoint ? std::optional(checkpoint->step) : std::nullopt);
  const Keeper keeper{stop, checkpoints, mesh};
  stop.begin_graceful();
  if (o.non_private) {
    // NOLINTNEXTLINE(bugprone-use-after-move): without privacy there is no plan, and it was not moved
    ending = train_without_privacy(o, in, course, model, *optimizer, observer, keeper);
  } else {
    ending = train_privately(o, in, course, step, model, *in.key, ledger ? &*ledger : nullptr, *private_optimizer,
                             observer, keeper);
  }
  if (ending == Ending::kStopped) {
    if (first_rank) {
      std::cout << "Stopped after step " << *checkpoints.newest() << " of " << in.steps << ", checkpoint in "
                << checkpoints.folder().string() << ". The same command with --resume goes on"
                << (in.plan && in.key->origin() != "key file" ? " under a new noise key" : "") << ".\n";
    }
    mesh.control().barrier();
    return ending;
  }
  if (in.plan && first_rank) {
    // The other facts are in the ledger's header since before the first step.
    auto facts = nlohmann::json::object();
    if (resumed) add_resumption(facts, course.first, course.last, in.steps);
    const auto report =
        accountant::build_report(accountant::read_ledger(output / "ledger.jsonl"), in.plan->delta(), facts);
    accountant::write_report(output, report);
    std::cout << accountant::summarize_report(report) << '\n';
  }
  save_folder(model, in.original_config, o.model, output / "model");
  save_adapters(model, o.model, output / "adapter");
  mesh.control().barrier();
  if (!first_rank) return ending;
  summarize_loss(observer);
  const double seconds = observer.training_seconds();
  const int64_t steps = course.last - course.first;
  std::cout << "Time: " << clock_text(seconds) << " for " << steps << " steps ("
            << text("%.2f", static_cast<double>(o.expected_batch * steps) / seconds)
            << " texts/s expected), peak memory " << text("%.0f", peak_memory_mib()) << " MiB on rank 0\n";
  if (course.last < in.steps) {
    std::cout
        << "Ended after step " << course.last << " of " << in.steps
        << ": further steps would break the promised epsilon, because steps were redone; --resume --epsilon-limit "
        << text("%.4f", std::ceil(1e4 * in.plan->epsilon_after(ledger->entries() + in.steps - course.last).upper) / 1e4)
        << " would go on to the end\n";
  }
  std::cout << "Written: " << (output / "model").string() << ", ";
  if (o.lora_rank > 0) std::cout << (output / "adapter").string() << ", ";
  std::cout << (output / "metrics.jsonl").string();
  if (!o.non_private) {
    std::cout << ", " << (output / "privacy_report.json").string() << ", " << (output / "privacy_report.html").string()
              << ", " << (output / "ledger.jsonl").string();
  }
  std::cout << '\n';
  return ending;
}

void generate_text(const Options& o) {
  const Folder folder = open_folder(o.model);
  const auto prompt = parse_token_ids(*o.generate_tokens, folder.config.vocab_size);
  const auto mesh = fsdp::Mesh::single();
  Gpt2 model(*mesh, folder.config, {});
  load_weights(model, folder);
  GenerationOptions how{
      .max_new_tokens = o.max_new_tokens, .temperature = o.temperature, .top_k = o.top_k, .seed = o.seed};
  const auto& eos = folder.original_config.value("eos_token_id", nlohmann::json());
  if (eos.is_number_integer()) how.end_token = eos.get<int64_t>();
  std::cout << "tokens: ";
  const char* separator = "";
  for (const int64_t id : generate(model, prompt, how)) {
    std::cout << separator << id;
    separator = ",";
  }
  std::cout << '\n';
}

}  // namespace ghostshard::gpt2
