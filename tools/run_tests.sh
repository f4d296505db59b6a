#!/usr/bin/env bash
# Runs ctest and pytest over the built tree and sums them. The last line is `N passed, N failed`; the exit status is
# 0 only if something ran and nothing failed. A runner that dies without a result counts as one failure, and so does a
# GoogleTest program. Usage: tools/run_tests.sh [-j N] [--long]
# -j N: so many test processes at a time. --long: the sweeps that take minutes (label and marker `long`) in place of all
# others.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
jobs=2 labels=(-LE '^long$') marker='not long' name=test-results
while [ $# -gt 0 ]; do
  case $1 in
    -j) jobs=$2; shift 2 ;;
    --long) labels=(-L '^long$') marker=long name=long-test-results; shift ;;
    *) echo "run_tests: unknown option $1" >&2; exit 2 ;;
  esac
done
tree=$PWD/build/${GHOSTSHARD_PRESET:-release}
results=$tree/$name
rm -rf "$results" "$tree/test-results/gtest"
mkdir -p "$results"
export OMP_NUM_THREADS=1
# The store asks for the name of every rank that connects. Names come from files alone here: a name service that answers
# late, or drops one of many questions, made some cases ten times as long. The store warns about an address that has no
# name; cases that read a program's whole error output must not see that.
export RES_OPTIONS='attempts:0' TORCH_CPP_LOG_LEVEL=ERROR

# Failures are printed by count_tests.py, from the files: a whole program's output is hundreds of lines.
.venv/bin/ctest --test-dir "$tree" -j "$jobs" "${labels[@]}" --no-tests=error --output-junit "$results/ctest.xml" \
  --test-output-size-failed 1000000 --test-output-truncation head < /dev/null
printf '%d\n' $? > "$results/ctest.rc"
[ "$results" = "$tree/test-results" ] || mv "$tree/test-results/gtest" "$results" 2> /dev/null
# Workers take tests from each other at the end only, so that most modules make their fixtures once. An environment that
# was there before may lack pytest-xdist: then one process runs them all.
workers=()
if .venv/bin/python -c 'import xdist' 2> /dev/null; then workers=(-n "$jobs" --dist worksteal); fi
.venv/bin/python -m pytest tests/python -q -m "$marker" "${workers[@]}" --junitxml "$results/pytest.xml" < /dev/null
printf '%d\n' $? > "$results/pytest.rc"

# Checks that draw lots see a fault with a probability, and their tests pass with one. One to three tests that failed are run once more, alone;
# those that pass then are printed as such, for somebody to mend.
if .venv/bin/python tools/count_tests.py --few-failed "$results"; then
  .venv/bin/python -m pytest tests/python -q -m "$marker" --last-failed --junitxml "$results/pytest-again.xml" < /dev/null
fi
exec .venv/bin/python tools/count_tests.py "$results"
