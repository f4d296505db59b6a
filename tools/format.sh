#!/usr/bin/env bash
# clang-format over the tree's own C++ files, in place. --check: change nothing, fail if something would change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
formatter=$(tools/lint_tools.sh)/clang_format/data/bin/clang-format
mode=(-i)
if [ "${1:-}" = --check ]; then mode=(--dry-run --Werror); fi
git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh' |
  xargs -0 -r "$formatter" "${mode[@]}" --style=file
