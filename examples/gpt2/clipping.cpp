#include "examples/gpt2/clipping.h"

#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

namespace ghostshard::gpt2 {
namespace {

const std::map<std::string, dp::Clipping> kClippings = {{"flat", dp::Clipping::kFlat},
                                                        {"per-layer", dp::Clipping::kPerLayer},
                                                        {"automatic", dp::Clipping::kAutomatic},
                                                        {kAdaptive, dp::Clipping::kFlat}};

}  // namespace

void add_clipping(CLI::Option_group* group, Options& o) {
  group->add_option("--clip-norm", o.clip_norm, "Largest L2 norm of one text's gradient")->capture_default_str();
  group
      ->add_option("--clipping", o.clipping,
                   "flat: the norm over all weights; per-layer: each of K layers at clip norm/sqrt(K); adaptive: flat, "
                   "and the clip norm follows a quantile of the texts' norms; automatic: each text times clip "
                   "norm/(norm + 0.01)")
      ->capture_default_str()
      ->check(CLI::IsMember({"flat", "per-layer", "automatic", kAdaptive}));
  group->add_option(
      "--clip-quantile", o.clip_quantile,
      "With --clipping adaptive: the share of texts whose norm is to be below the clip norm (default 0.5)");
  group->add_option("--clip-rate", o.clip_rate, "How fast the clip norm follows (default 0.2)");
  group->add_option("--count-noise", o.count_noise,
                    "Noise of the count of texts below the clip norm, in texts (default: the expected batch/20)");
  group->add_option("--min-clip-norm", o.min_clip_norm, "The clip norm never falls below (default: --clip-norm/1000)");
  group->add_option("--max-clip-norm", o.max_clip_norm, "The clip norm never rises above (default: --clip-norm*1000)");
}

void check_clipping(const Options& o) {
  const bool adaptive = o.clipping == kAdaptive;
  for (const auto& [flag, value] : {std::pair{"--clip-quantile", o.clip_quantile},
                                    {"--clip-rate", o.clip_rate},
                                    {"--count-noise", o.count_noise},
                                    {"--min-clip-norm", o.min_clip_norm},
                                    {"--max-clip-norm", o.max_clip_norm}}) {
    if (!value) continue;
    if (!adaptive) throw std::invalid_argument(std::string(flag) + " is for --clipping adaptive");
    if (!(*value > 0 && *value <= accountant::kLargest)) {
      throw std::invalid_argument(std::string(flag) + " must be finite and > 0, got " + nlohmann::json(*value).dump());
    }
  }
  if (!adaptive) return;
  if (o.non_private) throw std::invalid_argument("--clipping adaptive clips private steps: --non-private has none");
}

void set_clipping(dp::DpConfig& config, const Options& o) {
  config.clip_norm = accountant::ClipNorm(o.clip_norm);
  config.clipping = kClippings.at(o.clipping);
  if (o.clipping != kAdaptive) return;
  auto quantile = dp::ClipQuantile::around(config.clip_norm, static_cast<double>(o.expected_batch));
  quantile.target = o.clip_quantile.value_or(quantile.target);
  quantile.rate = o.clip_rate.value_or(quantile.rate);
  if (o.count_noise) quantile.count_noise = accountant::NoiseMultiplier(*o.count_noise);
  if (o.min_clip_norm) quantile.least = accountant::ClipNorm(*o.min_clip_norm);
  if (o.max_clip_norm) quantile.most = accountant::ClipNorm(*o.max_clip_norm);
  config.clip_quantile = quantile;
}

}  // namespace ghostshard::gpt2
