#!/usr/bin/env bash
# run.sh cases.cpp compiler flags…: the file must compile as it is, and must not with any one of its cases; each case's
# error must contain the text beside its #ifdef, so that it fails for its own reason.
set -u
cases=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Parsing torch takes half a minute; a precompiled header is made once and used by all cases.
grep '^#include' "$cases" > "$work/all.h"
"$@" -x c++-header "$work/all.h" -o "$work/all.h.gch" || exit 1
compile() { "$@" -I"$work" -include all.h -fsyntax-only "$cases" > "$work/log" 2>&1; }
failed=0
if ! compile "$@"; then
  echo "FAIL: without a case the file must compile"; head -20 "$work/log"; exit 1
fi
while read -r _ name expected; do
  if compile "$@" -D"$name"; then
    echo "FAIL: $name compiles, and must not"; failed=1
  elif ! grep -qE "$expected" "$work/log"; then
    echo "FAIL: $name is refused for another reason than '$expected':"; grep -m3 error "$work/log"; failed=1
  else
    echo "ok: $name is refused ($expected)"
  fi
done < <(grep -E '^#ifdef' "$cases" | sed 's|//||')
exit $failed
