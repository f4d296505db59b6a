#include "dp/run/session.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace ghostshard::dp {
namespace {

RecordingChoice recording_of(const SessionOptions& options) {
  return options.memory_budget_bytes == 0 ? RecordingChoice::kTwoPass : RecordingChoice::kAutomatic;
}

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

}  // namespace

Session::Session(std::shared_ptr<fsdp::Mesh> mesh, std::vector<fsdp::BlockSpec> blocks, const SessionOptions& options,
                 RunKey key, StepId first)
    : mesh_(std::move(mesh)),
      model_(std::make_shared<fsdp::ForeignModel>(*mesh_, std::move(blocks))),
      key_(std::move(key)),
      options_(options),
      plan_(options.plan),
      clipper_(std::make_unique<Clipper>(
          plan_.clipper(*model_, {.recording = recording_of(options),
                                  .hold_memory_bytes = options.memory_budget_bytes.value_or(options.hold_memory_bytes),
                                  .streamed = std::vector<bool>(model_->groups().size(), options.streamed)}))),
      step_(first),
      uses_(model_->parameters().size()),
      plan_of_all_(model_->parameters().size()),
      planned_(std::make_shared<RecordingPlan>(plan_of_all_)),
      recorded_(at::zeros({3, static_cast<int64_t>(model_->parameters().size())}, at::kLong)) {
  key_.share(*mesh_);
  if (options_.plan.bins) plan_.begin_pass_at(step_.step);
}

void Session::attach_ledger(accountant::LedgerWriter ledger) {
  if (mechanism_ != nullptr) throw std::logic_error("a ledger must be attached before the first backward");
  ledger_ = std::move(ledger);
}

void Session::set_terms(accountant::ClipNorm clip_norm, std::optional<accountant::NoiseMultiplier> noise_multiplier) {
  plan_.set_terms(clip_norm, noise_multiplier);
}

void Session::begin_pass() {
  if (sum_) throw std::logic_error("a pass begins between logical batches");
  plan_.begin_pass_at(step_.step);
  step_ = attempts_.of(step_.step);
}

void Session::draw_from(int64_t group) {
  if (sum_) throw std::logic_error("a logical batch is drawn from one group of units");
  if (const int64_t ahead = plan_.steps_until(group, step_.step)) step_ = attempts_.of(step_.step + ahead);
}

// All steps of a pass are of one attempt.
StepId Session::following() const {
  const StepId next{.step = step_.step + 1, .attempt = step_.attempt};
  return plan_.same_pass(step_, next) ? next : attempts_.of(next.step);
}

void Session::renew_noise_key(const std::array<uint8_t, 32>& bytes) {
  if (sum_ || plan_.draws_noise_again()) throw std::logic_error("noise of a logical batch, or of a chain, has one key");
  key_.renew(bytes);
  key_.share(*mesh_);
}

void Session::begin_microbatch(int64_t units, bool of_nobody) {
  TORCH_CHECK_VALUE(units >= 0, "a microbatch has >= 0 units, got ", units);
  TORCH_CHECK_VALUE(!of_nobody || units == 1, "one placeholder stands for nobody, got ", units);
  const bool as_before = tape_ != nullptr && packed_ == nullptr && tape_->units() == units;
  if (as_before && tape_->of_nobody() == of_nobody && !tape_->began_recording()) return;
  give_up_microbatch();
  tape_ = clipper_->record(units, planned_, model_);
  if (of_nobody) tape_->stand_for_nobody();
}

void Session::begin_microbatch(const std::shared_ptr<const PackedRows>& packed) {
  TORCH_CHECK_VALUE(packed != nullptr, "packed rows are needed, got none");
  if (tape_ != nullptr && packed_ != nullptr && packed_->same_as(*packed) && !tape_->began_recording()) return;
  give_up_microbatch();
  tape_ = clipper_->record(packed->units(), planned_, model_);
  packed_ = packed;
}

int64_t Session::units() const { return tape_ == nullptr ? -1 : tape_->units(); }

void Session::give_up_microbatch() {
  if (tape_ != nullptr) tape_->give_up();
  tape_.reset();
  watcher_.reset();
  packed_.reset();
  segments_.clear();
  std::fill(uses_.begin(), uses_.end(), Uses{});
  planned_ = std::make_shared<RecordingPlan>(plan_of_all_);
}

