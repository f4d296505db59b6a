// Beside each case: what the compiler's error must say (an extended regular expression). All cases are compiled at
// once.
#include "dp/mechanism/optimizer.h"
#include "dp/mechanism/plan.h"

using namespace ghostshard;

void misuse(dp::ClippedSum& sum, dp::PrivateGradient& gradient, dp::PrivateOptimizer& optimizer,
            fsdp::ShardedModel& model, fsdp::Optimizer& plain, const fsdp::ShardBuffers& slices, const dp::RunKey& key,
            const dp::DpPlan& plan, dp::Tape& tape, const std::shared_ptr<fsdp::GradientBuffers>& buffers,
            const std::shared_ptr<fsdp::ShardBuffers>& shared_slices) {
#ifdef READ_A_CLIPPED_SUM  // sums_.*is private
  { sum.sums_->zero(); }
#endif
#ifdef COPY_A_CLIPPED_SUM  // use of deleted function|deleted constructor
  { dp::ClippedSum copy = sum; }
#endif
#ifdef MAKE_A_CLIPPED_SUM  // is private|private constructor
  { dp::ClippedSum made(buffers, dp::StepTerms{}, 1); }
#endif
#ifdef CHANGE_A_CLIPPED_SUMS_TERMS  // is private
  { sum.terms_.noise_multiplier.reset(); }
#endif
#ifdef STEP_ON_A_CLIPPED_SUM  // cannot convert|cannot bind|no matching|could not convert|no viable
  { optimizer.step(std::move(sum), 0.1); }
#endif
#ifdef STEP_ON_RAW_SLICES  // cannot convert|cannot bind|no matching|could not convert|no viable|is private
  { optimizer.step(slices, 0.1); }
#endif
#ifdef MAKE_A_PRIVATE_GRADIENT  // is private|private constructor
  { dp::PrivateGradient made(shared_slices); }
#endif
#ifdef COPY_A_PRIVATE_GRADIENT  // use of deleted function|deleted constructor
  { dp::PrivateGradient copy = gradient; }
#endif
#ifdef PLAIN_OPTIMIZER_ON_A_CLIPPED_SUM  // cannot convert|invalid initialization|no viable|no matching
  { plain.step(sum, 0.1); }
#endif
#ifdef MAKE_A_SAMPLER  // is private|private constructor
  { dp::PoissonSampler sampler(key, 10, 2, 0, 1); }
#endif
#ifdef MAKE_A_CLIPPER  // is private|private constructor
  { dp::Clipper clipper(model, std::make_shared<dp::StepTerms>(), dp::Clipping::kFlat, dp::ClipperOptions{}, 1); }
#endif
#ifdef MAKE_A_MECHANISM  // is private|private constructor
  { dp::GaussianMechanism mechanism(model, key, nullptr, 1.0, 1); }
#endif
#ifdef MAKE_A_PLAN  // is private|private constructor
  { dp::DpPlan made(dp::DpConfig{}, accountant::NoiseMultiplier(1.0), accountant::Delta(1e-6)); }
#endif
#ifdef READ_A_TAPE  // is private|private member
  { (void)tape.squared_norms(); }
#endif
#ifdef SWAP_EPSILON_AND_DELTA  // no match|cannot convert|could not convert|no viable|conversion
  {
    dp::DpConfig config;
    config.delta = accountant::Epsilon(1.0);
  }
#endif
#ifdef BARE_NUMBER_AS_CLIP_NORM  // cannot convert|could not convert|no viable|no match
  {
    dp::DpConfig config;
    config.clip_norm = 1.0;
  }
#endif
#ifdef COPY_A_KEY  // use of deleted function|deleted constructor
  { dp::RunKey copy = key; }
#endif
  (void)sum, (void)gradient, (void)optimizer, (void)model, (void)plain, (void)slices, (void)key, (void)plan, (void)tape;
  (void)buffers, (void)shared_slices;
}
