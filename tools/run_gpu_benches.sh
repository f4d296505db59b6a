#!/usr/bin/env bash
# Builds the preset cuda's benches and runs them on the first GPU: kernels beside their peers, a private step beside a
# plain one from C++, GhostShard beside FSDP2 and Opacus from Python. Results go to bench/results/gpu/*.json, with the
# device's name and the commit in each.
# Usage: tools/run_gpu_benches.sh [-j N] [--short] [--minutes N]
# --minutes (default 20) bounds what is begun: a bench that does not fit any more is ended or left out, and named.
# Where there is no GPU it builds, says so and runs nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=2 minutes=20 short=
while [ $# -gt 0 ]; do
  case $1 in
    -j) jobs=$2; shift 2 ;;
    --minutes) minutes=$2; shift 2 ;;
    --short) short=1; shift ;;
    *) echo "bench-gpu: -j N, --short and --minutes N are known, not $1" >&2; exit 2 ;;
  esac
done
if ! [[ $minutes =~ ^[1-9][0-9]*$ ]]; then
  echo "bench-gpu: --minutes must be a whole number of at least 1, got '$minutes'" >&2
  exit 2
fi
export OMP_NUM_THREADS=1 GHOSTSHARD_MODULES=$PWD/build/cuda/python

GHOSTSHARD_PRESET=cuda tools/build.sh -j "$jobs" device_kernels step_compare ghostshard_python_engine \
  ghostshard_python_accountant
if ! tools/has_gpu.sh; then
  echo 'bench-gpu: everything is built, and nothing was run: this machine has no CUDA device'
  exit 0
fi

commit=$(git describe --always --dirty 2> /dev/null || echo unknown)
results=bench/results/gpu
mkdir -p "$results"
SECONDS=0
failed=0 left_out=0

# bench NAME PROGRAM ARGUMENT ... : within the time that is left. OUT in an argument is the file that it writes, which
# is kept where it is whole: a bench that is ended may have written down what it has measured by then.
bench() {
  local name=$1 left=$((60 * minutes - SECONDS)) status=0 part=$results/$1.json.part
  shift
  if [ $left -le 0 ]; then
    echo "== $name: left out, the $minutes minutes are over"
    left_out=$((left_out + 1))
    return
  fi
  echo "== $name"
  timeout "$left" "${@//OUT/$part}" || status=$?
  if .venv/bin/python -m json.tool "$part" > /dev/null 2>&1; then
    mv "$part" "$results/$name.json"
  else
    rm -f "$part"
  fi
  if [ $status = 124 ]; then
    echo "== $name: ended, the $minutes minutes are over"
    left_out=$((left_out + 1))
  elif [ $status != 0 ]; then
    echo "== $name: failed with status $status"
    failed=$((failed + 1))
  fi
}

# step MODEL LENGTH DTYPE ARGUMENT ... : texts fill about 8,192 rows of a microbatch.
step() {
  bench "step_$1_T$2_$3" build/cuda/bin/step_compare --device cuda --commit "$commit" --output OUT --model "$1" \
    --length "$2" --texts $((8192 / $2)) --compute-dtype "$3" "${@:4}"
}
# Five engines share the device's memory, so that half of the rows must do.
peers() {
  bench "peers_124M_T$1_$2" .venv/bin/python bench/peers.py --device cuda --output OUT --shapes "124M_T$1" \
    --texts $((4096 / $1)) --compute-dtype "$2" "${@:3}"
}
kernels() {
  bench "kernels_$1" build/cuda/bin/device_kernels --device cuda --commit "$commit" --benchmark_out=OUT \
    --benchmark_out_format=json --models "$1" "${@:2}"
}

if [ -n "$short" ]; then
  step 124M 1024 bfloat16 --microbatches 2 --repeats 3
  kernels 124M --dtypes float32 bfloat16 --repeats 5
  peers 1024 bfloat16 --microbatches 1 --repeats 2
else
  # What says most comes first, in case that the time does not reach.
  for length in 1024 100; do
    for dtype in bfloat16 float32; do step 124M $length $dtype; done
  done
  kernels 124M
  for dtype in bfloat16 float32; do
    for length in 1024 100; do peers $length $dtype --repeats 5; done
  done
  for model in 355M 774M; do
    for length in 1024 100; do step $model $length bfloat16; done
    kernels $model
  done
fi

echo "bench-gpu: results are in $results, after $((SECONDS / 60)) minutes; $left_out left out or ended, $failed failed"
[ $failed = 0 ]
