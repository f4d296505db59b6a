// Private steps on a model that the caller owns, for a training loop in another language.
//
// The owner computes forward and backward. For a layer with trainable parameters it calls the functions below instead
// of its own, so that no weight gradient enters autograd. After each backward clip() turns the microbatch into its
// clipped sum, which leaves the rank at once, on top of the noise: ledger and noise come with the first microbatch of a
// logical batch, and no sum without noise is ever assembled (dp/mechanism/gaussian.h). release() ends the logical
// batch.
//
// Every rank makes the same calls of clip() and release() in the same order, with any number of units, even none.
// One thread at a time; backward may run on others.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accountant/ledger.h"
#include "dp/mechanism/adjustable_plan.h"
#include "dp/recording/attribution.h"
#include "dp/recording/layers.h"
#include "dp/recording/packed_rows.h"
#include "dp/run/resume.h"
#include "fsdp/foreign_model.h"

namespace ghostshard::dp {

struct SessionOptions {
  AdjustablePlan::Config plan;
  // True: each microbatch's sum is reduced into the owned rows. False: summed whole in float32 on every rank and
  // reduced by release(); less traffic, more memory.
  bool streamed = true;
  // A microbatch may record this much until it is clipped, on any rank. None: per-unit gradients up to
  // hold_memory_bytes, and rows without a limit. If a logical batch took more than this, the largest matrices are
  // recorded in two passes from the next one on; with 0 bytes all of them, from the beginning.
  std::optional<int64_t> memory_budget_bytes = {};
  int64_t hold_memory_bytes = int64_t{1} << 30;
};

class Session {
 public:
  // The parameters' ids are their places in `blocks`, counted through. first: the step and attempt to begin with, if an
  // earlier session has come so far (its next()). A collective: every rank takes rank 0's key.
  Session(std::shared_ptr<fsdp::Mesh> mesh, std::vector<fsdp::BlockSpec> blocks, const SessionOptions& options,
          RunKey key, StepId first = {});

  const RunKey& key() const { return key_; }
  // On rank 0; before the first clip() (std::logic_error).
  void attach_ledger(accountant::LedgerWriter ledger);

  // A ledger's attempts for the steps to come (dp/run/resume.h): a step that it has charged before gets the attempt
  // after that. The same on every rank.
  void set_attempts(Attempts attempts) { attempts_ = std::move(attempts); }

  // For the next logical batch (dp/mechanism/adjustable_plan.h).
  void set_terms(accountant::ClipNorm clip_norm, std::optional<accountant::NoiseMultiplier> noise_multiplier);
  // Of the next logical batch: after a release it may have adapted.
  accountant::ClipNorm clip_norm() const { return plan_.clip_norm(); }

  // With balls-in-bins sampling: the next logical batch is the first of a pass (dp/mechanism/bins.h), and is charged
  // with all its steps; the rest of the pass before is given up. Every session's first logical batch is one. Not within
  // a logical batch, nor with other sampling (std::logic_error).
  void begin_pass();

  // With correlated noise, before each logical batch: its units are of this group, one of the plan's groups() (counted
  // from 0, std::invalid_argument), so it is the next step of that group. Steps are left out if the group's turn has
  // not come; noise then begins another chain. Not within a logical batch, nor without groups (std::logic_error).
  void draw_from(int64_t group);

  // From the next logical batch on noise follows from rank 0's bytes, for callers whose noise comes from their own
  // generator. Every call must bring other bytes. Not within a logical batch, nor with a noise chain, which needs the
  // key of the step before (std::logic_error). A collective.
  void renew_noise_key(const std::array<uint8_t, 32>& bytes);

  // A forward over this many units begins, each the same number of consecutive rows of every layer. Further forwards
  // before a backward belong to the same microbatch if they have as many units; otherwise the earlier ones' records are
  // given up. of_nobody: its one unit is a placeholder, for a batch that nobody is in.
  void begin_microbatch(int64_t units, bool of_nobody = false);
  // The same over texts laid end to end (dp/recording/packed_rows.h): layers' inputs are [tokens' extents..., d] then.
  void begin_microbatch(const std::shared_ptr<const PackedRows>& packed);
  at::Device device() const { return model_->device(); }  // of the model, and of all tensors that layers are given
  int64_t units() const;                                  // of the microbatch that was begun; -1: none
  // The functions below record on this tape; for instantiated().
  std::shared_ptr<Tape> tape() const { return tape_; }

