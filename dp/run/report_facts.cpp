#include "dp/run/report_facts.h"

#include <chrono>
#include <cstdio>

#include "dp/run/build_id.h"
#include "dp/run/digest.h"
#include "dp/run/private_run_state.h"

namespace ghostshard::dp {
namespace {

// Of the beginning alone: how long private steps took is not for everybody.
std::string today() {
  const std::chrono::year_month_day date(std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()));
  char text[16];
  std::snprintf(text, sizeof text, "%04d-%02u-%02u", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                static_cast<unsigned>(date.day()));
  return text;
}

nlohmann::json provenance(const RunKey& key, const fsdp::Mesh& mesh, const std::vector<Part>& parts) {
  nlohmann::json facts = {{"ranks", mesh.world_size()},
                          {"mesh", mesh.shape().text()},
                          {"code", build_id()},
                          {"begun_on", today()},
                          {"data_fingerprint", "none: a key is needed, of --noise-key-file or of a budget register"}};
  facts["config_hash"] = digest_of(binding_header(parts, key).at("run").dump());
  for (const Part& part : parts) {
    if (part.name == kStartingWeights) facts["weights_before"] = part.value;
    // A digest without a key would let anybody test a guess of the data.
    if (part.binds != Part::Binds::kRunInSecret || !key.comes_again()) continue;
    facts["data_fingerprint"] = key.tag_of(part.value);
    facts["data_fingerprint_is"] = "HMAC-SHA256 of a digest of " + part.name + " under the run's secret key and id";
  }
  return facts;
}

// What correlated noise changes.
void add_correlation(nlohmann::json& facts, const DpConfig& config) {
  if (const NoiseBlt& blt = config.noise_blt; blt.is_on()) {
    const std::string apart = std::to_string(blt.separation);
    facts["sampler"]["executed"] = "cyclic";
    facts["sampler"]["coins"] = "none";
    facts["sampler"]["groups"] = "unit u, counted from 0 in the prepared file, takes part in the steps t with t mod " +
                                 apart + " = u mod " + apart + ", in all of them";
    facts["mechanism"]["correlated_noise"] =
        "buffered linear Toeplitz matrix (arXiv:2408.08868): the noise of a step takes back a part of all noise before "
        "it, kept in " +
        std::to_string(blt.outputs.size()) +
        " buffers, by noise_blt in the ledger's header; a resumed run takes back none of an earlier session's";
    return;
  }
  if (config.groups() == 1) return;
  const std::string b = std::to_string(config.groups());
  facts["sampler"]["executed"] = "cyclic-poisson";
  facts["sampler"]["groups"] = "unit u, counted from 0 in the prepared file, belongs to group u mod " + b +
                               "; step t draws from group t mod " + b;
  if (config.noise_chain.steps > 1) {
    facts["mechanism"]["correlated_noise"] =
        "lambda-CGD (arXiv:2601.22334) in chains of " + b +
        " steps: the noise of a step takes back a part of the noise of the step before, which is drawn again from the "
        "key; a resumed run takes back none of an earlier session's";
    return;
  }
  facts["mechanism"]["correlated_noise"] =
      "banded matrix mechanism (arXiv:2306.08153): the noise of a step takes back parts of the " +
      std::to_string(config.groups() - 1) +
      " steps before, by noise_bands in the ledger's header; a resumed run takes back none of an earlier session's";
}

// What balls-in-bins sampling changes.
void add_passes(nlohmann::json& facts, const DpPlan& plan) {
  if (plan.config().sampling != Sampling::kBallsInBins) return;
  facts["sampler"]["executed"] = to_string(plan.config().sampling);
  facts["sampler"]["coins"] = "64-bit, ChaCha20 (RFC 8439), one per unit and pass";
  facts["sampler"]["passes"] =
      "each pass deals the units anew to its steps and is charged whole at the first of them; a resumed run begins "
      "another pass";
}

// What a largest batch changes.
void add_truncation(nlohmann::json& facts, const DpPlan& plan) {
  if (!plan.config().maximum_batch) return;
  const std::string cap = std::to_string(*plan.config().maximum_batch);
  facts["sampler"]["executed"] = "truncated-poisson";
  facts["sampler"]["truncation"] =
      "of more than " + cap + " drawn units a uniformly random part of " + cap +
      " stays (arXiv:2508.15089), chosen by words of a key of its own; a unit without content takes a place like any "
      "other";
  facts["sampler"]["shapes"] = "every rank has the same number of microbatches in every step, that of " + cap +
                               " units; how many units and rows are in one depends on the draw";
}

// What a clip norm that adapts changes.
void add_quantile(nlohmann::json& facts, const std::optional<ClipQuantile>& quantile) {
  if (!quantile) return;
  facts["mechanism"]["adaptive_clipping"] =
      "the clip norm follows a quantile of the units' norms (arXiv:1905.03871): each step also releases how many units "
      "lay below it, each counted as 1/2 or -1/2, with Gaussian noise of a key of its own, rounded to a multiple of "
      "1/2; "
      "its deviation is clip_quantile's in the ledger's header, and the next clip norm follows from that number over "
      "the expected batch";
  facts["released_outputs"]["released"].push_back("the clip norm of every step, and the noised count it follows from");
}

}  // namespace

