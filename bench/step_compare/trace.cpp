#include "bench/step_compare/trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <set>

namespace ghostshard::gpt2 {

void trace(bool cuda, const std::string& file, const std::function<void()>& step) {
  using namespace torch::autograd::profiler;
  std::set<torch::profiler::impl::ActivityType> activities = {torch::profiler::impl::ActivityType::CPU};
  if (cuda) activities.insert(torch::profiler::impl::ActivityType::CUDA);
  const ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  prepareProfiler(config, activities);
  enableProfiler(config, activities);
  step();
  disableProfiler()->save(file);
}

}  // namespace ghostshard::gpt2
