#!/usr/bin/env bash
# Runs ctest and pytest over the built tree and sums them. The last line is `N passed, N failed`; the exit status is
# 0 only if something ran and nothing failed. A runner that dies without a result counts as one failure.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
tree=$PWD/build/${GHOSTSHARD_PRESET:-release}
results=$tree/test-results
rm -rf "$results"
mkdir -p "$results"
export OMP_NUM_THREADS=1

.venv/bin/ctest --test-dir "$tree" -j "${CTEST_JOBS:-2}" --output-on-failure --no-tests=error \
  --output-junit "$results/ctest.xml" < /dev/null
printf '%d\n' $? > "$results/ctest.rc"
.venv/bin/python -m pytest tests/python -q --junitxml "$results/pytest.xml" < /dev/null
printf '%d\n' $? > "$results/pytest.rc"

exec .venv/bin/python tools/count_tests.py "$results"
