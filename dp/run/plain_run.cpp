#include "dp/run/plain_run.h"

#include "dp/run/build_id.h"
#include "fsdp/agree.h"

namespace ghostshard::dp {
namespace {

RunKey seeded_key(uint64_t seed) {
  std::array<uint8_t, 32> bytes{};
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(seed >> (8 * i));
  return RunKey::from_bytes(bytes, RunId{});
}

}  // namespace

PlainRun::PlainRun(fsdp::ShardedModel& model, std::unique_ptr<fsdp::Optimizer> optimizer, const PlainConfig& config,
                   FolderOptions options, std::vector<Part> parts, bool batch_metrics)
    : model_(model),
      optimizer_(std::move(optimizer)),
      key_(seeded_key(config.seed)),
      sampler_(nonprivate_sampler(key_, config.units, config.expected_batch, model.mesh().data_rank(),
                                  model.mesh().data_size())),
      accumulator_(model, static_cast<double>(config.expected_batch)),
      batch_metrics_(batch_metrics) {
  fsdp::Mesh& mesh = model.mesh();
  parts.push_back({"the build of GhostShard", build_id()});
  parts.push_back({"whether the run is resumed", options.resume ? "yes" : "no"});
  parts.push_back({"the number of units", std::to_string(config.units), Part::Binds::kRun});
  parts.push_back({"the number of steps", std::to_string(config.steps), Part::Binds::kRun});
  parts.push_back({"the expected batch", std::to_string(config.expected_batch), Part::Binds::kRun});
  agree_on(mesh, parts);
  if (options.resume) resumed_ = find_on_all(&find_plain_run, options.folder, mesh);
  Extent extent{.last = config.steps, .planned = config.steps};
  std::optional<fsdp::Checkpoint> checkpoint;
  fsdp::agree(mesh, [&] {
    if (!resumed_ || resumed_->checkpoint.empty()) return;
    checkpoint = fsdp::read_checkpoint(resumed_->checkpoint);
    if (mesh.rank() == 0) check_binding(checkpoint->about, parts, nullptr);
    extent.first = checkpoint->step;
    extent.newest_checkpoint = checkpoint->step;
  });
  fsdp::agree(mesh, [&] {
    if (mesh.rank() == 0 && options.resume && extent.first < extent.last) require_writable(options.folder);
  });
  if (checkpoint) load_or_name_an_older(model, *optimizer_, *checkpoint);
  fsdp::agree(mesh, [&] {
    if (mesh.rank() == 0) std::filesystem::create_directories(options.folder);
  });
  course_.emplace(std::move(options), extent, model, *optimizer_, nullptr,
                  nlohmann::json{{"binding", binding_header(parts, key_)}});
  course_->open_metrics();
}

void PlainRun::write_metrics(const nlohmann::ordered_json& fields) {
  nlohmann::ordered_json line = nlohmann::ordered_json::object();
  if (learning_rate_) line["learning_rate"] = *learning_rate_;
  line.update(fields);
  course_->write_metrics(line);
}

std::optional<PlainRun::Step> PlainRun::next() {
  if (course_->needs_metrics()) write_metrics(nlohmann::ordered_json::object());
  if (!course_->go_on()) return std::nullopt;
  accumulator_.begin();
  loss_and_units_.zero_();
  return Step(*this);
}

int64_t PlainRun::Step::number() const { return run_->course_->done(); }

void PlainRun::Step::add(std::span<const int64_t> lengths, int64_t microbatch, const LossOfUnits& loss) {
  auto batch = run_->sampler_.draw_together({.step = number()}, run_->model_.mesh());
  for (const auto& units : run_->sampler_.deal_local(std::move(batch), microbatch, lengths)) {
    const at::Tensor sum = loss(units, run_->accumulator_.recorder());
    sum.backward();
    if (!run_->batch_metrics_) continue;
    run_->loss_and_units_[0] += sum.item<double>();
    run_->loss_and_units_[1] += static_cast<double>(units.size());
  }
}

void PlainRun::Step::update(double learning_rate) {
  run_->optimizer_->step(run_->accumulator_.reduce(), learning_rate);
  run_->learning_rate_ = learning_rate;
  if (run_->batch_metrics_) run_->batch_facts_ = batch_facts_over(run_->loss_and_units_, run_->model_.mesh());
  run_->course_->step_is_done();
}

}  // namespace ghostshard::dp
