#include "dp/run/course.h"

#include <ATen/core/grad_mode.h>

#include <cerrno>
#include <system_error>

#include "dp/run/resume.h"
#include "fsdp/agree.h"

namespace ghostshard::dp {
namespace {

constexpr int64_t kStepsBetweenLooks = 10;
// No trained weight comes near it. Clipping keeps every step finite, so that weights of a run that diverged may be so
// too, but what layers compute with them soon is not.
constexpr double kLargestWeight = 1e12;

// Of the weights that this rank owns.
bool all_sound(const fsdp::ShardedModel& model) {
  const at::NoGradGuard no_grad;
  for (const auto& group : model.groups()) {
    for (const fsdp::OwnedRange& range : group->owned()) {
      if (range.count == 0) continue;
      const auto [least, most] = group->shard().narrow(0, range.shard_offset, range.count).aminmax();
      const double first = least.item<double>(), last = most.item<double>();  // NaN if one of them is
      if (!(first >= -kLargestWeight && last <= kLargestWeight)) return false;
    }
  }
  return true;
}

// On every rank the same. A collective.
bool on_any_rank(fsdp::Mesh& mesh, bool mine) {
  const at::Tensor flag = at::full({1}, mine ? 1 : 0, at::kLong);
  if (mesh.world_size() > 1) mesh.control().all_reduce_max(flag);
  return flag.item<int64_t>() != 0;
}

// Whether a failure, which is known by its sentence on the other ranks, is for want of space on the disk.
bool lacks_room(const std::string& reason) {
  for (const int error : {ENOSPC, EDQUOT}) {
    if (reason.find(std::generic_category().message(error)) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

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
  return on_any_rank(model_.mesh(), options_.stop != nullptr && options_.stop->requested());
}

void Course::require_sound_weights(bool kept_next) const {
  if (!kept_next && done_ % kStepsBetweenLooks != 0) return;
  if (!on_any_rank(model_.mesh(), !all_sound(model_))) return;
  throw fsdp::AgreedFailure(diverged("the weights must be finite and at most 1e12 in size, some"), false);
}

std::string Course::diverged(const std::string& rule) const {
  const auto& newest = extent_.newest_checkpoint;
  return rule + " after step " + std::to_string(done_) +
         " are not: the run diverged, and these weights are not kept; a new run with a lower --learning-rate is less "
         "likely to, and --resume goes on " +
         (newest ? "from the checkpoint of step " + std::to_string(*newest) : "at the start: there is no checkpoint");
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

std::string Course::save_in_the_room_there_is() {
  std::string reason = save();
  if (reason.empty() || !lacks_room(reason) || options_.keep_checkpoints <= 1) return reason;
  try {
    fsdp::agree(model_.mesh(), [&] {
      if (model_.mesh().rank() == 0) fsdp::prune_checkpoints(checkpoints(), 1);
    });
  } catch (const fsdp::AgreedFailure& failure) {
    return failure.what();
  }
  return save();
}

bool Course::go_on() {
  if (stopped_) return false;
  if (ended_ == done_) return done_ < extent_.last;
  ended_ = done_;
  const bool stopping = stop_wanted() && done_ < extent_.last;
  require_sound_weights(stopping || due() || done_ == extent_.last);
  if (stopping || due()) {
    if (const std::string reason = save_in_the_room_there_is(); !reason.empty()) {
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
