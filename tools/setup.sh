#!/usr/bin/env bash
# Makes this tree ready to build and run: system packages if something is missing, .venv with pinned wheels.
# Usage: tools/setup.sh [run | all]
#   run   what `make finetune` needs: no GoogleTest, no Google Benchmark, requirements-run.txt alone
#   all   everything (the default): requirements.txt; completes an environment of the level run
#
# Every make target calls this, so the second call must cost nothing: level and hash of what decides the outcome are kept
# in .venv/.ghostshard-setup, written last. An interrupted set-up leaves no such file and is simply done again.
#
# PYTHON=…            the Python (>= 3.11) to make .venv with; default: the first suitable one on PATH
# GHOSTSHARD_VENV=…   an existing environment to use in .venv's place: .venv becomes a link to it, nothing is installed
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$(pwd -P)
level=${1:-all}
stamp=.venv/.ghostshard-setup
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

fingerprint() {
  { printf '%s\n' "$root"; cat requirements*.txt requirements.lock pyproject.toml tools/setup.sh; } | sha256sum | cut -d' ' -f1
}
up_to_date() {
  if [ ! -x .venv/bin/python ] || [ ! -f "$stamp" ]; then return 1; fi
  local made now
  made=$(< "$stamp") now=$(fingerprint)
  [ "$made" = "all $now" ] || [ "$made" = "$level $now" ]
}
say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

case $level in run | all) ;; *) die "the level must be run or all, got $level" ;; esac

up_to_date && exit 0

# One set-up at a time in a tree; whoever waited looks again.
if command -v flock > /dev/null; then
  exec 9< tools/setup.sh
  flock 9
  if up_to_date; then exit 0; fi
fi

# --- system packages --------------------------------------------------------------------------------------------
# Probed by what the build will do (compile, link, open), so a library installed by other means counts as well.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
compiler=${CXX:-g++}

compiles() { "$compiler" -std=c++20 -fsyntax-only -x c++ - > /dev/null 2>&1 <<< "$1"; }
has_header() { "$compiler" -std=c++20 -E -x c++ ${2:+-I"$2"} - > /dev/null 2>&1 <<< "#include <$1>"; }
links() { "$compiler" -x c++ - -o "$scratch/probe" "$@" > /dev/null 2>&1 <<< 'int main() {}'; }

suitable_python() {  # prints the first Python >= 3.11 that can make an environment
  local candidate
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' > /dev/null 2>&1; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

missing_packages() {
  compiles '#include <span>
            static_assert(__cplusplus >= 202002L);' || echo g++
  has_header gloo/algorithm.h || echo libgloo-dev
  { has_header openssl/evp.h && links -lcrypto; } || echo libssl-dev
  has_header nlohmann/json.hpp || echo nlohmann-json3-dev
  has_header CLI/CLI.hpp || echo libcli11-dev
  has_header toml++/toml.h || echo libtomlplusplus-dev
  if [ "$level" = all ]; then missing_test_packages; fi
  [ -s "${GHOSTSHARD_FORTUNES:-/usr/share/games/fortunes/fortunes}" ] || echo fortunes
  [ -x .venv/bin/python ] || [ -n "${GHOSTSHARD_VENV:-}" ] || suitable_python > /dev/null || python_packages
}

missing_test_packages() {
  { has_header gtest/gtest.h && links -lgtest -pthread; } || echo libgtest-dev
  { has_header gmock/gmock.h && links -lgmock -lgtest -pthread; } || echo libgmock-dev
  { has_header benchmark/benchmark.h && links -lbenchmark -pthread; } || echo libbenchmark-dev
}

python_packages() {
  if command -v python3 > /dev/null && ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    printf '%s\n' python3.11 python3.11-venv
  else
    echo python3-venv
  fi
}

packages=$(missing_packages | tr '\n' ' ')
packages=${packages% }
if [ -n "$packages" ]; then
  as_root=()
  if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
  if ! command -v apt-get > /dev/null; then
    die "these are missing: $packages (Debian's names). This machine has no apt-get: install them with its package manager, then call again"
  fi
  if [ "$(id -u)" != 0 ] && ! sudo -n true 2> /dev/null; then
    die "these system packages are missing and may not be installed from here. Run
    sudo apt-get install -y --no-install-recommends $packages
then call again"
  fi
  say "installing system packages: $packages"
  install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends)
  # shellcheck disable=SC2086  # a list of names
  "${install[@]}" $packages < /dev/null >&2 || {
    say "the package lists may be old: apt-get update"
    "${as_root[@]}" apt-get update -q < /dev/null >&2
    # shellcheck disable=SC2086
    "${install[@]}" $packages < /dev/null >&2 || die "apt-get could not install: $packages"
  }
  still=$(missing_packages | tr '\n' ' ')
  [ -z "${still% }" ] || die "still missing after apt-get installed $packages: $still"
fi

# --- Python -----------------------------------------------------------------------------------------------------
if [ -n "${GHOSTSHARD_VENV:-}" ]; then
  [ -x "$GHOSTSHARD_VENV/bin/python" ] || die "GHOSTSHARD_VENV must name a Python environment, found no bin/python in $GHOSTSHARD_VENV"
  [ ! -d .venv ] || [ -L .venv ] || die ".venv is there already; remove it to use GHOSTSHARD_VENV"
  ln -sfn "$GHOSTSHARD_VENV" .venv
  exit 0
fi

# A half-made environment, or one made in another place (its scripts carry the path), is made again.
usable() {
  .venv/bin/python -m pip --version > /dev/null 2>&1 &&
    [ "$(.venv/bin/python -c 'import sys; print(sys.prefix)')" = "$root/.venv" ]
}
if ! usable; then
  python=$(suitable_python) || die "Python must be 3.11 or newer and able to make a venv, found $(python3 --version 2>&1 || echo none)"
  say "making .venv with $("$python" --version)"
  if [ -L .venv ]; then rm .venv; fi
  "$python" -m venv --clear .venv
fi
rm -f "$stamp"
if [ "$level" = run ]; then
  wanted=requirements-run.txt
else
  wanted=requirements.txt
fi
say "installing the pinned Python packages (about 5 GB unpacked; the first time takes minutes)"
.venv/bin/python -m pip install --quiet --retries 5 -r $wanted -c requirements.lock < /dev/null >&2 ||
  die "pip could not install $wanted; its message is above. Call again to go on"
.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable . < /dev/null >&2 ||
  die "pip could not install the package ghostshard from this tree; its message is above"

printf '%s %s\n' "$level" "$(fingerprint)" > "$stamp.partial"
mv "$stamp.partial" "$stamp"
say "ready"
