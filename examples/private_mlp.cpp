// A model of your own, trained with differential privacy: a small network that tells the points of two rings apart.
//
//   private_mlp run1                                                      one process
//   torchrun --nproc-per-node 2 --no-python private_mlp run1              two, which share the model
//   private_mlp run1 resume                                               goes on with a run that was stopped
//
// One point is one privacy unit. Everything else that a private run needs (sampling, clipping, noise, accounting,
// ledger, checkpoints, report) is dp/run/private_run.h's.
#include <ATen/CPUGeneratorImpl.h>

#include <iostream>
#include <string>
#include <vector>

#include "accountant/report.h"
#include "dp/recording/layers.h"
#include "dp/run/digest.h"
#include "dp/run/private_run.h"
#include "fsdp/agree.h"

namespace {

using namespace ghostshard;

constexpr int64_t kPoints = 4000;

// Points [N,2] on two rings with some scatter, and the ring of each: int64 [N].
struct Rings {
  at::Tensor points, labels;

  Rings() {
    const at::Generator generator = at::detail::createCPUGenerator(1);
    labels = at::randint(0, 2, {kPoints}, generator, at::kLong);
    const at::Tensor angle = at::rand({kPoints}, generator) * (2 * M_PI);
    const at::Tensor radius = 1.0 + labels + 0.2 * at::randn({kPoints}, generator);
    points = at::stack({radius * angle.cos(), radius * angle.sin()}, 1).to(at::kFloat);
  }
};

class Mlp {
 public:
  explicit Mlp(fsdp::Mesh& mesh)
      : weights(mesh, {{"mlp", {{"in.weight", {32, 2}}, {"in.bias", {32}}, {"out.weight", {2, 32}}}}}) {
    const at::Generator generator = at::detail::createCPUGenerator(2);
    for (const auto& parameter : weights.parameters()) {
      weights.set_parameter(*parameter, 0.5 * at::randn(parameter->whole_shape(), generator));
    }
  }

  // The sum of the losses of these points [N,2], each a unit of one row.
  at::Tensor loss(const at::Tensor& points, const at::Tensor& labels, const dp::RecorderPtr& recorder) {
    const auto rows = std::make_shared<kernels::Segments>(kernels::Segments::even(points.size(0), 1));
    const dp::LinearUse in{.weight = &weights.parameter("in.weight"), .bias = &weights.parameter("in.bias")};
    const dp::LinearUse out{.weight = &weights.parameter("out.weight")};
    const auto forward = [&](const at::Tensor& x) {
      return dp::linear_cross_entropy(out, dp::linear(in, x, rows, recorder).tanh(), labels, rows, recorder);
    };
    return fsdp::run_block(weights, /*block=*/0, /*next_forward=*/-1, /*next_backward=*/-1, points, forward).sum();
  }

  fsdp::ShardedModel weights;
};

void train(fsdp::Mesh& mesh, const std::string& folder, bool resume) {
  const Rings data;
  Mlp model(mesh);
  dp::DpConfig plan{.units = kPoints, .expected_batch = 200, .steps = 60};
  plan.clip_norm = accountant::ClipNorm(0.5);
  plan.target_epsilon = accountant::Epsilon(2);
  plan.unit_of_privacy = "point";

  dp::RunOptions options{{.folder = folder, .resume = resume}};
  options.parts = {{"the points",
                    dp::digest_of({static_cast<const char*>(data.points.const_data_ptr()), data.points.nbytes()}),
                    dp::Part::Binds::kRunInSecret}};
  auto run = dp::PrivateRun::begin(model.weights, fsdp::make_adamw(model.weights, {}), plan, options);
  while (auto step = run.next()) {
    step->add({}, 64, [&](std::span<const int64_t> units, const dp::RecorderPtr& recorder) {
      const at::Tensor chosen = at::tensor(at::ArrayRef<int64_t>(units.data(), units.size()), at::kLong);
      return model.loss(data.points.index_select(0, chosen), data.labels.index_select(0, chosen), recorder);
    });
    step->update(0.05);
  }
  const auto report = run.finish();
  if (mesh.rank() == 0) std::cout << accountant::summarize_report(report) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const bool resume = words.size() == 2 && words[1] == "resume";
    if (words.empty() || words[0].starts_with('-') || (words.size() > 1 && !resume)) {
      std::cerr << "usage: private_mlp FOLDER [resume]\n";
      return 2;
    }
    const auto mesh = fsdp::Mesh::from_environment(std::chrono::seconds(600));
    train(*mesh, words[0], resume);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return dynamic_cast<const fsdp::AgreedFailure*>(&error) != nullptr ? 2 : 1;
  }
}
