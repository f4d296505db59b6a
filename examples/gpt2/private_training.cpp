#include <stdexcept>

#include "examples/gpt2/training.h"

namespace ghostshard::gpt2 {
namespace {

// The charged releases' epsilon, for progress and metrics; the report computes it anew from the ledger.
class Spent {
 public:
  Spent(const dp::DpPlan& plan, int64_t releases) : plan_(plan), accountant_(plan.accountant()) {
    if (releases > 0) accountant_->compose(plan.event(), releases);
    begun_ = releases > 0 ? accountant_->epsilon(plan.delta()).upper : 0.0;
  }
  double begun() const { return begun_; }
  double after_release() {
    accountant_->compose(plan_.event(), 1);
    return accountant_->epsilon(plan_.delta(), accountant::Effort::kQuick).upper;
  }

 private:
  const dp::DpPlan& plan_;
  std::unique_ptr<accountant::Accountant> accountant_;
  double begun_ = 0;
};

}  // namespace

accountant::LedgerWriter create_ledger(const Options& o, const Inputs& in, Gpt2& model,
                                       const std::vector<dp::Part>& parts) {
  const fsdp::Mesh& mesh = model.parameters().mesh();
  nlohmann::json header = in.plan->ledger_header(*in.key);
  header["binding"] = dp::binding_header(parts, *in.key);
  header["facts"] =
      report_facts(o, *in.plan, *in.key, mesh.world_size(), model.parameters().trainable_parameter_count());
  header["facts"]["provenance"]["mesh"] = mesh.shape().text();
  return accountant::LedgerWriter::create(std::filesystem::path(o.output) / "ledger.jsonl", header);
}

accountant::LedgerWriter reopen_ledger(const Options& o, const Resumption& resumed) {
  const std::filesystem::path path = std::filesystem::path(o.output) / "ledger.jsonl";
  auto ledger = accountant::LedgerWriter::reopen(path);
  if (ledger.head() != resumed.ledger.head) {
    throw std::runtime_error(path.string() + " was changed while it was being read");
  }
  return ledger;
}

Ending train_privately(const Training& t, const PlannedStep& planned, accountant::LedgerWriter* ledger,
                       dp::PrivateOptimizer& optimizer) {
  const dp::DpPlan& plan = *t.in.plan;
  fsdp::ShardedModel& parameters = t.model.parameters();
  const fsdp::Mesh& mesh = parameters.mesh();
  const dp::PoissonSampler sampler = plan.sampler(*t.in.key, mesh.data_rank(), mesh.data_size());
  dp::Clipper clipper = plan.clipper(parameters, clipper_options(planned, parameters));
  dp::GaussianMechanism mechanism = plan.mechanism(parameters, *t.in.key, ledger);
  Spent spent(plan, t.course.releases);

  t.observer.before_first(spent.begun());
  for (int64_t step = t.course.first; step < t.course.last; ++step) {
    const dp::StepId id = t.course.attempts.of(step);
    t.observer.begin_step();
    dp::ClippedSum sum = clipper.begin(mechanism, id);
    {
      const auto resident = t.model.resident();
      for (const auto& units : sampler.draw_local(id, t.options.microbatch, t.in.data->row_counts())) {
        const TokenBatch batch = t.in.data->batch(units);
        const auto tape = clipper.record(batch.units());
        forward_and_backward(t, batch, tape);
        if (clipper.second_pass(sum, tape)) t.model.summed_unit_losses(batch, tape).backward();
        clipper.add(sum, tape);
      }
    }
    optimizer.step(mechanism.release(std::move(sum), id), t.in.rate.at(step));
    t.observer.after(step + 1, spent.after_release());
    if (t.keeper.after(step + 1, t.course, t.in.steps, t.observer) == Ending::kStopped) return Ending::kStopped;
  }
  return Ending::kDone;
}

}  // namespace ghostshard::gpt2
