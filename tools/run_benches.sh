#!/usr/bin/env bash
# Runs every micro-benchmark and keeps its numbers as JSON with the commit and the processor beside them.
# Usage: tools/run_benches.sh [Google Benchmark option ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tree=build/${GHOSTSHARD_PRESET:-release}
mkdir -p "$tree/bench"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
commit=$(git describe --always --dirty 2> /dev/null || echo unknown)
processor=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | sort -u | head -n 1)
found=0
for program in "$tree"/bin/*_bench; do
  [ -x "$program" ] || continue
  found=1
  name=$(basename "$program")
  echo "== $name"
  "$program" --benchmark_context=commit="$commit" --benchmark_context=processor="${processor:-unknown}" \
    --benchmark_out="$tree/bench/$name.json" --benchmark_out_format=json "$@"
done
if [ $found = 0 ]; then
  echo "bench: no program named *_bench in $tree/bin" >&2
  exit 1
fi

# A private training step beside the same step without privacy, over two ranks.
echo "== step_compare"
.venv/bin/torchrun --standalone --no-python --nproc-per-node 2 "$tree/bin/step_compare" --layers 4 --width 384 --heads 6 \
  --vocab 8192 --length 100 --texts 8 --microbatches 4 --repeats 5 | tee "$tree/bench/step_compare.json"
