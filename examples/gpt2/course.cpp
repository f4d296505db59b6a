#include "examples/gpt2/course.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "examples/gpt2/number_text.h"
#include "fsdp/agree.h"

namespace ghostshard::gpt2 {
namespace {

int64_t last_step(const Options& o, const Inputs& in, const Resumption& resumed) {
  if (!in.plan || !std::isfinite(in.plan->epsilon_after(in.steps).upper)) return in.steps;
  const double promised = in.plan->promised_epsilon().value();
  const accountant::Epsilon limit(std::max(promised, o.epsilon_limit.value_or(promised)));
  return resumed.step + in.plan->steps_within(limit, resumed.releases, in.steps - resumed.step);
}

}  // namespace

std::optional<Resumption> find_resumption(const Options& o, fsdp::Mesh& mesh) {
  if (!o.resume) return std::nullopt;
  std::optional<Resumption> found;
  fsdp::agree(mesh, [&] {
    if (mesh.rank() == 0) found.emplace(find_run(o));
  });
  const std::string told = fsdp::broadcast_text(mesh, found ? found->to_json().dump() : "");
  return found ? std::move(found) : Resumption::from_json(nlohmann::json::parse(told));
}

Extent extent_of(const Options& o, const Inputs& in, const Resumption& resumed) {
  Extent extent{.last = last_step(o, in, resumed)};
  extent.done = resumed.outputs_whole && (!in.plan || resumed.steps_charged == in.steps || extent.last == resumed.step);
  if (!extent.done && extent.last == 0) {
    throw std::invalid_argument("--resume: no step can be redone within the promised epsilon of " +
                                number_text("%.4f", in.plan->promised_epsilon().value()) +
                                ", which the ledger has spent: --epsilon-limit raises it");
  }
  return extent;
}

bool settle_course(Course& course, const Resumption& resumed, const Extent& extent, fsdp::Mesh& mesh) {
  const auto decided = nlohmann::json::parse(
      fsdp::broadcast_text(mesh, nlohmann::json{{"last", extent.last}, {"done", extent.done}}.dump()));
  course.first = resumed.step;
  course.last = decided.at("last").get<int64_t>();
  course.attempts = resumed.attempts;
  course.releases = resumed.releases;
  return decided.at("done").get<bool>();
}

}  // namespace ghostshard::gpt2
