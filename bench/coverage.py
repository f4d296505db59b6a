"""What works: model families and PEFT's methods beside a loop over examples in float64, and training loops with the epsilon
that the engine states beside that of what was executed. Writes the tables of docs/python.md.

    .venv/bin/python bench/coverage.py                      # prints the tables; some five minutes
    .venv/bin/python bench/coverage.py --write              # and puts them into docs/python.md and bench/results/coverage.json
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings
from dataclasses import asdict
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = ROOT / "bench" / "coverage"
DOCS, RESULTS = ROOT / "docs" / "python.md", ROOT / "bench" / "results" / "coverage.json"
sys.path.insert(0, str(PARTS))

import transformers
from loops import LOOPS, outcome
from one_step import judged, step_of
from rows import Row, built, rows
from ways import METHODS, WAYS

SHARDED = "2 ranks, FSDP2"


def verdict_of(row: Row) -> dict[str, Any]:
    try:
        model, batch = built(row)
    except (ValueError, ImportError, TypeError) as error:  # PEFT's, of layers that it cannot adapt
        return {"kind": "not by PEFT", "error": 0.0, "said": " ".join(str(error).split())}
    return asdict(judged(lambda: step_of(model, batch)))


def sharded(names: list[str]) -> dict[str, dict]:
    """Verdicts of these rows under FSDP2, on two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "found.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(PARTS / "two_ranks.py")]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run([*command, str(file), *names], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"two_ranks.py failed:\n{done.stderr[-4000:]}")
        return json.loads(file.read_text())


def measured() -> dict[str, Any]:
    models = {row.name: verdict_of(row) for row in rows()}
    names = [row.name for row in rows() if row.way == "all parameters"]
    return {"models": models, "sharded": sharded(names), "loops": [outcome(each) for each in LOOPS]}


class Notes:
    """Numbers of sentences, in the order in which they come."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def __call__(self, verdict: dict) -> str:
        if verdict["kind"] == "right":
            return f"{verdict['error']:.0e}"
        if verdict["kind"] == "wrong":
            return f"**wrong: {verdict['error']:.0e}**"
        number = self.of.setdefault(_short(verdict["said"]), len(self.of) + 1)
        return f"{verdict['kind']} [{number}]"

    def lines(self) -> str:
        return "\n".join(f"{number}. {said}" for said, number in self.of.items())


def _short(said: str) -> str:
    said = said.removeprefix("[").replace("|", "/").replace("<", "‹").replace(">", "›")
    return said if len(said) <= 200 else f"{said[:197]}..."


def table_of_models(found: dict[str, Any]) -> str:
    notes, lines, seen = Notes(), [f"| family | {' | '.join(WAYS)} | {SHARDED} |", f"|{'---|' * (len(WAYS) + 2)}"], set()
    for row in rows():
        name = f"{row.family.name} ({row.family.head})"
        if row.way not in WAYS or name in seen:
            continue
        seen.add(name)
        cells = [notes(found["models"][f"{name}: {way}"]) for way in WAYS]
        lines.append(f"| {name} | {' | '.join(cells)} | {notes(found['sharded'][f'{name}: all parameters'])} |")
    lines += ["", "| PEFT's method | on llama | on gpt2 |", "|---|---|---|"]
    for method in METHODS:
        lines.append(f"| {method} | {' | '.join(notes(found['models'][f'{name}: {method}']) for name in ('llama', 'gpt2'))} |")
    return "\n".join([*lines, "", notes.lines()])


def table_of_loops(found: dict[str, Any]) -> str:
    notes, lines = Notes(), ["| loop | | ε stated | ε executed |", "|---|---|---|---|"]
    for each in found["loops"]:
        what = "taken" if each["kind"] == "taken" else notes(each)
        lines.append(f"| {each['loop']} | {what} | {each['stated']:.2f} | {each['executed']:.2f} |")
    return "\n".join([*lines, "", notes.lines()])


def put(document: str, mark: str, table: str) -> str:
    """The document with the table between the lines of this mark."""
    begin, end = f"<!-- coverage: {mark} -->", f"<!-- end of coverage: {mark} -->"
    head, rest = document.split(begin)
    return f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", action="store_true", help="the loops alone; the models as they are in bench/results/coverage.json")
    parser.add_argument("--write", action="store_true", help="into docs/python.md and bench/results/coverage.json")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    if args.loops:
        found = json.loads(RESULTS.read_text()) | {"loops": [outcome(each) for each in LOOPS]}
    else:
        found = measured()
    models, loops = table_of_models(found), table_of_loops(found)
    print(models, loops, sep="\n\n")
    if args.write:
        DOCS.write_text(put(put(DOCS.read_text(), "models", models), "loops", loops))
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
