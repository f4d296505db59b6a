#!/usr/bin/env bash
# Builds the preset cuda and packs it into build/bundle/ghostshard-cuda.tar.xz: programs, Python modules, sources, tests and
# benches, for a machine that has torch and a GPU and needs no network, compiler or root. docs/bundle.md says how to use it.
# Usage: tools/bundle/make.sh [-j N] [--python PATH ...]
# --python: a further Python, with headers, that the modules are built for. Default: python3.12, if there is one, on PATH or of pyenv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
jobs=2 pythons=()
while [ $# -gt 0 ]; do
  case $1 in
    -j) jobs=$2; shift 2 ;;
    --python) pythons+=("$2"); shift 2 ;;
    *) echo "bundle: -j N and --python PATH are known, not $1" >&2; exit 2 ;;
  esac
done
headers='import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
for python in python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python3.12; do
  if [ ${#pythons[@]} = 0 ] && "$python" -c "$headers" 2> /dev/null; then pythons=("$python"); fi
done

# Interpreters by their real path: a name on PATH may be a shim that follows the folder it is called in.
others=
for python in "${pythons[@]}"; do
  if ! real=$("$python" -c 'import sys; print(sys.executable)') || ! "$real" -c "$headers"; then
    echo "bundle: $python must be a Python with its headers (Python.h)" >&2
    exit 2
  fi
  others+="${others:+;}$real"
done

export GHOSTSHARD_PRESET=cuda
tools/build.sh -j "$jobs" ghostshard-account
.venv/bin/cmake build/cuda -Wno-author -DGHOSTSHARD_OTHER_PYTHONS="$others" > /dev/null
tools/build.sh -j "$jobs" ghostshard-account ghostshard-finetune-gpt2 step_compare device_kernels kernels_test kernels_gpu_test \
  engine_gpu_test ghostshard_python_engine ghostshard_python_accountant ghostshard_other_pythons
exec .venv/bin/python tools/bundle/pack.py
