#include "examples/gpt2/finetune.h"

#include <sys/resource.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <optional>

#include "accountant/report.h"
#include "dp/nonprivate.h"
#include "dp/optimizer.h"
#include "dp/plan.h"
#include "examples/gpt2/checkpoint.h"
#include "examples/gpt2/evaluate.h"
#include "examples/gpt2/generate.h"
#include "examples/gpt2/progress.h"
#include "examples/gpt2/run_folder.h"
#include "fsdp/agree.h"

namespace ghostshard::gpt2 {
namespace {

// What the options name, read and checked.
struct Inputs {
  std::optional<Folder> folder;
  Config config;
  nlohmann::json original_config;
  std::optional<Dataset> data;
  std::optional<Dataset> eval;
  int64_t steps = 0;
  std::optional<dp::DpPlan> plan;
  std::optional<dp::RunKey> key;
};

dp::RunKey noise_key(const Options& o) {
  if (!o.noise_key_file.empty()) return dp::RunKey::from_file(o.noise_key_file);
  return dp::RunKey::generate();
}

void check_public(const Dataset& texts, const std::string& path) {
  const auto declared = texts.metadata().find("declared");
  if (declared != texts.metadata().end() && declared->second == "private") {
    throw std::invalid_argument(path +
                                ": --eval-data must be public, the file was declared private when it was prepared");
  }
  if (texts.loss_tokens() == 0) {
    throw std::invalid_argument(path + ": there must be at least one token to predict, found none");
  }
}

int64_t steps_of_epochs(double epochs, int64_t units, int64_t expected_batch) {
  const double steps = std::ceil(epochs * static_cast<double>(units) / static_cast<double>(expected_batch));
  if (!(steps <= 1e12)) {
    throw std::invalid_argument("--epochs must give at most 1e12 steps, gives " + nlohmann::json(steps).dump());
  }
  return static_cast<int64_t>(steps);
}

// Everything a user can get wrong. Writes nothing and does not communicate. The key is rank 0's business.
Inputs read_inputs(const Options& o, int64_t rank) {
  Inputs in;
  if (!o.model.empty()) {
    in.folder = open_folder(o.model);
    in.config = in.folder->config;
    in.original_config = in.folder->original_config;
  } else {
    in.config = read_config(o.model_config);
    std::ifstream(o.model_config) >> in.original_config;
  }
  if (o.untied) in.config.tie_word_embeddings = false;
  in.data.emplace(o.data, in.config.vocab_size, in.config.n_positions);
  if (!o.eval_data.empty()) {
    in.eval.emplace(o.eval_data, in.config.vocab_size, in.config.n_positions);
    check_public(*in.eval, o.eval_data);
  }
  const int64_t n = in.data->units();
  if (o.expected_batch > n) {
    throw std::invalid_argument("--expected-batch must be at most the number of texts in " + o.data + " (" +
                                std::to_string(n) + "), got " + std::to_string(o.expected_batch));
  }
  in.steps = o.steps ? *o.steps : steps_of_epochs(*o.epochs, n, o.expected_batch);
  if (!o.non_private) {
    dp::DpConfig config{.units = n, .expected_batch = o.expected_batch, .steps = in.steps};
    config.clip_norm = accountant::ClipNorm(o.clip_norm);
    if (o.target_epsilon) config.target_epsilon = accountant::Epsilon(*o.target_epsilon);
    if (o.noise_multiplier) config.noise_multiplier = accountant::NoiseMultiplier(*o.noise_multiplier);
    if (o.delta) config.delta = accountant::Delta(*o.delta);
    in.plan = dp::DpPlan::make(config);
    // The other ranks' keys are placeholders until rank 0 shares its own.
    in.key.emplace(rank == 0 ? noise_key(o) : dp::RunKey::generate());
  }
  check_output_is_new(o.output);
  return in;
}

// Without privacy the batches may follow the seed, so that a run can be repeated.
dp::RunKey seeded_key(uint64_t seed) {
  std::array<uint8_t, 32> bytes{};
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(seed >> (8 * i));
  return dp::RunKey::from_bytes(bytes, dp::RunId{});
}

std::unique_ptr<fsdp::Optimizer> make_optimizer(const Options& o, fsdp::ShardedModel& parameters) {
  if (o.optimizer == "sgd") return fsdp::make_sgd(parameters, {.momentum = o.momentum, .weight_decay = o.weight_decay});
  return fsdp::make_adamw(parameters, {.weight_decay = o.weight_decay});
}

// Losses and batch sizes of private data, gathered only where the user allowed it.
struct PrivateMetrics {
  bool wanted = false;
  at::Tensor loss_and_units = at::zeros({2}, at::kDouble);

