#!/usr/bin/env bash
# The documentation as a site that can be searched: build/docs/site/index.html. The first call installs MkDocs into an
# environment of its own, from the pinned packages; building needs no network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=build/docs venv=build/docs/venv
stamp=$venv/.installed
wanted=$(cat tools/docs/requirements.txt tools/docs/constraints.txt | sha256sum | cut -d' ' -f1)
if [ "$(cat "$stamp" 2> /dev/null)" != "$wanted" ]; then
  rm -rf "$venv"
  python=.venv/bin/python
  [ -x "$python" ] || python=python3
  "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r tools/docs/requirements.txt -c tools/docs/constraints.txt
  echo "$wanted" > "$stamp"
fi
rm -rf "$out/pages" "$out/site"
"$venv/bin/python" tools/docs/pages.py "$out"
# MkDocs' own news about its future go to the terminal otherwise.
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --quiet --strict -f "$out/mkdocs.yml"
echo "Written: $out/site/index.html (with search: python -m http.server -d $out/site)"