nlohmann::json run_facts(const DpPlan& plan, const RunKey& key, const fsdp::ShardedModel& model,
                         const std::vector<Part>& parts, const std::string& optimizer, const RunOptions& options) {
  const fsdp::Mesh& mesh = model.mesh();
  const int64_t batch = plan.config().expected_batch;
  nlohmann::json facts = {
      {"trust_model",
       {{"model", "central"},
        {"trusted_parties", "every rank, its memory and the links between ranks; each rank holds the noise key"},
        {"who_sees_what",
         "outsiders see what is listed under released outputs; no sum leaves the mechanism without noise"}}},
      {"released_outputs",
       {{"released", {"the final model", "the epsilon and learning rate of every step"}},
        {"nonprivate_metrics", options.nonprivate_metrics}}},
      {"tuning",
       {{"included", false}, {"number_of_runs", "not known to the code: other runs on the same data are not counted"}}},
      {"sampler", {{"executed", "poisson"}, {"coins", "64-bit, ChaCha20 (RFC 8439), one per unit and step"}}},
      {"mechanism",
       {{"clipping_style", to_string(plan.config().clipping)},
        {"normaliser", "the fixed expected batch, a public constant"},
        {"microbatching", "clipped sums are added in float32; how a batch is cut does not change the sensitivity"},
        {"optimizer", optimizer + ", computed from released gradients and public numbers alone (post-processing)"},
        {"trainable_parameters", model.trainable_parameter_count()}}},
      {"noise_source",
       {{"generator", "ChaCha20 (RFC 8439) keyed per step by HMAC-SHA256; Box-Muller with 64-bit radius, float32"},
        {"key_custody",
         key.comes_again() ? "a file of the operator" : "drawn by the operating system, in memory only, never stored"},
        {"dtype", "float32"},
        {"floating_point_caveat",
         "noise and sums are float32 numbers, not reals; a unit's own rounding is counted in its norm; in a batch of " +
             std::to_string(batch) + " units one of them can move the sum by at most the clip norm times 1 + " +
             nlohmann::json(DpPlan::rounding_slack(batch)).dump() +
             ", because the others' roundings may turn; that is a proven worst case, not counted in epsilon"},
        {"placement",
         "added by each slice's owner (of the first replica) before the reduction, once per logical batch"}}},
      {"provenance", provenance(key, mesh, parts)}};
  add_correlation(facts, plan.config());
  add_passes(facts, plan);
  add_truncation(facts, plan);
  add_quantile(facts, plan.config().clip_quantile);
  facts.merge_patch(options.facts);
  return facts;
}

nlohmann::json register_facts(const std::string& data) {
  return {
      {"tuning", {{"number_of_runs", "those on the same data are in a budget register, if they named it"}}},
      {"provenance",
       {{"data_fingerprint", data},
        {"data_fingerprint_is", "HMAC-SHA256 of the data file's digest under the secret key of a budget register"}}}};
}

nlohmann::json facts_at_the_end(const std::string& weights) { return {{"provenance", {{"weights_after", weights}}}}; }

nlohmann::json resumption_facts(const Extent& extent, const DpPlan& plan, bool charged_again) {
  nlohmann::json facts;
  facts["provenance"]["resumed"] =
      "after step " + std::to_string(extent.first) +
      (extent.first == 0 ? " (from the start, no checkpoint)" : " from this run's own checkpoint");
  if (extent.last < extent.planned) {
    std::string cause = ": further steps";
    if (plan.config().noise_blt.is_on()) {
      cause = ": a new chain of noise, whose first steps cost most, began where the run went on, and further steps";
    } else if (charged_again) {
      cause = ": steps redone after a crash were charged again, and further ones";
    }
    facts["population_and_steps"]["ended_early"] =
        "after step " + std::to_string(extent.last) + cause +
        " would have broken the promised or given epsilon, or the budget register's limit";
  }
  return facts;
}

}  // namespace ghostshard::dp
