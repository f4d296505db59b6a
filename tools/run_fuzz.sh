#!/usr/bin/env bash
# libFuzzer (clang's, with ASan and UBSan) on the readers of ledgers, events and reports, and tests/python/receipt_fuzzer.py on
# that of receipts, which is Python. Each target runs for so many seconds, or so many runs, from the seeds of
# tests/accountant/fuzz and from what earlier calls found; that corpus stays in build/fuzz/corpus. The last line is
# `N runs, N crashed`; an input that crashed lies in build/fuzz/crashes.
# Usage: tools/run_fuzz.sh [-j N] [--seconds N] [--runs N] [target ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=2 seconds=60 runs=-1
while [ $# -gt 0 ]; do
  case $1 in
    -j) jobs=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --runs) runs=$2; shift 2 ;;
    *) break ;;
  esac
done
targets=("$@")
if [ ${#targets[@]} = 0 ]; then targets=(ledger event report receipt); fi
command -v clang++ > /dev/null || { echo "run_fuzz: clang++ must be installed, and libclang-rt-14-dev or its like" >&2; exit 2; }
tree=$PWD/build/fuzz
compiled=()
for target in "${targets[@]}"; do [ "$target" = receipt ] || compiled+=("${target}_fuzzer"); done
mkdir -p "$tree"
if [ ${#compiled[@]} != 0 ]; then
  cmake -S accountant -B "$tree" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DGHOSTSHARD_FUZZ=ON > /dev/null
  cmake --build "$tree" --parallel "$jobs" --target "${compiled[@]}" > "$tree/build.log" ||
    { tail -n 40 "$tree/build.log" >&2; exit 1; }
fi
seeds=$PWD/tests/accountant/fuzz/seeds
mkdir -p "$tree/corpus" "$tree/crashes"
total=0 crashed=0
for target in "${targets[@]}"; do
  corpus=$tree/corpus/$target
  mkdir -p "$corpus"
  status=0
  if [ "$target" = receipt ]; then
    .venv/bin/python tests/python/receipt_fuzzer.py --seconds "$seconds" --runs "$runs" --corpus "$corpus" \
      --crashes "$tree/crashes" > "$tree/$target.log" 2>&1 || status=$?
    done_here=$(sed -n 's/^\([0-9]*\) runs, corpus of .*/\1/p' "$tree/$target.log")
  else
    limit=(-max_total_time="$seconds")
    if [ "$runs" -ge 0 ]; then limit=(-runs="$runs"); fi
    "$tree/bin/${target}_fuzzer" "${limit[@]}" -max_len=65536 -timeout=25 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
      -dict="$PWD/tests/accountant/fuzz/json.dict" -artifact_prefix="$tree/crashes/$target-" "$corpus" "$seeds/$target" \
      > "$tree/$target.log" 2>&1 || status=$?
    done_here=$(sed -n 's/^stat::number_of_executed_units: *//p' "$tree/$target.log")
  fi
  total=$((total + ${done_here:-0}))
  if [ "$status" != 0 ]; then
    crashed=$((crashed + 1))
    tail -n 40 "$tree/$target.log"
  fi
  echo "$target: ${done_here:-0} runs, corpus of $(find "$corpus" -type f | wc -l), exit status $status"
done
echo "$total runs, $crashed crashed"
[ "$crashed" = 0 ]
