// ghostshard._native.engine: private steps on a PyTorch model. Names and types only; dp/run/session.h describes each
// call, and bindings/python/ghostshard/ holds the classes that users see.
//
// std::invalid_argument and TORCH_CHECK_VALUE become ValueError, std::logic_error and std::runtime_error RuntimeError.
// The interpreter lock is released while C++ works.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "accountant/rounds.h"
#include "bindings/moments.h"
#include "bindings/traces.h"
#include "dp/mechanism/bins.h"
#include "dp/mechanism/coins.h"
#include "dp/mechanism/truncation.h"
#include "dp/planning/band_coefficients.h"
#include "dp/planning/chain_decay.h"
#include "dp/planning/host_memory_left.h"
#include "dp/recording/cross_entropy.h"
#include "dp/recording/leaves.h"
#include "dp/run/build_id.h"
#include "dp/run/digest.h"
#include "dp/run/session.h"
#include "fsdp/host_memory.h"
#include "fsdp/process_group_mesh.h"
#include "kernels/has_kernels.h"

namespace py = pybind11;

namespace ghostshard::dp {
namespace {

using Released = py::call_guard<py::gil_scoped_release>;
// name, whole shape, trainable, extent that is cut over the model axis or -1
using ParameterEntry = std::tuple<std::string, std::vector<int64_t>, bool, int64_t>;
using BlockEntry = std::pair<std::string, std::vector<ParameterEntry>>;
using MeshEntry = std::tuple<int64_t, int64_t, int64_t>;  // replicate, shard, model
// target, rate, count noise, least and most clip norm; none: the clip norm does not adapt
using QuantileEntry = std::optional<std::tuple<double, double, double, double, double>>;
using LargestBatch = std::optional<std::pair<int64_t, int64_t>>;  // of so many units, so many at most
// ratios of noise bands; steps and decay of a noise chain
using CorrelationEntry = std::tuple<std::vector<float>, int64_t, float>;
using MomentumShares = std::vector<std::pair<double, double>>;  // momentum, share of the parameters
using StepPairs = std::vector<std::pair<int64_t, int64_t>>;
using History = std::vector<std::tuple<double, double, int64_t>>;

std::array<uint8_t, 32> key_bytes(const std::string& bytes) {
  std::array<uint8_t, 32> key{};
  if (bytes.size() != key.size()) {
    throw std::invalid_argument("a noise key has 32 bytes, got " + std::to_string(bytes.size()));
  }
  std::memcpy(key.data(), bytes.data(), key.size());
  return key;
}

Clipping clipping_of(const std::string& name) {
  if (name == "flat") return Clipping::kFlat;
  if (name == "per_layer") return Clipping::kPerLayer;
  if (name == "automatic") return Clipping::kAutomatic;
  throw std::invalid_argument("clipping must be flat, per_layer or automatic, got " + name);
}

std::optional<ClipQuantile> quantile_of(const QuantileEntry& entry) {
  if (!entry) return std::nullopt;
  const auto [target, rate, count_noise, least, most] = *entry;
  return ClipQuantile{.target = target,
                      .rate = rate,
                      .count_noise = accountant::NoiseMultiplier(count_noise),
                      .least = accountant::ClipNorm(least),
                      .most = accountant::ClipNorm(most)};
}

// Of both parts of a step whose clip norm adapts. Not above what the step was given: ClipQuantile::gradient_noise makes
// both together larger than that by 2^-45 of it.
double whole_noise(const accountant::AdaptiveClippingEvent& event) {
  return (1 - 0x1p-45 - 0x1p-50) / std::hypot(1 / event.sigma.value(), 1 / (2 * event.count_sigma.value()));
}

NoiseCorrelation correlation_of(const CorrelationEntry& entry) {
  const auto& [ratios, steps, decay] = entry;
  NoiseCorrelation correlation{.bands = {.ratios = ratios}, .chain = {.steps = steps, .decay = decay}};
  correlation.check();
  return correlation;
}

// The run's rates under each momentum, with the share of the parameters that have it.
std::vector<WorkloadShare> shares_of(const std::vector<double>& rates, const MomentumShares& momenta) {
  std::vector<WorkloadShare> shares;
  for (const auto& [momentum, share] : momenta) shares.push_back({{.rates = rates, .momentum = momentum}, share});
  return shares;
}

std::vector<float> band_ratios(int64_t bands, const std::vector<double>& rates, const MomentumShares& momenta) {
  const std::vector<double> exact = optimal_band_ratios(bands, shares_of(rates, momenta));
  return {exact.begin(), exact.end()};
}

float chain_decay(int64_t steps, const std::vector<double>& rates, const MomentumShares& momenta) {
  return static_cast<float>(optimal_chain_decay(steps, shares_of(rates, momenta)));
}

// Of each element of a step's noise, in units of (sigma·C)²: of the last of so many steps', which is the largest, or
// the mean of a chain's.
double correlated_variance(const CorrelationEntry& entry, int64_t steps) {
  const NoiseCorrelation correlation = correlation_of(entry);
  return correlation.bands.variance(steps) * correlation.chain.variance();
}

std::unique_ptr<Session> make_session(const std::vector<BlockEntry>& blocks, const MeshEntry& mesh, int64_t rank,
                                      const std::array<std::string, 4>& groups, at::Device device, double sampling_rate,
                                      double divisor, const std::string& clipping, const QuantileEntry& quantile,
                                      double expected_batch, const LargestBatch& largest_batch,
                                      const std::optional<int64_t>& bins, const CorrelationEntry& correlation,
                                      bool streamed, std::optional<int64_t> memory_budget, int64_t hold_memory,
                                      const std::optional<std::string>& key, const std::string& run_id,
                                      const std::pair<int64_t, int64_t>& first, const StepPairs& attempts) {
  std::vector<fsdp::BlockSpec> specs;
  for (const auto& [block, parameters] : blocks) {
    fsdp::BlockSpec spec{.name = block, .parameters = {}};
    for (const auto& [name, shape, trainable, cut] : parameters) {
      spec.parameters.push_back({.name = name, .shape = shape, .trainable = trainable, .split = {.extent = cut}});
    }
    specs.push_back(std::move(spec));
  }
  const fsdp::MeshShape shape{.replicate = std::get<0>(mesh), .shard = std::get<1>(mesh), .model = std::get<2>(mesh)};
  const SessionOptions options{.plan = {.sampling_rate = accountant::SamplingRate(sampling_rate),
                                        .divisor = divisor,
                                        .clipping = clipping_of(clipping),
                                        .clip_quantile = quantile_of(quantile),
                                        .expected_batch = expected_batch,
                                        .largest_batch = largest_batch,
                                        .bins = bins,
                                        .correlation = correlation_of(correlation)},
                               .streamed = streamed,
                               .memory_budget_bytes = memory_budget,
                               .hold_memory_bytes = hold_memory};
  RunKey run_key = key ? RunKey::from_bytes(key_bytes(*key), run_id.empty() ? RunId{} : run_id_from_hex(run_id))
                       : RunKey::generate();
  auto session = std::make_unique<Session>(
      fsdp::mesh_over(shape, rank,
                      {.reduce = groups[0], .replicate = groups[1], .model = groups[2], .control = groups[3]}, device),
      std::move(specs), options, std::move(run_key), StepId{.step = first.first, .attempt = first.second});
  session->set_attempts(Attempts::from_json(attempts));
  return session;
}

// A ledger's position, in the form that a checkpoint keeps: JSON.
std::string ledger_mark(const std::string& path) {
  const accountant::LedgerContents ledger = accountant::read_ledger(path);
  return to_json(LedgerMark{.header_hash = ledger.header_hash,
                            .head = ledger.head,
                            .releases = static_cast<int64_t>(ledger.entries.size())})
      .dump();
}

// The header (JSON) and its hash, all charges as (noise_multiplier, sampling_rate, steps), and the attempts of the
// steps from `step` on (dp/run/resume.h). Of units in groups the charges are the rounds of the group with the most.
// mark "": none.
std::tuple<std::string, std::string, History, StepPairs> resume_ledger(const std::string& path, const std::string& mark,
                                                                       int64_t step) {
  const accountant::LedgerContents ledger = accountant::read_ledger(path);
  std::optional<LedgerMark> found;
  if (!mark.empty()) found = ledger_mark_from_json(nlohmann::json::parse(mark));
  accountant::Rounds rounds(accountant::sampling_groups(ledger.header));
  const Attempts attempts = resume_attempts(ledger, found, step, /*left_out=*/rounds.groups() > 1);
  std::map<std::pair<double, double>, int64_t> charged;
  for (const auto& entry : ledger.entries) {
    if (!rounds.add(entry.step)) continue;
    if (const auto* poisson = std::get_if<accountant::PoissonGaussianEvent>(&entry.event)) {
      ++charged[{poisson->sigma.value(), poisson->q.value()}];
    } else if (const auto* whole = std::get_if<accountant::GaussianEvent>(&entry.event)) {
      ++charged[{whole->sigma.value(), 1.0}];
    } else if (const auto* adaptive = std::get_if<accountant::AdaptiveClippingEvent>(&entry.event)) {
      ++charged[{whole_noise(*adaptive), adaptive->q.value()}];
    } else if (const auto* cut = std::get_if<accountant::TruncatedPoissonGaussianEvent>(&entry.event)) {
      ++charged[{cut->sigma.value(), cut->q.value()}];  // the header, which the caller compares, says the rest
    } else if (const auto* pass = std::get_if<accountant::BallsInBinsGaussianEvent>(&entry.event)) {
      ++charged[{pass->sigma.value(), 1 / static_cast<double>(pass->steps)}];  // a whole pass
    } else {
      throw std::invalid_argument("ledger " + path + " has charges of a kind that a history cannot hold: line " +
                                  std::to_string(entry.sequence + 1));
    }
  }
  History history;
  for (const auto& [terms, steps] : charged) history.emplace_back(terms.first, terms.second, steps);
  return {ledger.header.dump(), ledger.header_hash, history, attempts.to_json().get<StepPairs>()};
}

void set_terms(Session& session, double clip_norm, double noise_multiplier) {
  // Opacus allows steps without noise.
  std::optional<accountant::NoiseMultiplier> sigma;
  if (noise_multiplier != 0) sigma.emplace(noise_multiplier);
  session.set_terms(accountant::ClipNorm(clip_norm), sigma);
}

void attach_ledger(Session& session, const std::string& path, const std::string& header, bool reopen) {
  if (reopen) {
    auto ledger = accountant::LedgerWriter::reopen(path);
    ledger.begin_epoch(session.next().step, session.key().run_id_hex(), session.key().public_facts());
    session.attach_ledger(std::move(ledger));
    return;
  }
  nlohmann::json lines = nlohmann::json::parse(header);
  lines["run_id"] = session.key().run_id_hex();
  lines["key"] = session.key().public_facts();
  session.attach_ledger(accountant::LedgerWriter::create(path, std::move(lines)));
}

// The units of one draw of a Poisson loader, which charges each of its draws.
std::vector<int64_t> drawn_by(const std::string& key, const std::string& run_id, int64_t step, int64_t units,
                              double sampling_rate) {
  const RunKey run_key = RunKey::from_bytes(key_bytes(key), run_id_from_hex(run_id));
  return drawn_units(run_key, {.step = step, .attempt = 0}, 0, units,
                     CoinBound::of_rate(accountant::SamplingRate(sampling_rate)));
}

// The same of a loader whose batches are truncated.
std::vector<int64_t> kept_by(const std::string& key, const std::string& run_id, int64_t step, int64_t units,
                             double sampling_rate, int64_t cap) {
  const RunKey run_key = RunKey::from_bytes(key_bytes(key), run_id_from_hex(run_id));
  return truncated(drawn_by(key, run_id, step, units, sampling_rate), cap, run_key, {.step = step, .attempt = 0});
}

// The units in this step's bin of the one pass that is dealt under the key (dp/mechanism/bins.h).
std::vector<int64_t> dealt_by(const std::string& key, const std::string& run_id, int64_t bins, int64_t step,
                              int64_t units) {
  if (!(step >= 0 && step < bins)) {
    throw std::invalid_argument("a pass of " + std::to_string(bins) + " steps has none of number " +
                                std::to_string(step));
  }
  const RunKey run_key = RunKey::from_bytes(key_bytes(key), run_id_from_hex(run_id));
  return BinPasses{.steps = bins}.units_of(run_key, {.step = step}, 0, units);
}

void begin_packed(Session& session, const std::vector<int64_t>& extents, const std::vector<int64_t>& offsets,
                  const std::optional<at::Tensor>& order, bool one_for_each) {
  session.begin_microbatch(std::make_shared<const PackedRows>(extents, offsets, order.value_or(at::Tensor()),
                                                              one_for_each, session.device()));
}

PYBIND11_MODULE(engine, module) {
  module.doc() = "Private steps on a PyTorch model (dp/run/session.h).";
  module.attr("build_id") = build_id();
  // Records are private data: Python can pass a tape on and nothing else.
  // NOLINTNEXTLINE(bugprone-unused-raii): it registers the type
  py::class_<Tape, std::shared_ptr<Tape>>(module, "Tape")
      // Asked first by every backward that is written in Python.
      .def_property_readonly("in_second_pass",
                             [](const Tape& tape) {
                               tape.require_open();
                               return tape.in_second_pass();
                             })
      .def_property_readonly("refused_second_backward", &Tape::refused_second_backward);
  module.def("cross_entropy", &cross_entropy, py::arg("logits"), py::arg("targets"), py::arg("ignore_index"),
             Released());
  module.def("leaves_of", &leaves_of, py::arg("loss"));
  // Whether this build can compute on tensors there: always on the CPU.
  module.def(
      "has_kernels", [](at::Device device) { return device.is_cpu() || kernels::has_kernels(device.type()); },
      py::arg("device"));
  module.def("drawn_units", &drawn_by, py::arg("key"), py::arg("run_id"), py::arg("step"), py::arg("units"),
             py::arg("sampling_rate"), Released());
  module.def("kept_units", &kept_by, py::arg("key"), py::arg("run_id"), py::arg("step"), py::arg("units"),
             py::arg("sampling_rate"), py::arg("cap"), Released());
  module.def("dealt_units", &dealt_by, py::arg("key"), py::arg("run_id"), py::arg("bins"), py::arg("step"),
             py::arg("units"), Released());
  module.def(
      "gradient_noise",
      [](const QuantileEntry::value_type& entry, double whole) {
        return quantile_of(entry)->gradient_noise(accountant::NoiseMultiplier(whole)).value();
      },
      py::arg("clip_quantile"), py::arg("noise_multiplier"));
  module.def("band_ratios", &band_ratios, py::arg("bands"), py::arg("rates"), py::arg("momenta"), Released());
  module.def("chain_decay", &chain_decay, py::arg("steps"), py::arg("rates"), py::arg("momenta"), Released());
  module.def("correlated_variance", &correlated_variance, py::arg("correlation"), py::arg("steps"));
  define_moments(module);
  define_traces(module);
  module.def("reuse_host_memory", &fsdp::reuse_host_memory, Released());
  module.def(
      "host_memory_left", [] { return host_memory_left(); }, Released());
  module.def(
      "digest_of_file", [](const std::string& path) { return digest_of_file(path); }, py::arg("path"), Released());
  module.def("ledger_mark", &ledger_mark, py::arg("path"), Released());
  module.def("resume_ledger", &resume_ledger, py::arg("path"), py::arg("mark"), py::arg("step"), Released());
  py::class_<Session>(module, "Session")
      .def(py::init(&make_session), py::arg("blocks"), py::arg("mesh"), py::arg("rank"), py::arg("groups"),
           py::arg("device"), py::arg("sampling_rate"), py::arg("divisor"), py::arg("clipping"),
           py::arg("clip_quantile"), py::arg("expected_batch"), py::arg("largest_batch"), py::arg("bins"),
           py::arg("correlation"), py::arg("streamed"), py::arg("memory_budget"), py::arg("hold_memory"),
           py::arg("key"), py::arg("run_id"), py::arg("first"), py::arg("attempts"), Released())
      .def_property_readonly("clip_norm", [](const Session& session) { return session.clip_norm().value(); })
      .def("set_terms", &set_terms, py::arg("clip_norm"), py::arg("noise_multiplier"))
      .def("begin_pass", &Session::begin_pass)
      .def("draw_from", &Session::draw_from, py::arg("group"))
      .def(
          "renew_noise_key",
          [](Session& session, const std::string& bytes) { session.renew_noise_key(key_bytes(bytes)); },
          py::arg("bytes"), Released())
      .def("attach_ledger", &attach_ledger, py::arg("path"), py::arg("header"), py::arg("reopen"))
      .def("begin_microbatch", py::overload_cast<int64_t, bool>(&Session::begin_microbatch), py::arg("units"),
           py::arg("of_nobody") = false)
      .def("begin_packed", &begin_packed, py::arg("extents"), py::arg("offsets"), py::arg("order"),
           py::arg("one_for_each"))
      .def_property_readonly("units", &Session::units)
      .def_property_readonly("tape", &Session::tape)
      .def("linear", &Session::linear, py::arg("weight"), py::arg("bias"), py::arg("stored_transposed"), py::arg("x"),
           py::arg("weight_value"), py::arg("bias_value"), Released())
      .def("embedding", &Session::embedding, py::arg("table"), py::arg("ids"), py::arg("table_value"),
           py::arg("padding_id"), Released())
      .def("layer_norm", &Session::layer_norm, py::arg("scale"), py::arg("shift"), py::arg("x"), py::arg("epsilon"),
           py::arg("scale_value"), py::arg("shift_value"), Released())
      .def("affine", &Session::affine, py::arg("scale"), py::arg("shift"), py::arg("x"), py::arg("scale_value"),
           py::arg("shift_value"), Released())
      .def("count_use", &Session::count_use, py::arg("parameter"))
      .def("instantiated", &Session::instantiated, py::arg("tape"), py::arg("parameter"), py::arg("gradients"),
           Released())
      .def("begin_attribution_check", &Session::begin_attribution_check, py::arg("chosen"))
      .def("watched_masses", &Session::watched_masses)
      .def("end_attribution_check", &Session::end_attribution_check)
      .def_property_readonly("takes_two_passes", &Session::takes_two_passes)
      .def_property_readonly("in_two_passes", &Session::in_two_passes)
      .def("second_pass", &Session::second_pass, Released())
      .def("clip", &Session::clip, Released())
      .def("give_up_microbatch", &Session::give_up_microbatch)
      .def("release", &Session::release, Released())
      .def("abandon", &Session::abandon)
      .def_property_readonly("open", &Session::open)
      .def_property_readonly(
          "next", [](const Session& session) { return std::pair(session.next().step, session.next().attempt); })
      .def_property_readonly("bytes_sent", &Session::bytes_sent);
}

}  // namespace
}  // namespace ghostshard::dp
