#!/usr/bin/env bash
# clang-format over the tree's own C++ files, in place. --check: change nothing, fail if something would change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=14.0.6  # versions differ in what they write: one version for everybody
formatter=clang-format
if ! "$formatter" --version 2> /dev/null | grep -qF "$version"; then
  tools/setup.sh
  .venv/bin/python -m pip install --quiet "clang-format==$version" >&2
  formatter=.venv/bin/clang-format
fi
mode=(-i)
if [ "${1:-}" = --check ]; then mode=(--dry-run --Werror); fi
git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh' |
  xargs -0 -r "$formatter" "${mode[@]}" --style=file