  // Layers with trainable parameters, by parameter id (-1: none such), on x [units, ..., d] with the values that the
  // owner computes with. Results have the shape that the owner's layer gives. Rows per unit: the product of the extents
  // between the first and the last. Ids [1, ...] stand for all units. Errors as in dp/recording/layers.h.
  at::Tensor linear(int64_t weight, int64_t bias, bool stored_transposed, const at::Tensor& x,
                    const at::Tensor& weight_value, const std::optional<at::Tensor>& bias_value);
  at::Tensor embedding(int64_t table, const at::Tensor& ids, const at::Tensor& table_value, int64_t padding_id);
  at::Tensor layer_norm(int64_t scale, int64_t shift, const at::Tensor& x, double epsilon,
                        const at::Tensor& scale_value, const at::Tensor& shift_value);
  at::Tensor affine(int64_t scale, int64_t shift, const at::Tensor& x, const std::optional<at::Tensor>& scale_value,
                    const std::optional<at::Tensor>& shift_value);
  // In backward: one gradient for each unit, [units, shape...].
  void instantiated(const std::shared_ptr<Tape>& tape, int64_t parameter, const at::Tensor& gradients);
  // Some layer will use the parameter once more in this microbatch; those above count their own uses.
  void count_use(int64_t parameter);

  // Before backward: the backwards until end_attribution_check(), which keep their graph, are of the losses of the
  // chosen [units] alone and are only watched (dp/recording/attribution.h). end_attribution_check() returns the id of a
  // parameter of which a unit outside of them had a gradient (-1: none), and whether the check was undecided.
  void begin_attribution_check(const std::vector<bool>& chosen);
  std::pair<int64_t, bool> end_attribution_check();
  // Before end_attribution_check(): for each parameter's id, [units] squared gradients of the chosen ones.
  std::map<int64_t, std::vector<double>> watched_masses() const;

  // After backward. True: the same backward must be run once more before clip(), over the graph of the same forward
  // (dp/mechanism/clipper.h); it brings the same rows again, and sums leave while it goes on. The same answer on all
  // ranks, known beforehand by takes_two_passes(). Begins the logical batch if there is none. A collective.
  bool second_pass();
  bool takes_two_passes() const { return clipper_->takes_two_passes(); }
  // Ids of the parameters that are planned so, from the first logical batch on.
  std::vector<int64_t> in_two_passes() const;
  // After backward. Begins the logical batch if there is none. A collective.
  void clip();
  // Gives up the microbatch: no part of it was or will be added.
  void give_up_microbatch();
  // Ends the logical batch: by parameter id, the noised sum over the rows that this rank owns, divided by the divisor
  // (float32 [rows, ...]; undefined for frozen parameters). std::logic_error without a clip() before. A collective.
  std::vector<at::Tensor> release();
  // Drops the logical batch. Its charge stays; the next one has new noise, and is the same step's next attempt, or with
  // balls-in-bins sampling or groups of units the next step: that draw was its pass's part, or its group's turn.
  void abandon();

  bool open() const { return sum_.has_value(); }
  // The next logical batch is charged as this step.
  StepId next() const { return step_; }
  int64_t bytes_sent() const;  // by this rank, of gradients

 private:
  const fsdp::Parameter& parameter(int64_t id) const;
  const fsdp::Parameter* valued(int64_t id, const std::optional<at::Tensor>& value);
  PackedRows::Use rows(const std::string& layer, const at::Tensor& x, int64_t row_extents);
  const std::shared_ptr<Tape>& recorder() const;
  void open_sum();
  bool moves_on_when_dropped() const { return options_.plan.bins || plan_.groups() > 1; }
  StepId following() const;
  void note_records();
  // From the most that any rank has recorded in this logical batch. A collective.
  void plan_recording();
  // A layer called now runs again within backward (activation checkpointing): no further use of its parameters.
  bool recomputing() const { return tape_ != nullptr && tape_->began_recording(); }

  std::shared_ptr<fsdp::Mesh> mesh_;
  // Shared with the tapes, and so with the graphs of forwards that outlive the session. They do not keep the mesh: a
  // loss that somebody still holds must not hold connections.
  std::shared_ptr<fsdp::ForeignModel> model_;
  RunKey key_;
  SessionOptions options_;
  AdjustablePlan plan_;
  std::optional<accountant::LedgerWriter> ledger_;
  std::unique_ptr<Clipper> clipper_;
  std::unique_ptr<GaussianMechanism> mechanism_;  // made with the first clip(): only then is the ledger known
  std::optional<ClippedSum> sum_;
  std::shared_ptr<Tape> tape_;
  std::shared_ptr<const PackedRows> packed_;  // none: every unit has as many rows
  StepId step_;
  std::shared_ptr<Attribution> watcher_;
  Attempts attempts_;
  std::vector<SegmentsPtr> segments_;  // of this microbatch, one for each number of rows that a layer has had
  struct Uses {
    int32_t linear = 0, other = 0;
  };
  void count(int64_t parameter, int32_t Uses::*kind);
  std::vector<Uses> uses_;                  // by parameter id, in this microbatch
  RecordingPlan plan_of_all_;               // for every microbatch
  std::shared_ptr<RecordingPlan> planned_;  // for this one, shared with its tape
  // int64 [3,parameters], the maximum over this logical batch's microbatches: bytes recorded; 1 if used by one linear
  // layer alone; 1 if used otherwise.
  at::Tensor recorded_;
};

}  // namespace ghostshard::dp
