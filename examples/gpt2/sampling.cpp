#include "examples/gpt2/sampling.h"

#include <cmath>
#include <stdexcept>

namespace ghostshard::gpt2 {

void add_sampling(CLI::Option_group* group, Options& options) {
  group
      ->add_option(
          "--sampling", options.sampling,
          "poisson: each text is in each step by a coin of its own. balls-in-bins: each text is in one random "
          "step of each pass over the data; less noise for the same epsilon, and a run that was stopped begins "
          "another pass, which costs a whole one")
      ->check(CLI::IsMember({"poisson", "balls-in-bins"}))
      ->capture_default_str();
}

void check_sampling_of_texts(const Options& options) {
  if (dp::sampling_from_string(options.sampling) == dp::Sampling::kPoisson) return;
  if (options.non_private)
    throw std::invalid_argument("--sampling balls-in-bins is for private steps: --non-private draws as poisson does");
  if (options.noise_bands > 1 || options.noise_chain > 1)
    throw std::invalid_argument(
        "--sampling balls-in-bins is derived for white noise: it cannot be combined with --noise-bands "
        "or --noise-chain");
  if (options.noise_blt > 0)
    throw std::invalid_argument(
        "--noise-blt has sampling of its own: it cannot be combined with --sampling "
        "balls-in-bins");
}

double steps_of_epochs(const Options& options, double epochs, int64_t units) {
  if (dp::sampling_from_string(options.sampling) == dp::Sampling::kBallsInBins || options.noise_blt > 0)
    return std::ceil(epochs * static_cast<double>(dp::BinPasses::steps_of(units, options.expected_batch)));
  return std::ceil(epochs * static_cast<double>(units) / static_cast<double>(options.expected_batch));
}

}  // namespace ghostshard::gpt2