  void begin() { loss_and_units.zero_(); }
  void add(const at::Tensor& loss, int64_t units) {
    if (!wanted) return;
    double* values = loss_and_units.data_ptr<double>();
    values[0] += loss.item<double>();
    values[1] += static_cast<double>(units);
  }
  void fill(MetricsLine& line, fsdp::Mesh& mesh) const {
    if (!wanted) return;
    if (mesh.world_size() > 1) mesh.control().all_reduce_sum(loss_and_units);
    const double* values = loss_and_units.const_data_ptr<double>();
    line.private_batch = static_cast<int64_t>(values[1]);
    if (values[1] > 0) line.private_loss = values[0] / values[1];
  }
};

// Everything that happens beside a step: evaluation, metrics.jsonl, the progress line.
class Observer {
 public:
  Observer(const Options& o, const Inputs& in, Gpt2& model)
      : options_(o), in_(in), model_(model), mesh_(model.parameters().mesh()), progress_(in.steps, mesh_.rank() == 0) {
    every_ = o.eval_every > 0 ? o.eval_every : std::max<int64_t>(1, in.steps / 10);
    if (mesh_.rank() == 0) metrics_.emplace(std::filesystem::path(o.output) / "metrics.jsonl");
    if (in.eval) {
      tokens_per_text_ = static_cast<double>(in.eval->tokens()) / static_cast<double>(in.eval->units());
    }
    private_metrics.wanted = o.allow_nonprivate_metrics;
  }

  void after(int64_t steps_done, std::optional<double> epsilon) {
    MetricsLine line{
        .step = steps_done, .seconds = progress_.seconds() - evaluating_, .learning_rate = options_.learning_rate};
    line.epsilon = epsilon;
    if (tokens_per_text_ && steps_done > 0) {
      line.tokens_per_second =
          *tokens_per_text_ * static_cast<double>(options_.expected_batch * steps_done) / line.seconds;
    }
    if (steps_done > 0) private_metrics.fill(line, mesh_);
    if (in_.eval && (steps_done % every_ == 0 || steps_done == in_.steps)) {
      const double before = progress_.seconds();
      const Evaluation result = evaluate(model_, *in_.eval, options_.microbatch);
      evaluating_ += progress_.seconds() - before;
      line.eval_loss = result.loss;
      line.eval_standard_error = result.standard_error;
      if (!first_) first_ = result;
      last = result;
    }
    if (metrics_) metrics_->write(line);
    if (steps_done > 0) progress_.show({.step = steps_done, .epsilon = epsilon, .public_loss = line.eval_loss});
    if (steps_done == in_.steps) progress_.finish();
  }

  const std::optional<Evaluation>& first() const { return first_; }
  double training_seconds() const { return progress_.seconds() - evaluating_; }

  std::optional<Evaluation> last;
  PrivateMetrics private_metrics;