const fsdp::Parameter& Session::parameter(int64_t id) const {
  const auto& all = model_->parameters();
  TORCH_CHECK_VALUE(id >= 0 && id < static_cast<int64_t>(all.size()), "parameter ids are from 0 to ", all.size() - 1,
                    ", got ", id);
  return *all[static_cast<size_t>(id)];
}

const fsdp::Parameter* Session::valued(int64_t id, const std::optional<at::Tensor>& value) {
  if (id < 0) return nullptr;
  const fsdp::Parameter& found = parameter(id);
  TORCH_CHECK_VALUE(value.has_value(), "parameter '", found.name(), "' needs a value");
  const bool fits = value->numel() == found.numel();  // one with many extents is declared flatter than it is
  model_->set_value(found, fits ? value->detach().view(found.shape()) : *value);
  return &found;
}

const std::shared_ptr<Tape>& Session::recorder() const {
  TORCH_CHECK_VALUE(tape_ != nullptr, "a layer was called outside the model's own forward: its units are not known");
  return tape_;
}

// row_extents: how many of the last extents make up a row (0: each element is one, as token ids are).
PackedRows::Use Session::rows(const std::string& layer, const at::Tensor& x, int64_t row_extents) {
  const int64_t units = recorder()->units();
  const auto leading = x.sizes().slice(0, static_cast<size_t>(std::max<int64_t>(x.dim() - row_extents, 0)));
  if (packed_ != nullptr) {
    auto use = packed_->use(leading, tape_);
    TORCH_CHECK_VALUE(use.has_value(), layer, ": the first extents must be those of the packed batch's tokens, got ",
                      x.sizes(),
                      ". Rows must stay with their units for per-unit norms; a layer that moves them has no "
                      "rule.");
    return *std::move(use);
  }
  TORCH_CHECK_VALUE(
      !leading.empty() && leading[0] == units, layer, ": the first extent must be that of the ", units,
      " units of this batch, got ", x.sizes(),
      ". Rows must stay with their units for per-unit norms; a layer that mixes or flattens them has no "
      "rule. If the examples' rows lie end to end (packed texts, graphs), say whose each is: "
      "model(..., segment_ids=...), cu_seqlens=... or units=.... If a module brings them in another order itself "
      "(time first), have it computed as one layer: "
      "ghostshard.register_rule(TheModule)(ghostshard.per_example).");
  const int64_t rows = c10::multiply_integers(leading.slice(1));
  for (const SegmentsPtr& known : segments_) {
    if (units == 0 || known->length(0) == rows) return {known, tape_};
  }
  segments_.push_back(std::make_shared<kernels::Segments>(kernels::Segments::even(units, rows)));
  return {segments_.back(), tape_};
}

// A matrix used more than once is held, which adds up exactly. One head and one embedding are the exception: their rows
// meet on the tape. Neither can wait for a second pass.
void Session::count(int64_t id, int32_t Uses::*kind) {
  const uint32_t counted = parameter(id).id();
  if (recomputing()) return;
  Uses& uses = uses_[counted];
  if (++(uses.*kind) > 1) {
    (*planned_)[counted] = kernels::Recording::kHold;
  } else if (takes_two_passes() && uses.linear == 1 && uses.other == 1) {
    (*planned_)[counted] = kernels::Recording::kReplay;
  }
}

void Session::count_use(int64_t id) { count(id, &Uses::other); }

at::Tensor Session::linear(int64_t weight, int64_t bias, bool stored_transposed, const at::Tensor& x,
                           const at::Tensor& weight_value, const std::optional<at::Tensor>& bias_value) {
  const LinearUse use{
      .weight = valued(weight, weight_value), .bias = valued(bias, bias_value), .stored_transposed = stored_transposed};
  const auto [segments, recorder] = rows(use.weight->name(), x, 1);
  count(weight, &Uses::linear);
  const at::Tensor y = dp::linear(use, rows_of(x), segments, recorder);
  auto shape = x.sizes().vec();
  shape.back() = y.size(1);
  return y.view(shape);
}

