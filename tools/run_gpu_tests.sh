#!/usr/bin/env bash
# Builds the preset cuda and runs its tests on device tensors (label gpu: kernels and engine), then the Python path's on
# the GPU, then the kernels' once more under compute-sanitizer.
# Usage: tools/run_gpu_tests.sh [-j N]. Without a GPU it builds, says so and runs nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=2
if [ "${1:-}" = -j ]; then jobs=$2; fi
program=build/cuda/bin/kernels_gpu_test
export OMP_NUM_THREADS=1 GHOSTSHARD_SOURCE_DIR=$PWD

GHOSTSHARD_PRESET=cuda tools/build.sh -j "$jobs" kernels_gpu_test engine_gpu_test ghostshard-finetune-gpt2 \
  ghostshard_python_engine ghostshard_python_accountant
if ! tools/has_gpu.sh; then
  echo 'test-gpu: everything is built, and nothing was run: this machine has no CUDA device'
  exit 0
fi
# Time on a GPU is dear: what fails does not keep the rest from running.
failed=0
.venv/bin/ctest --test-dir build/cuda -L gpu --output-on-failure --no-tests=error || failed=1
GHOSTSHARD_TEST_DEVICE=cuda GHOSTSHARD_MODULES=$PWD/build/cuda/python .venv/bin/python -m pytest tests/python/device -q ||
  failed=1

sanitizer=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
if [ ! -x "$sanitizer" ]; then
  echo 'test-gpu: there is no compute-sanitizer, so nothing was run under it'
  exit $failed
fi
for tool in memcheck racecheck synccheck; do
  echo "== compute-sanitizer $tool"
  "$sanitizer" --tool "$tool" --error-exitcode 1 "$program" --gtest_brief=1 || failed=1
done
exit $failed
