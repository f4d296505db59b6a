#!/usr/bin/env bash
# Installs what tools/lint-requirements.txt pins into build/lint/tools, once, and prints that folder. A folder of its
# own, because .venv may be an environment that was there before (GHOSTSHARD_VENV) and is not ours to change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
tools=$PWD/build/lint/tools
stamp=$tools/.installed
if ! cmp -s tools/lint-requirements.txt "$stamp"; then
  rm -rf "$tools"
  mkdir -p "$tools"
  .venv/bin/python -m pip install --quiet --retries 5 --require-hashes --no-deps --target "$tools" \
    -r tools/lint-requirements.txt < /dev/null >&2
  cp tools/lint-requirements.txt "$stamp"
fi
printf '%s\n' "$tools"