at::Tensor Session::embedding(int64_t table, const at::Tensor& ids, const at::Tensor& table_value, int64_t padding_id) {
  const fsdp::Parameter& looked_up = *valued(table, table_value);
  at::Tensor all = ids;
  if (packed_ != nullptr) {
    all = packed_->for_all_rows(ids);
  } else if (ids.dim() > 1 && ids.size(0) == 1) {  // one row for all, as position ids [1,T]: each unit looks it up
    auto for_each = ids.sizes().vec();
    for_each.front() = recorder()->units();
    all = ids.expand(for_each);
  }
  const auto [segments, recorder] = rows(looked_up.name(), all, 0);
  count_use(table);
  const at::Tensor y =
      dp::embedding(looked_up, all.reshape({-1}).to(at::kLong).contiguous(), segments, recorder, padding_id);
  auto shape = all.sizes().vec();
  shape.push_back(y.size(1));
  return y.view(shape);
}

at::Tensor Session::layer_norm(int64_t scale, int64_t shift, const at::Tensor& x, double epsilon,
                               const at::Tensor& scale_value, const at::Tensor& shift_value) {
  const LayerNormUse use{.scale = valued(scale, scale_value), .shift = valued(shift, shift_value)};
  const auto [segments, recorder] = rows(use.scale->name(), x, 1);
  return dp::layer_norm(use, rows_of(x), epsilon, segments, recorder).view(x.sizes());
}

at::Tensor Session::affine(int64_t scale, int64_t shift, const at::Tensor& x,
                           const std::optional<at::Tensor>& scale_value, const std::optional<at::Tensor>& shift_value) {
  const LayerNormUse use{.scale = valued(scale, scale_value), .shift = valued(shift, shift_value)};
  const fsdp::Parameter* one = use.scale != nullptr ? use.scale : use.shift;
  TORCH_CHECK_VALUE(one != nullptr, "an affine layer has a scale or a shift");
  const auto [segments, recorder] = rows(one->name(), x, 1);
  return dp::affine(use, rows_of(x), segments, recorder).view(x.sizes());
}

void Session::instantiated(const std::shared_ptr<Tape>& tape, int64_t id, const at::Tensor& gradients) {
  TORCH_CHECK_VALUE(tape != nullptr, "gradients are recorded on the tape of their forward");
  tape->require_open();  // an open tape is this session's: the parameter is its model's
  const fsdp::Parameter& of = parameter(id);
  if (!of.trainable()) return;
  // Kernels [p, c, ...] are matrices of p rows here.
  const bool fits = gradients.dim() > 0 && gradients.numel() == gradients.size(0) * of.numel();
  std::vector<int64_t> shape{fits ? gradients.size(0) : 0};
  shape.insert(shape.end(), of.shape().begin(), of.shape().end());
  tape->instantiated(of, fits ? gradients.reshape(shape) : gradients);
}

void Session::begin_attribution_check(const std::vector<bool>& chosen) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(chosen.size()) == recorder()->units(), "the units of this microbatch are ",
                    recorder()->units(), ", got ", chosen.size(), " chosen or not");
  watcher_ = std::make_shared<Attribution>(chosen);
  tape_->watch(watcher_);
}

std::map<int64_t, std::vector<double>> Session::watched_masses() const {
  if (watcher_ == nullptr) throw std::logic_error("no attribution check was begun");
  return watcher_->masses();
}

std::pair<int64_t, bool> Session::end_attribution_check() {
  if (watcher_ == nullptr || tape_ == nullptr) throw std::logic_error("no attribution check was begun");
  tape_->watch(nullptr);
  const auto done = std::exchange(watcher_, nullptr);
  const int64_t reached = done->reached() == nullptr ? -1 : static_cast<int64_t>(done->reached()->id());
  return {reached, done->undecided()};
}

void Session::open_sum() {
  if (tape_ == nullptr) throw std::logic_error("there is nothing to clip: no forward was recorded since the last one");
  if (mechanism_ == nullptr) {
    // NOLINTNEXTLINE(modernize-make-unique): a mechanism does not move
    mechanism_.reset(new GaussianMechanism(plan_.mechanism(*model_, key_, ledger_ ? &*ledger_ : nullptr)));
  }
  if (!sum_) sum_ = clipper_->begin(*mechanism_, step_);
}

