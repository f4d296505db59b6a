#include "dp/run/course.h"

#include "dp/run/resume.h"
#include "fsdp/agree.h"

namespace ghostshard::dp {

Course::Course(FolderOptions options, const Extent& extent, fsdp::ShardedModel& model, fsdp::OptimizerState& optimizer,
               const accountant::LedgerWriter* ledger, nlohmann::json about)
    : options_(std::move(options)),
      extent_(extent),
      model_(model),
      optimizer_(optimizer),
      ledger_(ledger),
      about_(std::move(about)),
      done_(extent.first),
      ended_(extent.first),
      written_(extent.first - 1) {}

void Course::open_metrics() {
  fsdp::Mesh& mesh = model_.mesh();
  fsdp::agree(mesh, [&] {
    if (mesh.rank() != 0) return;
    const auto path = options_.folder / "metrics.jsonl";
    if (options_.resume) kept_ = keep_metrics(path, extent_.first);
    if (!kept_.empty() && kept_.back()["step"].get<int64_t>() == done_) written_ = done_;
    metrics_.emplace(path, options_.resume);
  });
  const at::Tensor written = at::full({1}, written_, at::kLong);
  if (mesh.world_size() > 1) mesh.control().broadcast(written, 0);
  written_ = written.item<int64_t>();
}

void Course::write_metrics(const nlohmann::ordered_json& fields) {
  if (!needs_metrics()) return;
  written_ = done_;
  if (!metrics_) return;
  nlohmann::ordered_json line = {{"step", done_}};
  line.update(fields);
  metrics_->write(line);
}

bool Course::stop_wanted() const {
  const at::Tensor wanted = at::full({1}, options_.stop != nullptr && options_.stop->requested() ? 1 : 0, at::kLong);
  fsdp::Mesh& mesh = model_.mesh();
  if (mesh.world_size() > 1) mesh.control().all_reduce_max(wanted);
  return wanted.item<int64_t>() != 0;
}

// Every k steps; also after the last step, since all of them are lost if the process ends before its caller has saved
// the model.
bool Course::due() const {
  const bool at_end = done_ == extent_.last;
  if (at_end && extent_.last < extent_.planned) return true;
  if (options_.checkpoint_every == 0) return false;
  return at_end || done_ % options_.checkpoint_every == 0;
}

std::string Course::save() {
  if (extent_.newest_checkpoint == done_) return {};
  nlohmann::json about = about_;
  if (ledger_ != nullptr) about["ledger"] = to_json(mark_of(*ledger_));
  try {
    fsdp::write_checkpoint(model_, optimizer_, checkpoints(), done_, about);
    extent_.newest_checkpoint = done_;
    fsdp::agree(model_.mesh(), [&] {
      if (model_.mesh().rank() == 0) fsdp::prune_checkpoints(checkpoints(), options_.keep_checkpoints);
    });
  } catch (const fsdp::AgreedFailure& failure) {
    return failure.what();
  }
  return {};
}

bool Course::go_on() {
  if (stopped_) return false;
  if (ended_ == done_) return done_ < extent_.last;
  ended_ = done_;
  const bool stopping = stop_wanted() && done_ < extent_.last;
  if (stopping || due()) {
    if (const std::string reason = save(); !reason.empty()) {
      const auto& newest = extent_.newest_checkpoint;
      const std::string sentence = "no checkpoint of step " + std::to_string(done_) + " could be written (" +
                                   (newest ? "the newest one is of step " + std::to_string(*newest) : "there is none") +
                                   "): " + reason;
      if (stopping) throw fsdp::AgreedFailure("stopped by a signal, but " + sentence, false);
      if (model_.mesh().rank() == 0 && options_.warn) options_.warn(sentence + "; the run goes on");
    }
  }
  stopped_ = stopping;
  return !stopping && done_ < extent_.last;
}

}  // namespace ghostshard::dp
