"""Receipts of random runs: each must be proven, and one forged copy of each refused. Writes the table of docs/receipt.md.

    python bench/receipts.py [--runs 50] [--first 0] [--program build/release/bin/ghostshard-account] [--output FILE]

Times are CPU seconds of one process: writing is `report` with its receipt, which is mostly the report; checking is
ghostshard-check-receipt. Slack is what the receipt proves over what the report states, as a share. Exit status 1 if a
receipt is not proven or a forgery is.
"""

import argparse
import copy
import hashlib
import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bindings" / "python" / "ghostshard"))
import check_receipt

Forge = Callable[[dict, random.Random], bool]  # False if it does not apply to the receipt


def random_run(seed: int) -> tuple[list[tuple[dict, int]], str, float]:
    """Events with their counts, adjacency, delta."""
    draw = random.Random(seed)
    events = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        event = {"type": "poisson_gaussian", "sampling_rate": 10 ** draw.uniform(-4, -0.3),
                 "noise_multiplier": math.exp(draw.uniform(-0.5, 2.5))}  # fmt: skip
        events.append((event, int(10 ** draw.uniform(0.5, 3.3))))
    return events, draw.choice(["zero-out", "add-or-remove"]), 10 ** draw.uniform(-9, -3)


def write_ledger(path: Path, events: list[tuple[dict, int]], adjacency: str, delta: float) -> None:
    lines = [json.dumps({"type": "header", "schema": "ghostshard.ledger/1", "adjacency": adjacency, "delta": delta,
                         "previous": "0" * 64})]  # fmt: skip
    for event, count in events:
        for _ in range(count):
            step = len(lines) - 1
            lines.append(json.dumps({"type": "release", "sequence": step + 1, "step": step, "attempt": 0, "event": event,
                                     "previous": hashlib.sha256(lines[-1].encode()).hexdigest()}))  # fmt: skip
    path.write_text("".join(line + "\n" for line in lines))


# -- Forgeries: a number moved to the private side
def lower_epsilon(receipt: dict, draw: random.Random) -> bool:
    receipt["epsilon"] *= 1 - 10 ** draw.uniform(-7, -1)
    return receipt["epsilon"] > 0


def lower_delta(receipt: dict, draw: random.Random) -> bool:
    receipt["delta"] *= 1 - 10 ** draw.uniform(-7, -1)
    return True


def lower_term(receipt: dict, draw: random.Random) -> bool:
    side = receipt[draw.choice(["remove", "add"])]
    if side["method"] != "contour":
        return False
    k = draw.randrange(len(side["terms"]))
    side["terms"][k] -= 1e-6 * abs(side["terms"][0])
    return True


def lower_rest(receipt: dict, draw: random.Random) -> bool:
    side = receipt[draw.choice(["remove", "add"])]
    if side["method"] != "contour":
        return False
    side["rest"] *= draw.uniform(0, 0.99)
    return True


def more_noise(receipt: dict, draw: random.Random) -> bool:
    draw.choice(receipt["phases"])["noise_multiplier"] *= 1 + 10 ** draw.uniform(-9, -1)
    return True


def smaller_rate(receipt: dict, draw: random.Random) -> bool:
    draw.choice(receipt["phases"])["sampling_rate"] *= 1 - 10 ** draw.uniform(-9, -1)
    return True


def fewer_releases(receipt: dict, draw: random.Random) -> bool:
    k = draw.randrange(len(receipt["events"]))
    receipt["events"][k]["count"] -= 1
    next(phase for phase in receipt["phases"] if k in phase["events"])["count"] -= 1
    return True


def another_ledger(receipt: dict, draw: random.Random) -> bool:
    receipt["ledger_head"] = hashlib.sha256(draw.randbytes(8)).hexdigest()
    return True


FORGERIES: list[Forge] = [lower_epsilon, lower_delta, lower_term, lower_rest, more_noise, smaller_rate, fewer_releases, another_ledger]


def forged(receipt: dict, seed: int) -> tuple[str, dict]:
    draw = random.Random(seed)
    while True:
        forge = FORGERIES[(seed + draw.randrange(2)) % len(FORGERIES)]
        copied = copy.deepcopy(receipt)
        if forge(copied, draw):
            return forge.__name__.replace("_", " "), copied
        seed += 1


def refusal(receipt: dict, ledger: tuple) -> str | None:
    """The checker's sentence, or nothing if it is proven."""
    try:
        check_receipt.check(receipt, *ledger)
    except check_receipt.Refused as reason:
        return str(reason)
    return None


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(program: Path, seed: int, folder: Path) -> dict:
    events, adjacency, delta = random_run(seed)
    ledger, receipt = folder / "ledger.jsonl", folder / "receipt.json"
    write_ledger(ledger, events, adjacency, delta)
    began = children_seconds()
    subprocess.run([program, "report", "--force", "--ledger", ledger, "--output", folder, "--receipt", receipt], check=True,
                   capture_output=True)  # fmt: skip
    written = children_seconds() - began
    given = json.loads(receipt.read_text())
    contents = check_receipt.read_ledger(str(ledger))
    began = time.process_time()
    reason = refusal(copy.deepcopy(given), contents)
    checked = time.process_time() - began
    kind, copied = forged(given, seed)
    return {"seed": seed, "phases": len(events), "releases": sum(count for _, count in events), "delta": delta,
            "report_epsilon": given["report_epsilon"], "epsilon": given["epsilon"],
            "methods": [given[side]["method"] for side in ("remove", "add")], "bytes": receipt.stat().st_size,
            "write_seconds": written, "check_seconds": checked, "refused": reason, "forgery": kind,
            "forgery_refused": refusal(copied, contents)}  # fmt: skip


def slack(row: dict) -> float:
    return row["epsilon"] / row["report_epsilon"] - 1 if row["report_epsilon"] else 0.0


def table(rows: list[dict]) -> str:
    def quantiles(name: str, values: list[float], form: str) -> str:
        ordered = sorted(values)
        at = [ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))], ordered[-1]]
        return f"| {name} | " + " | ".join(format(value, form) for value in at) + " |"

    proven = sum(row["refused"] is None for row in rows)
    refused = sum(row["forgery_refused"] is not None for row in rows)
    exact = sum(slack(row) == 0 for row in rows)
    lines = [f"{proven} of {len(rows)} receipts proven, {refused} of {len(rows)} forged ones refused; "
             f"{exact} prove the report's epsilon itself.", "",
             "| | median | 90 % | largest |", "|---|---|---|---|",
             quantiles("writing report and receipt, s", [row["write_seconds"] for row in rows], ".3g"),
             quantiles("checking, s", [row["check_seconds"] for row in rows], ".3g"),
             quantiles("slack to the report's ε", [slack(row) for row in rows], ".1e"),
             quantiles("size, KiB", [row["bytes"] / 1024 for row in rows], ".3g")]  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "release" / "bin" / "ghostshard-account")
    parser.add_argument("--output", type=Path, help="the rows as JSON")
    given = parser.parse_args()
    rows = []
    for seed in range(given.first, given.first + given.runs):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(given.program, seed, Path(folder)))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(table(rows))
    if given.output:
        given.output.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["refused"] is not None or row["forgery_refused"] is None for row in rows))


if __name__ == "__main__":
    sys.exit(main())
