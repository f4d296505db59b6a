#include "examples/gpt2/optimizer_rules.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "examples/gpt2/clipping.h"
#include "examples/gpt2/number_text.h"

namespace ghostshard::gpt2 {
namespace {

bool is_share(double value) { return value >= 0 && value < 1; }
bool is_positive(double value) { return value > 0 && std::isfinite(value); }

class Rules {
 public:
  Rules(const OptimizerOptions& optimizer, const ValueNames& names, const Options& run)
      : o_(optimizer), names_(names), run_(run) {}

  void check() const {
    must(o_.weight_decay >= 0 && std::isfinite(o_.weight_decay), "weight-decay", "must be finite and >= 0, got ",
         o_.weight_decay);
    check_momentum();
    check_matrices();
    check_moments();
    check_place();
  }

 private:
  bool is(const char* name) const { return o_.name == name; }
  bool is_adamw() const { return is(kAdamW) || is(kEightBits) || is(kSixteenBits); }

  void must(bool holds, const char* key, const std::string& rule) const {
    if (!holds) throw std::invalid_argument(names_.at(key) + " " + rule);
  }
  void must(bool holds, const char* key, const std::string& rule, double found) const {
    must(holds, key, rule + number_text("%g", found));
  }
  // A key that this optimizer has no use for is a mistake.
  void is_for(bool holds, const char* key, const std::string& optimizers) const {
    must(holds, key, "is for " + names_.key("optimizer") + " " + optimizers);
  }

  void check_momentum() const {
    if (!o_.momentum) return;
    must(is_share(*o_.momentum), "momentum", "must be in [0, 1), got ", *o_.momentum);
    is_for(*o_.momentum == 0 || is(kSgd) || is(kMuon), "momentum", "sgd or muon");
  }

  void check_matrices() const {
    is_for(!o_.muon_heads || is(kMuon), "muon-heads", "muon");
    check_muon_noise();
    must(!o_.takes_matrices() || !run_.mesh || run_.mesh->model == 1, "optimizer",
         o_.name + " needs whole matrices: --mesh must have no model axis, got " +
             (run_.mesh ? run_.mesh->text() : std::string()));
    for (const auto& [key, value] : {std::pair{"tile-side", o_.tile_side}, {"refresh-every", o_.refresh_every}}) {
      if (!value) continue;
      is_for(o_.takes_tiles(), key, "shampoo or soap");
      must(*value >= 1, key, "must be >= 1, got " + std::to_string(*value));
    }
    if (!o_.factor_decay) return;
    is_for(o_.takes_tiles(), "factor-decay", "shampoo or soap");
    must(is_share(*o_.factor_decay), "factor-decay", "must be in [0, 1), got ", *o_.factor_decay);
  }

  void check_muon_noise() const {
    if (!o_.muon_noise) return;
    const std::string& value = *o_.muon_noise;
    is_for(is(kMuon), "muon-noise", "muon");
    must(value == "keep" || value == "drop" || value == "correct", "muon-noise",
         "must be keep, drop or correct, got " + value);
    must(value == "keep" || !run_.non_private, "muon-noise", "is about noise, which --non-private has none of");
    if (value != "keep") check_known_noise("muon-noise");
  }

  // An average of gradients is as noisy as one of independent errors of one variance.
  void check_known_noise(const char* key) const {
    must(run_.clipping != kAdaptive, key,
         "takes the noise's variance to be the same in all steps: it cannot be combined with --clipping adaptive, "
         "where it follows the clip norm");
    must(run_.noise_bands == 1 && run_.noise_chain == 1 && run_.noise_blt == 0, key,
         "takes the noise to be independent from step to step: it cannot be combined with --noise-bands, --noise-chain "
         "or --noise-blt");
  }

  void check_moments() const {
    if (o_.betas) {
      is_for(is_adamw() || o_.takes_tiles(), "betas", "adamw, adamw8bit, adamw16bit, shampoo or soap");
      for (const double beta : *o_.betas) must(is_share(beta), "betas", "must be two numbers in [0, 1), got ", beta);
    }
    if (o_.epsilon) {
      is_for(is_adamw() || o_.takes_tiles(), "epsilon", "adamw, adamw8bit, adamw16bit, shampoo or soap");
      must(is_positive(*o_.epsilon), "epsilon", "must be finite and > 0, got ", *o_.epsilon);
    }
    if (!o_.second_moment_floor) return;
    const char* key = "second-moment-floor";
    must(is_positive(*o_.second_moment_floor), key, "must be finite and > 0, got ", *o_.second_moment_floor);
    is_for(is_adamw(), key, "adamw, adamw8bit or adamw16bit");
    must(!run_.non_private, key, "corrects for noise, which --non-private has none of");
    check_known_noise(key);
  }

  void check_place() const {
    if (!run_.offload_optimizer) return;
    must(is(kSgd) || (is(kAdamW) && !o_.second_moment_floor), "optimizer",
         o_.name + (o_.second_moment_floor ? " with " + names_.key("second-moment-floor") : "") +
             " stays with the model: --offload-optimizer is for adamw and sgd, without a floor");
  }

  const OptimizerOptions& o_;
  const ValueNames& names_;
  const Options& run_;
};

}  // namespace

std::string ValueNames::at(const std::string& key) const {
  if (file.empty()) return this->key(key);
  const auto found = lines.find(key);
  return file + (found == lines.end() ? "" : ":" + std::to_string(found->second)) + ": group '" + group + "': " + key;
}

void check_optimizers(const Options& o) {
  if (o.offload_optimizer && o.device.is_cpu()) {
    throw std::invalid_argument(
        "--offload-optimizer moves the optimizer from a device to host memory: it needs --device cuda");
  }
  if (o.offload_optimizer && o.master_dtype != "float32") {
    throw std::invalid_argument("--offload-optimizer needs --master-dtype float32, got " + o.master_dtype);
  }
  Rules(o.optimizer, {}, o).check();
  for (const OptimizerGroup& group : o.optimizer_groups) Rules(group.optimizer, group.names, o).check();
}

}  // namespace ghostshard::gpt2
