#!/usr/bin/env bash
# run.sh cases.cpp compiler flags…: compiles the file once, with all of its cases. Each must have an error in its own lines that
# says what stands beside its #ifdef, and the file none elsewhere: without its cases it compiles. (Errors in other files are what a
# case instantiates there.)
set -u
cases=$1
shift
defined=()
while read -r _ name _; do defined+=("-D$name"); done < <(grep -E '^#ifdef' "$cases")
# "line: what the compiler says", of errors alone
errors=$(LC_ALL=C "$@" "${defined[@]}" -fsyntax-only -fmax-errors=0 "$cases" 2>&1 | grep -E '(fatal )?error: ' |
  sed -E "s|^${cases}:([0-9]+):[0-9]+: error: |\1: |")
failed=0 seen=$'\n'
while IFS=: read -r first text; do
  read -r _ name expected <<< "${text/\/\//}"
  last=$(awk -v first="$first" 'NR > first && /^#endif/ { print NR; exit }' "$cases")
  own=$(awk -F: -v first="$first" -v last="$last" '$1 + 0 > first && $1 + 0 < last' <<< "$errors")
  seen+=$own$'\n'
  if [ -z "$own" ]; then
    echo "FAIL: $name compiles, and must not"; failed=1
  elif ! grep -qE "$expected" <<< "$own"; then
    echo "FAIL: $name is refused for another reason than '$expected': $own"; failed=1
  else
    echo "ok: $name is refused ($expected)"
  fi
done < <(grep -nE '^#ifdef' "$cases")
while read -r error; do
  [[ ! $error =~ ^[0-9]+: || $seen == *$'\n'"$error"$'\n'* ]] || { echo "FAIL: an error outside of all cases: $error"; failed=1; }
done <<< "$errors"
exit $failed