 private:
  const Options& options_;
  const Inputs& in_;
  Gpt2& model_;
  fsdp::Mesh& mesh_;
  Progress progress_;
  std::optional<MetricsFile> metrics_;
  std::optional<double> tokens_per_text_;
  std::optional<Evaluation> first_;
  int64_t every_ = 1;
  double evaluating_ = 0;
};

// One forward and one backward of a microbatch; what the recorder saw is what the step is made of.
void forward_and_backward(Gpt2& model, const TokenBatch& batch, const dp::RecorderPtr& recorder, Observer& observer) {
  const at::Tensor loss = model.summed_unit_losses(batch, recorder);
  loss.backward();
  observer.private_metrics.add(loss, batch.units());
}

void train_privately(const Options& o, const Inputs& in, Gpt2& model, const dp::RunKey& key,
                     accountant::LedgerWriter* ledger, Observer& observer) {
  const dp::DpPlan& plan = *in.plan;
  fsdp::Mesh& mesh = model.parameters().mesh();
  const dp::PoissonSampler sampler = plan.sampler(key, mesh.rank(), mesh.world_size());
  dp::Clipper clipper = plan.clipper(model.parameters());
  dp::GaussianMechanism mechanism = plan.mechanism(model.parameters(), key, ledger);
  dp::PrivateOptimizer optimizer(make_optimizer(o, model.parameters()));
  const auto spent = plan.accountant();

  observer.after(0, 0.0);
  for (int64_t step = 0; step < in.steps; ++step) {
    observer.private_metrics.begin();
    dp::ClippedSum sum = clipper.begin();
    {
      const auto resident = model.resident();
      for (const auto& units : sampler.draw_local({step}, o.microbatch, in.data->row_counts())) {
        const TokenBatch batch = in.data->batch(units);
        const auto tape = clipper.record(batch.units());
        forward_and_backward(model, batch, tape, observer);
        clipper.add(sum, tape);
      }
    }
    optimizer.step(mechanism.release(std::move(sum), {step}), o.learning_rate);
    spent->compose(plan.event(), 1);
    observer.after(step + 1, spent->epsilon(plan.delta(), accountant::Effort::kQuick).upper);
  }
}

void train_without_privacy(const Options& o, const Inputs& in, Gpt2& model, Observer& observer) {
  fsdp::Mesh& mesh = model.parameters().mesh();
  const dp::RunKey key = seeded_key(o.seed);
  const auto sampler = dp::nonprivate_sampler(key, in.data->units(), o.expected_batch, mesh.rank(), mesh.world_size());
  dp::PlainAccumulator accumulator(model.parameters(), static_cast<double>(o.expected_batch));
  const auto optimizer = make_optimizer(o, model.parameters());

  observer.after(0, std::nullopt);
  for (int64_t step = 0; step < in.steps; ++step) {
    observer.private_metrics.begin();
    accumulator.begin();
    {
      const auto resident = model.resident();
      for (const auto& units : sampler.draw_local({step}, o.microbatch, in.data->row_counts())) {
        forward_and_backward(model, in.data->batch(units), accumulator.recorder(), observer);
      }
    }
    optimizer->step(accumulator.reduce(), o.learning_rate);
    observer.after(step + 1, std::nullopt);
  }
}

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

void announce(const Options& o, const Inputs& in, Gpt2& model) {
  const Config& c = in.config;
  std::cerr << "GPT-2: " << c.n_layer << " blocks, width " << c.n_embd << ", vocabulary " << c.vocab_size << ", "
            << model.parameters().parameter_count() << " parameters, " << model.parameters().trainable_parameter_count()
            << " trained, on " << model.parameters().mesh().world_size() << " rank(s)\n";
  std::cerr << "Data: " << in.data->units() << " texts, expected batch " << o.expected_batch << ", " << in.steps
            << " steps\n";
  if (!in.plan) {
    std::cerr << "No privacy: --non-private trains without clipping and noise, nothing is guaranteed\n";
    return;
  }
  std::cerr << "Budget: noise multiplier " << text("%.4f", in.plan->noise_multiplier().value()) << ", clip norm "
            << text("%g", o.clip_norm) << ", epsilon " << text("%.4f", in.plan->epsilon_after(in.steps).upper)
            << " at delta " << text("%g", in.plan->delta().value()) << " after all steps\n";
  if (in.plan->delta().value() >= 1.0 / static_cast<double>(in.data->units())) {
    std::cerr << "warning: delta should be well below 1/n = " << text("%g", 1.0 / static_cast<double>(in.data->units()))
              << "; at " << text("%g", in.plan->delta().value()) << " publishing one text whole would be allowed\n";
  }
  if (o.allow_nonprivate_metrics) {
    std::cerr << "warning: losses and batch sizes of the private data will be written; they are not covered by the "
                 "guarantee\n";
  }
}

void summarize_loss(const Observer& observer) {
  if (!observer.first() || !observer.last) return;
  std::cout << "Public evaluation loss: " << text("%.4f", observer.first()->loss) << " before, "
            << text("%.4f", observer.last->loss) << " after (standard error "
            << text("%.4f", observer.last->standard_error) << ")\n";
}

double peak_memory_mib() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

}  // namespace

void finetune(const Options& o, fsdp::Mesh& mesh) {
  const bool first_rank = mesh.rank() == 0;
  const std::filesystem::path output(o.output);
  std::optional<Inputs> read;
  std::optional<Gpt2> built;
  std::optional<accountant::LedgerWriter> ledger;
  // A mistake that only one rank can see ends all of them, with its message and before anything is written.
  fsdp::agree(mesh, [&] {
    read.emplace(read_inputs(o, mesh.rank()));
    built.emplace(mesh, read->config, o.freeze);
    read->folder ? load_weights(*built, *read->folder) : initialize(*built, o.seed);
  });
  Inputs& in = *read;
  Gpt2& model = *built;
  if (in.key) in.key->share(mesh);
  fsdp::agree(mesh, [&] {
    if (!first_rank) return;
    std::filesystem::create_directories(output);
    if (!in.plan) return;
    nlohmann::json header = in.plan->ledger_header(*in.key);
    header["facts"] =
        report_facts(o, *in.plan, *in.key, mesh.world_size(), model.parameters().trainable_parameter_count());
    ledger = accountant::LedgerWriter::create(output / "ledger.jsonl", header);
  });
  if (first_rank) announce(o, in, model);

  Observer observer(o, in, model);
  if (o.non_private) {
    train_without_privacy(o, in, model, observer);
  } else {
    train_privately(o, in, model, *in.key, ledger ? &*ledger : nullptr, observer);
    if (first_rank) {
      const auto report = accountant::build_report(accountant::read_ledger(output / "ledger.jsonl"), in.plan->delta(),
                                                   nlohmann::json::object());
      accountant::write_report(output, report);
      std::cout << accountant::summarize_report(report) << '\n';
    }
  }
  save_folder(model, in.original_config, o.model, output / "model");
  mesh.control().barrier();
  if (!first_rank) return;
  summarize_loss(observer);
  const double seconds = observer.training_seconds();
  std::cout << "Time: " << clock_text(seconds) << " for " << in.steps << " steps ("
            << text("%.2f", static_cast<double>(o.expected_batch * in.steps) / seconds)
            << " texts/s expected), peak memory " << text("%.0f", peak_memory_mib()) << " MiB on rank 0\n";
  std::cout << "Written: " << (output / "model").string() << ", " << (output / "metrics.jsonl").string();
  if (!o.non_private) {
    std::cout << ", " << (output / "privacy_report.json").string() << ", " << (output / "privacy_report.html").string() << ", "
              << (output / "ledger.jsonl").string();
  }
  std::cout << '\n';
}

void generate_text(const Options& o) {
  const Folder folder = open_folder(o.model);
  const auto prompt = parse_token_ids(*o.generate_tokens, folder.config.vocab_size);
  const auto mesh = fsdp::Mesh::single();
  Gpt2 model(*mesh, folder.config, {});
  load_weights(model, folder);
  GenerationOptions how{
      .max_new_tokens = o.max_new_tokens, .temperature = o.temperature, .top_k = o.top_k, .seed = o.seed};
  const auto& eos = folder.original_config.value("eos_token_id", nlohmann::json());
  if (eos.is_number_integer()) how.end_token = eos.get<int64_t>();
  std::cout << "tokens: ";
  const char* separator = "";
  for (const int64_t id : generate(model, prompt, how)) {
    std::cout << separator << id;
    separator = ",";
  }
  std::cout << '\n';
}

}  // namespace ghostshard::gpt2
