#!/usr/bin/env bash
# Tests and benches of this folder on the machine that it was carried to. Needs a Python with torch; PYTHON=… names it.
#   ./run.sh test | bench | all | build      ./run.sh --help
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
for python in "${PYTHON:-}" python3 python3.12 python3.11 python; do
  if [ -n "$python" ] && "$python" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("torch"))' 2> /dev/null; then
    exec "$python" -B "$here/tree/tools/bundle/run.py" "$@"
  fi
done
echo 'run.sh: no Python with torch was found: PYTHON=/path/to/python ./run.sh …' >&2
exit 2
