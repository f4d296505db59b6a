#include "dp/planning/step_costs.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "dp/planning/memory_budget.h"
#include "fsdp/agree.h"

namespace ghostshard::dp {
namespace {

using kernels::MachineRates;

constexpr std::array<std::pair<const char*, double MachineRates::*>, 6> kRates = {
    {{"product_flops", &MachineRates::product_flops},
     {"gram_flops", &MachineRates::gram_flops},
     {"bytes", &MachineRates::bytes},
     {"seconds_per_row_element", &MachineRates::seconds_per_row_element},
     {"narrow_from_rows", &MachineRates::narrow_from_rows},
     {"narrow_slowdown", &MachineRates::narrow_slowdown}}};
constexpr const char* kLink = "link_bytes_per_second";
constexpr const char* kRoom = "room_bytes";

double positive(const nlohmann::json& costs, const char* name) {
  const auto found = costs.is_object() ? costs.find(name) : costs.end();
  const bool number = found != costs.end() && found->is_number();
  if (!number || !std::isfinite(found->get<double>()) || found->get<double>() <= 0) {
    throw std::invalid_argument(std::string("costs of a step: ") + name + " must be there, finite and > 0; got " +
                                (found == costs.end() ? "none" : found->dump()));
  }
  return found->get<double>();
}

double link_bytes_per_second(fsdp::Mesh& mesh) {
  constexpr int64_t kElements = int64_t{1} << 21;
  constexpr int kRuns = 3;
  fsdp::Communicator& gather = mesh.gather();
  const auto options = at::dtype(at::kFloat).device(mesh.device());
  const at::Tensor mine = at::zeros({kElements}, options), all = at::empty({kElements * gather.size()}, options);
  double seconds = HUGE_VAL;
  for (int run = 0; run <= kRuns; ++run) {  // the first makes connections
    const auto begin = std::chrono::steady_clock::now();
    gather.all_gather(all, mine)->wait();
    c10::impl::VirtualGuardImpl(mesh.device().type()).synchronizeDevice(mesh.device().index());
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (run > 0) seconds = std::min(seconds, taken.count());
  }
  return static_cast<double>(kElements * 4 * (gather.size() - 1)) / std::max(seconds, 1e-9);
}

}  // namespace

std::string StepCosts::to_json() const {
  nlohmann::ordered_json costs;
  for (const auto& [name, field] : kRates) costs[name] = rates.*field;
  costs[kLink] = link_bytes_per_second;
  if (std::isfinite(room_bytes)) costs[kRoom] = room_bytes;
  return costs.dump();
}

StepCosts StepCosts::from_json(const std::string& text) {
  const auto costs = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  StepCosts found;
  for (const auto& [name, field] : kRates) found.rates.*field = positive(costs, name);
  found.link_bytes_per_second = positive(costs, kLink);
  if (costs.contains(kRoom)) found.room_bytes = positive(costs, kRoom);
  return found;
}

StepCosts step_costs(fsdp::Mesh& mesh, at::ScalarType rows, const std::string& known,
                     const kernels::MeasuredLayer& layer) {
  std::string costs = fsdp::broadcast_text(mesh, known);
  if (costs.empty()) {
    StepCosts measured;
    measured.room_bytes = memory_room(mesh);
    if (!mesh.device().is_cpu()) {
      if (mesh.shape().shard > 1) measured.link_bytes_per_second = link_bytes_per_second(mesh);
      fsdp::agree(mesh, [&] {
        if (mesh.rank() == 0) measured.rates = kernels::measured_rates(mesh.device(), rows, layer);
      });
    }
    costs = fsdp::broadcast_text(mesh, measured.to_json());
  }
  StepCosts found;
  fsdp::agree(mesh, [&] { found = StepCosts::from_json(costs); });
  return found;
}

}  // namespace ghostshard::dp
