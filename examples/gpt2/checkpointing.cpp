#include "examples/gpt2/checkpointing.h"

#include "dp/run/resume.h"
#include "fsdp/agree.h"

namespace ghostshard::gpt2 {
namespace {

// A private run that dies without a checkpoint has spent its budget for nothing; without privacy it only lost time.
constexpr int64_t kPrivateDefault = 100;

}  // namespace

Checkpointing::Checkpointing(const Options& options, fsdp::ShardedModel& model, fsdp::OptimizerState& optimizer,
                             const accountant::LedgerWriter* ledger, nlohmann::json about,
                             std::optional<int64_t> newest)
    : options_(options),
      model_(model),
      optimizer_(optimizer),
      ledger_(ledger),
      about_(std::move(about)),
      folder_(std::filesystem::path(options.output) / "checkpoints"),
      every_(options.checkpoint_every.value_or(options.non_private ? 0 : kPrivateDefault)),
      newest_(newest) {}

bool Checkpointing::due(int64_t steps_done, int64_t last_step, int64_t planned_steps) const {
  if (steps_done == last_step && last_step < planned_steps) return true;
  if (every_ == 0) return false;
  return steps_done % every_ == 0 || (steps_done == last_step && last_step > every_);
}

std::string Checkpointing::save(int64_t steps_done) {
  if (newest_ == steps_done) return {};
  nlohmann::json about = about_;
  if (ledger_ != nullptr) about["ledger"] = dp::to_json(dp::mark_of(*ledger_));
  try {
    fsdp::write_checkpoint(model_, optimizer_, folder_, steps_done, about);
    newest_ = steps_done;
    fsdp::agree(model_.mesh(), [&] {
      if (model_.mesh().rank() == 0) fsdp::prune_checkpoints(folder_, options_.keep_checkpoints);
    });
  } catch (const fsdp::AgreedFailure& failure) {
    return failure.what();
  }
  return {};
}

}  // namespace ghostshard::gpt2
