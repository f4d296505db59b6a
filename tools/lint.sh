#!/usr/bin/env bash
# Fails if a C++ file of the tree is not formatted, or clang-tidy or ruff (for Python) finds something.
# Usage: tools/lint.sh [-j N] [--since COMMIT]: clang-tidy reads only what has changed since.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=2
if [ "${1:-}" = -j ]; then jobs=$2; shift 2; fi
tools=$(tools/lint_tools.sh)
tools/format.sh --check || { echo 'lint: not formatted; call `make format`' >&2; exit 1; }
echo 'lint: every C++ file is formatted'
"$tools/bin/ruff" check --quiet bench bindings docs examples setup.py tests tools
echo 'lint: ruff finds nothing in Python'
# Compiles nothing: the command for each source by itself, and the headers that CMake writes.
GHOSTSHARD_PRESET=tidy tools/build.sh ghostshard_generated > /dev/null
PYTHONPATH=$tools exec .venv/bin/python tools/run_clang_tidy.py --jobs "$jobs" --tree build/tidy "$@"
