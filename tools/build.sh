#!/usr/bin/env bash
# Configures once, then builds. Usage: tools/build.sh [-j N] [target ...]
# ninja calls cmake itself when a CMakeLists.txt changes; only new presets or a new environment need configuring here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=2
if [ "${1:-}" = -j ]; then jobs=$2; shift 2; fi
venv=$PWD/.venv
preset=${GHOSTSHARD_PRESET:-release}
tree=build/$preset

# An environment of the level run (tools/setup.sh) has nothing for tests and benches. One that is completed has a newer
# file, so the tree is configured again, with them; what was compiled stays.
parts=ON
if [ -f "$venv/.ghostshard-setup" ] && [ "$(cut -d' ' -f1 "$venv/.ghostshard-setup")" = run ]; then parts=OFF; fi

mkdir -p "$tree"
exec 9> "$tree/.lock"  # held until cmake ends: two builds in one tree would spoil ninja's log
flock --nonblock 9 || { echo "waiting for another build of $tree" >&2; flock 9; }

configured=$tree/.configured
if [ ! -f "$configured" ] || [ ! -f "$tree/build.ninja" ] || [ CMakePresets.json -nt "$configured" ] ||
  [ "$venv/.ghostshard-setup" -nt "$configured" ]; then
  # Not --fresh: it would delete the precompiled header, and with it everything that was compiled.
  rm -rf "$tree/CMakeCache.txt" "$tree"/CMakeFiles/[0-9]*
  "$venv/bin/cmake" --preset "$preset" -Wno-author -DPython3_EXECUTABLE="$venv/bin/python" \
    -DCMAKE_MAKE_PROGRAM="$venv/bin/ninja" -DGHOSTSHARD_BUILD_TESTS=$parts -DGHOSTSHARD_BUILD_BENCH=$parts > /dev/null
  touch "$configured"
fi
targets=()
for target in "$@"; do targets+=(--target "$target"); done
exec "$venv/bin/cmake" --build "$tree" --parallel "$jobs" "${targets[@]}"
