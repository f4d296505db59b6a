"""Ledgers of a small run, and what ghostshard-account says of them."""

import hashlib
import json
from pathlib import Path

RATE, SIGMA, STEPS = 0.1, 2.0, 30


def answer(done) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_chain(path: Path, header: dict, events: list[dict], steps: list[int] | None = None) -> list[str]:
    """Writes a ledger with a release of each event, and returns its lines. steps: of the releases; default 0, 1, 2, …"""
    lines = [json.dumps({"previous": "0" * 64, **header})]
    for number, event in enumerate(events):
        step = number if steps is None else steps[number]
        lines.append(json.dumps({"type": "release", "sequence": number + 1, "step": step, "attempt": 0, "event": event,
                                 "previous": hashlib.sha256(lines[-1].encode()).hexdigest()}))  # fmt: skip
    path.write_text("".join(line + "\n" for line in lines))
    return lines


def write_ledger(path: Path, releases: int = STEPS, steps: list[int] | None = None, **header) -> list[str]:
    event = {"type": "poisson_gaussian", "sampling_rate": RATE, "noise_multiplier": SIGMA}
    header = {"type": "header", "schema": "ghostshard.ledger/1", "adjacency": "zero-out", "units": 1000, "unit_of_privacy": "text",
              "delta": 1e-5, "library_version": "0.1.0", "run_id": "r", **header}  # fmt: skip
    return write_chain(path, header, [event] * releases, steps)