// From here on kernels are launched on the caller's thread, whose current device may be another.
bool Session::second_pass() {
  const c10::DeviceGuard here(device());
  open_sum();
  note_records();
  return clipper_->second_pass(*sum_, tape_);
}

void Session::clip() {
  const c10::DeviceGuard here(device());
  open_sum();
  note_records();
  clipper_->add(*sum_, tape_);
  give_up_microbatch();
}

void Session::note_records() {
  if (!options_.memory_budget_bytes || tape_->in_second_pass()) return;
  const auto parameters = static_cast<int64_t>(uses_.size());
  const at::Tensor bytes = clipper_->recorded_bytes(*tape_, parameters);
  const at::Tensor now = at::zeros_like(recorded_);
  now[0].copy_(bytes);
  for (int64_t id = 0; id < parameters; ++id) {
    const Uses& uses = uses_[static_cast<size_t>(id)];
    const bool once = uses.linear == 1 && uses.other == 0;
    if (uses.linear + uses.other > 0) now[once ? 1 : 2][id] = 1;
  }
  at::maximum_out(recorded_, recorded_, now);
}

// The second backward costs the same however many matrices wait for it, so the fewest do: the largest.
void Session::plan_recording() {
  if (mesh_->world_size() > 1) mesh_->control().all_reduce_max(recorded_);
  const auto noted = recorded_.accessor<int64_t, 2>();
  std::vector<int64_t> largest_first(plan_of_all_.size());
  std::iota(largest_first.begin(), largest_first.end(), 0);
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](int64_t a, int64_t b) { return noted[0][a] > noted[0][b]; });
  int64_t left = recorded_[0].sum().item<int64_t>();
  for (const int64_t id : largest_first) {
    if (left <= *options_.memory_budget_bytes) break;
    if (noted[1][id] == 0 || noted[2][id] != 0) continue;  // it cannot wait for a second pass
    plan_of_all_[static_cast<size_t>(id)] = kernels::Recording::kTwoPass;
    left -= noted[0][id];
  }
  clipper_->plan_recording(plan_of_all_);
  planned_ = std::make_shared<RecordingPlan>(plan_of_all_);
  recorded_.zero_();
}

std::vector<int64_t> Session::in_two_passes() const {
  std::vector<int64_t> found;
  for (size_t id = 0; id < plan_of_all_.size(); ++id) {
    if (plan_of_all_[id] == kernels::Recording::kTwoPass) found.push_back(static_cast<int64_t>(id));
  }
  return found;
}

std::vector<at::Tensor> Session::release() {
  if (!sum_) throw std::logic_error("there is nothing to release: no backward since the last step");
  const c10::DeviceGuard here(device());
  std::vector<at::Tensor> owned(model_->parameters().size());
  {
    const PrivateGradient gradient = mechanism_->release(*std::exchange(sum_, std::nullopt), step_);
    for (const auto& group : model_->groups()) {
      if (!group->trainable()) continue;
      const at::Tensor slice = gradient.slices().shard(*group);
      for (const fsdp::OwnedRange& range : group->owned()) {
        const fsdp::Parameter& of = *group->parameters()[static_cast<size_t>(range.tensor)];
        auto shape = of.shape();
        shape.front() = range.count / (of.numel() / shape.front());
        owned[of.id()] = slice.narrow(0, range.shard_offset, range.count).view(shape);
      }
      for (const fsdp::Parameter* each : group->parameters()) {
        if (owned[each->id()].defined()) continue;
        auto none = each->shape();
        none.front() = 0;  // some ranks own no rows of a small parameter
        owned[each->id()] = at::empty(none, at::dtype(at::kFloat).device(device()));
      }
    }
  }
  mechanism_->detach_slices();
  if (options_.memory_budget_bytes) plan_recording();
  step_ = following();
  return owned;
}

void Session::abandon() {
  give_up_microbatch();
  if (!sum_) return;
  sum_.reset();
  step_ = moves_on_when_dropped() ? following() : StepId{.step = step_.step, .attempt = step_.attempt + 1};
}

int64_t Session::bytes_sent() const {
  return mesh_->reduce().bytes_sent() + mesh_->replicate().bytes_sent() + mesh_->model().bytes_sent();
}

}  // namespace ghostshard::dp
