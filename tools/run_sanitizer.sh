#!/usr/bin/env bash
# Builds the C++ tests with a sanitizer preset and runs them, one process for each test program (loading an
# instrumented program with LibTorch takes seconds, and there are hundreds of tests), N programs at a time. The last
# line is `N passed, N failed`; a sanitizer's report counts as a failure, and so does a program that dies.
# Usage: tools/run_sanitizer.sh asan|tsan [-j N] [GoogleTest option ...]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
preset=${1:?asan or tsan}; shift
jobs=2
if [ "${1:-}" = -j ]; then jobs=$2; shift 2; fi
programs=(accountant_test gpt2_test fsdp_test dp_test kernels_test)  # the longest first
# Device code on the CPU: its threads are fibers, which ThreadSanitizer would have to be told of.
if [ "$preset" = asan ]; then programs+=(kernels_emulated_test); fi
tree=$PWD/build/$preset
results=$tree/sanitizer-results
suppressions=$PWD/cmake/suppressions

GHOSTSHARD_PRESET=$preset tools/build.sh -j "$jobs" "${programs[@]}" || exit 1
rm -rf "$results"
mkdir -p "$results"
export OMP_NUM_THREADS=1 GHOSTSHARD_SOURCE_DIR=$PWD GHOSTSHARD_PYTHON=$PWD/.venv/bin/python

# Reports go to files, so that none is lost between the tests' own lines; the tests go on after one where they can.
# UBSan beside ASan pays no heed to log_path and writes to standard error, without a bad exit status: that is kept too.
common=print_suppressions=0
export ASAN_OPTIONS=$common:detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1
export LSAN_OPTIONS=suppressions=$suppressions/lsan.txt:print_suppressions=0
export UBSAN_OPTIONS=$common:print_stacktrace=1:suppressions=$suppressions/ubsan.txt
# io_sync=0: otherwise what goes into any socket of the process comes before what is read from any other later, so that
# ranks that are threads of one process would seem to wait for each other all the time and no race between them showed.
# ignore_noninstrumented_modules stays off: on Linux it takes every module for one without instrumentation, ours too,
# and with it races in our own memcpy, read and free would go unseen. LibTorch's locks are seen either way.
export TSAN_OPTIONS=$common:io_sync=0:history_size=4:second_deadlock_stack=1:suppressions=$suppressions/tsan.txt

# The shadow memory of GCC's older runtimes does not fit beside a widely randomised address space.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2> /dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi

run() {
  local program=$1 began=$SECONDS
  local reports=log_path=$results/report.$program
  ASAN_OPTIONS=$ASAN_OPTIONS:$reports TSAN_OPTIONS=$TSAN_OPTIONS:$reports "${fixed_addresses[@]}" \
    "$tree/bin/$program" --gtest_brief=1 --gtest_output="xml:$results/$program.xml" "${@:2}" \
    > "$results/$program.out" 2> "$results/$program.err" < /dev/null
  printf '%d\n' $? > "$results/$program.rc"
  # In one write, as other programs run beside it.
  printf '%s\n' "== $program" "$(cat "$results/$program.out" "$results/$program.err")" \
    "   exit status $(cat "$results/$program.rc"), $((SECONDS - began)) s"
}
trap 'trap "" TERM; kill 0; exit 130' INT  # what runs in the background takes no notice of Ctrl-C
for program in "${programs[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
  run "$program" "$@" &
done
wait
exec .venv/bin/python tools/count_sanitized.py "$results" "${programs[@]}"
