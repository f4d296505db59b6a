#include "dp/run/private_run.h"

#include <cmath>
#include <stdexcept>
#include <utility>

#include "accountant/report.h"
#include "dp/run/digest.h"
#include "dp/run/microbatch.h"
#include "dp/run/private_run_state.h"
#include "dp/run/report_facts.h"

namespace ghostshard::dp {
namespace {

void require(bool holds, const char* rule) {
  if (!holds) throw std::logic_error(rule);
}

}  // namespace

BatchFacts batch_facts_over(const at::Tensor& loss_and_units, fsdp::Mesh& mesh) {
  if (mesh.model_rank() != 0) loss_and_units.zero_();  // model peers saw the same units
  if (mesh.world_size() > 1) mesh.control().all_reduce_sum(loss_and_units);
  const auto* values = loss_and_units.const_data_ptr<double>();
  BatchFacts facts{.units = static_cast<int64_t>(values[1]), .mean_loss = std::nullopt};
  if (facts.units > 0) facts.mean_loss = values[0] / values[1];
  return facts;
}

PrivateRun::State::State(fsdp::ShardedModel& on, std::unique_ptr<fsdp::Optimizer> rule, RunOptions given,
                         RunBeginning begun)
    : model(on),
      optimizer(std::move(rule)),
      options(std::move(given)),
      beginning(std::move(begun)),
      sampler(beginning.plan->sampler(*beginning.key, on.mesh().data_rank(), on.mesh().data_size())),
      clipper(beginning.plan->clipper(on, options.recording)),
      mechanism(beginning.plan->mechanism(on, *beginning.key, beginning.ledger ? &*beginning.ledger : nullptr)),
      course(static_cast<const FolderOptions&>(options), beginning.extent, on, optimizer.state(),
             beginning.ledger ? &*beginning.ledger : nullptr, nlohmann::json::object()),
      accountant(beginning.plan->accountant()) {
  releases = beginning.resumed ? beginning.resumed->releases : 0;
  rounds = beginning.resumed ? beginning.resumed->rounds : beginning.plan->rounds();
  rounds_of_session = beginning.plan->rounds();
  if (releases == 0) return;
  beginning.plan->charge(*accountant, rounds);
  epsilon = accountant->epsilon(beginning.plan->delta()).upper;
}

// This rank's share of the step's draw. Each rank deals it out by itself: with other lengths or another microbatch a
// unit would be on two ranks, or on none. A collective.
Microbatches PrivateRun::Step::dealt_batch(std::span<const int64_t> lengths, int64_t microbatch) const {
  const State& run = *run_;
  fsdp::Mesh& mesh = run.model.mesh();
  std::vector<int64_t> batch = run.sampler.draw_together(run.id, mesh);
  if (mesh.world_size() > 1) {
    Digest digest;
    digest.add(std::to_string(lengths.size()));
    for (const int64_t unit : batch) {
      if (static_cast<size_t>(unit) < lengths.size()) digest.add(std::to_string(lengths[static_cast<size_t>(unit)]));
    }
    agree_on(mesh, {{"the units at a time", std::to_string(microbatch)}, {"the units' lengths", digest.text()}});
  }
  return run.sampler.deal_local(std::move(batch), microbatch, lengths);
}

PrivateRun::PrivateRun(std::unique_ptr<State> state) : state_(std::move(state)) {}
PrivateRun::PrivateRun(PrivateRun&& other) noexcept = default;
PrivateRun::~PrivateRun() = default;

const DpPlan& PrivateRun::plan() const { return *state_->beginning.plan; }
const RunKey& PrivateRun::key() const { return *state_->beginning.key; }
const Course& PrivateRun::course() const { return state_->course; }
const std::optional<FoundRun>& PrivateRun::resumed() const { return state_->beginning.resumed; }
bool PrivateRun::was_finished() const { return state_->beginning.finished; }
double PrivateRun::epsilon() const { return state_->epsilon; }
int64_t PrivateRun::releases() const { return state_->releases; }
bool PrivateRun::charged_again() const { return state_->releases > plan().charges_of(state_->course.done()); }
const accountant::Rounds& PrivateRun::rounds() const { return state_->rounds; }
const std::optional<BatchFacts>& PrivateRun::batch_facts() const { return state_->batch_facts; }
bool PrivateRun::needs_metrics() const { return state_->course.needs_metrics(); }

void PrivateRun::write_metrics(const nlohmann::ordered_json& fields) {
  nlohmann::ordered_json line = {{"epsilon", state_->epsilon}};
  if (state_->learning_rate) line["learning_rate"] = *state_->learning_rate;
  if (state_->clip_norm) line[kClipNorm] = *state_->clip_norm;
  if (const auto& share = state_->mechanism.noised_share()) line["share_below_clip_norm"] = *share;
  line.update(fields);
  state_->course.write_metrics(line);
}

std::optional<PrivateRun::Step> PrivateRun::next() {
  State& run = *state_;
  require(run.phase == State::Phase::kBetweenSteps, "a step ends with update() before the next one begins");
  if (run.beginning.finished) return std::nullopt;
  if (run.course.needs_metrics()) write_metrics(nlohmann::ordered_json::object());
  auto& registered = run.beginning.registered;
  const DpPlan& plan = *run.beginning.plan;
  if (!run.course.go_on()) {
    if (registered) registered->end(plan, run.model.mesh());
    return std::nullopt;
  }
  const Extent& extent = run.course.extent();
  const int64_t step = run.course.done();
  const bool charged = plan.charges_at(step);
  if (registered && charged && run.rounds_of_session.add(plan.round_of(step)))
    registered->charge_one(plan, registered_charges_of(plan, extent.last - extent.first), run.model.mesh());
  const StepId charge = run.beginning.resumed ? run.beginning.resumed->attempts.of(step) : StepId{.step = step};
  run.id = {.step = step, .attempt = charged ? charge.attempt : run.id.attempt};  // a pass has one attempt
  run.phase = State::Phase::kDrawn;
  return Step(run);
}

int64_t PrivateRun::Step::number() const { return run_->id.step; }

void PrivateRun::Step::add(std::span<const int64_t> lengths, int64_t microbatch, const LossOfUnits& loss) {
  State& run = *run_;
  require(run.phase == State::Phase::kDrawn, "a step's batch is added once");
  const Microbatches batch = dealt_batch(lengths, microbatch);
  run.phase = State::Phase::kAdding;
  run.sum.emplace(run.clipper.begin(run.mechanism, run.id));
  run.loss_and_units.zero_();
  for (const auto& units : batch) {
    const at::Tensor sum = add_microbatch(run.clipper, *run.sum, static_cast<int64_t>(units.size()),
                                          [&](const RecorderPtr& recorder) { return loss(units, recorder); });
    if (!run.options.nonprivate_metrics) continue;
    run.loss_and_units[0] += sum.item<double>();
    run.loss_and_units[1] += static_cast<double>(units.size());
  }
  run.phase = State::Phase::kAdded;
}

void PrivateRun::Step::update(double learning_rate) {
  State& run = *run_;
  require(run.phase == State::Phase::kAdded, "a step is updated once, after its batch was added");
  if (!(learning_rate > 0 && std::isfinite(learning_rate))) {
    throw std::invalid_argument("the learning rate must be > 0 and finite, got " + std::to_string(learning_rate));
  }
  const DpPlan& plan = *run.beginning.plan;
  const double clip_norm = plan.clip_norm().value();
  run.optimizer.step(run.mechanism.release(std::move(*run.sum), run.id), learning_rate);
  run.sum.reset();
  run.learning_rate = learning_rate;
  if (plan.config().clip_quantile) {
    run.clip_norm = clip_norm;
    run.course.keep(kClipNorm, plan.clip_norm().value());  // the next step's
  }
  const bool charged = plan.charges_at(run.id.step);
  const bool costs = charged && (run.rounds.add(plan.round_of(run.id.step)) || plan.config().noise_blt.is_on());
  if (costs) {
    run.accountant->compose(plan.event_at(run.id.step), 1);
    run.epsilon = run.accountant->epsilon(plan.delta(), accountant::Effort::kQuick).upper;
  }
  run.releases += charged;
  if (run.options.nonprivate_metrics) run.batch_facts = batch_facts_over(run.loss_and_units, run.model.mesh());
  run.course.step_is_done();
  run.phase = State::Phase::kBetweenSteps;
}

nlohmann::json PrivateRun::finish() {
  State& run = *state_;
  require(run.phase == State::Phase::kBetweenSteps, "a run is finished between two steps");
  const std::string weights = digest_of_weights(run.model);
  if (run.model.mesh().rank() != 0) return nullptr;
  // The other facts stand in the ledger's header since before the first step.
  auto facts = facts_at_the_end(weights);
  if (run.beginning.resumed)
    facts.merge_patch(resumption_facts(run.beginning.extent, *run.beginning.plan, charged_again()));
  if (run.beginning.registered) facts["tuning"]["budget_register"] = run.beginning.registered->facts();
  const auto& folder = run.options.folder;
  const auto ledger = accountant::read_ledger(folder / "ledger.jsonl");
  auto report = accountant::build_report(ledger, run.beginning.plan->delta(), facts);
  accountant::write_report(folder, report);
  return report;
}

}  // namespace ghostshard::dp
