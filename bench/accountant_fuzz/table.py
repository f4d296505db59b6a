"""The table of random runs in docs/accountant.md, from the lines that accountant_fuzz wrote:

    build/release/bin/accountant_fuzz --seed 1 --runs 400 > runs.jsonl
    python bench/accountant_fuzz/table.py runs.jsonl

Two engines contradict each other if their brackets do not meet. Exit status 1 if any do.
"""

import json
import sys
from pathlib import Path

ENGINES = ("contour", "prv", "rdp", "prv-quick")
LEAST_DELTA = 1e-12  # times and widths are promised from here on
NARROW = 1e-6  # or a billionth of epsilon: beyond 1000 what is left is rounding
SLOW_SECONDS = 0.1


def bracket(found: dict) -> tuple[float, float] | None:
    if "error" in found:
        return None
    return float(found["lower"]), float(found["upper"])


def contradictions(row: dict) -> list[tuple[str, str]]:
    """Pairs of engines of which the first certifies more epsilon than the second; and an engine's ends in the wrong order."""
    brackets = {engine: bracket(row[engine]) for engine in ENGINES if engine in row}
    known = {engine: ends for engine, ends in brackets.items() if ends is not None}
    # Not "lower > upper": an end that is no number contradicts too.
    return [(one, other) for one, (low, _) in known.items() for other, (_, high) in known.items() if not low <= high]


def width(found: dict) -> float:
    ends = bracket(found)
    return float("inf") if ends is None or ends[1] == float("inf") else ends[1] - ends[0]


def is_wide(found: dict) -> bool:
    ends = bracket(found)
    return ends is None or width(found) > max(NARROW, 1e-9 * ends[1])


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def line(name: str, engine: str, rows: list[dict]) -> str:
    found = [row[engine] for row in rows]
    seconds = [entry["seconds"] for entry in found]
    slow = sum(value > SLOW_SECONDS for value in seconds)
    cells = [name, engine, len(found), f"{quantile(seconds, 0.5) * 1e3:.3g}", f"{quantile(seconds, 0.99) * 1e3:.3g}",
             f"{max(seconds) * 1e3:.3g}", slow, f"{quantile([width(entry) for entry in found], 0.5):.1e}",
             sum(is_wide(entry) for entry in found), f"{max(entry['mib'] for entry in found):.0f}"]  # fmt: skip
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(rows: list[dict]) -> str:
    promised = [row for row in rows if row["delta"] >= LEAST_DELTA]
    families = list(dict.fromkeys(row["family"] for row in rows))
    head = ["family", "engine", "runs", "ms: median", "99 %", "largest", "over 100 ms", "width: median", "wide", "MiB"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name in families:
        of_family = [row for row in promised if row["family"] == name]
        lines += [line(name, engine, of_family) for engine in ENGINES if of_family and engine in of_family[0]]
    wrong = [(row, pair) for row in rows for pair in contradictions(row)]
    lines += ["", f"{len(rows)} runs, {len(promised)} of them at delta >= {LEAST_DELTA:g}; {len(wrong)} contradictions."]
    for row, (one, other) in wrong:
        lines.append(f"{row['family']} {row['seed']}/{row['run']}: the lower end of {one} is above the upper end of {other}")
    return "\n".join(lines)


def main(paths: list[str]) -> int:
    rows = [json.loads(text) for path in paths for text in Path(path).read_text().splitlines()]
    if not rows:
        print("table.py: no runs in the files given", file=sys.stderr)
        return 2
    print(table(rows))
    return int(any(contradictions(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
