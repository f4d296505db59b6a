"""Receipts changed at random: refused with a sentence, or what they state is true. Never anything else."""

import copy
import json
import math
import random

import pytest
from test_receipt import write_ledger

from ghostshard import check_receipt
from ghostshard.check_receipt import Refused

VALUES = [None, True, "", "1", [], {}, 0, -1, 1, 0.0, -0.0, 1e-320, 1e-30, 0.5, 1.5, 2**62, 2**70, 1e30, 1e300, math.inf, math.nan,
          [1], [[]], [{}], {"type": "gaussian"}, 10**400]  # fmt: skip
PIECES = ["{", "}", "[", "]", '"', ":", ",", "1e999", "-", "null", "\\u0000", "\n", "[" * 5000, "9" * 400, "{}", "e"]


@pytest.fixture(scope="module")
def run(account, tmp_path_factory):
    """Header, releases, head and receipt of ten Gaussians of sigma 5, a receipt of some dozen terms."""
    folder = tmp_path_factory.mktemp("fuzz")
    ledger = write_ledger(folder / "ledger.jsonl", [({"type": "gaussian", "noise_multiplier": 5.0}, 10)])
    done = account("report", "--ledger", ledger, "--output", folder, "--receipt", folder / "receipt.json")
    assert done.returncode == 0, done.stderr
    return check_receipt.read_ledger(str(ledger)), json.loads((folder / "receipt.json").read_text())


def true_delta(epsilon: float) -> float:
    """Of ten Gaussians of sigma 5 (Balle, Wang 2018, Thm. 8)."""
    mu = math.sqrt(10) / 5
    upper_tail = lambda x: math.erfc(x / math.sqrt(2)) / 2
    return upper_tail(epsilon / mu - mu / 2) - math.exp(epsilon) * upper_tail(epsilon / mu + mu / 2)


def places(holder, way=()):
    yield way
    entries = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
    for key, value in entries:
        yield from places(value, (*way, key))


def changed(receipt: dict, draw: random.Random) -> dict:
    receipt = copy.deepcopy(receipt)
    for _ in range(draw.choice([1, 1, 2, 4])):
        way = draw.choice([way for way in places(receipt) if way])
        holder = receipt
        for key in way[:-1]:
            holder = holder[key]
        value = holder[way[-1]]
        kind = draw.randrange(4)
        if kind == 0:
            holder[way[-1]] = copy.deepcopy(draw.choice(VALUES))
        elif kind == 1 and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 10**300:
            holder[way[-1]] = value * draw.choice([0.5, 0.999, 1 - 1e-9, 1 - 1e-14, 1 + 1e-14, 1 + 1e-9, 1.001, 2, -1])
        elif kind == 2:
            del holder[way[-1]]
        elif isinstance(holder, list):
            holder.insert(way[-1], copy.deepcopy(draw.choice([value, *VALUES])))
    return receipt


def changed_text(text: str, draw: random.Random) -> str:
    for _ in range(draw.choice([1, 2, 4])):
        at, length = draw.randrange(len(text) + 1), draw.randrange(20)
        text = draw.choice([text[:at] + text[at + length :], text[:at] + draw.choice(PIECES) + text[at:], text[:at] or "{",
                            text[:at] + chr(draw.randrange(1, 300)) + text[at + 1 :], text[: at + length] + text[at:]])  # fmt: skip
    return text


def sweep(run, seed: int, turns: int) -> int:
    ledger, receipt = run
    draw = random.Random(seed)
    refused = 0
    for turn in range(turns):
        try:
            if turn % 4:
                given = changed(receipt, draw)
            else:
                given = check_receipt.parse(changed_text(json.dumps(receipt), draw), "the receipt")
            proven = check_receipt.check(given, *ledger)
        except Refused:
            refused += 1
        else:
            assert true_delta(proven["epsilon"]) <= proven["delta"] * (1 + 1e-9), given
    return refused


@pytest.mark.parametrize("seed", range(2))
def test_a_changed_receipt_is_refused_or_true(run, seed):
    assert sweep(run, seed, 300) > 150


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_changed_receipts_are_refused_or_true(run, seed):
    assert sweep(run, seed, 10_000) > 5000


def test_a_changed_ledger_is_read_or_refused(run, tmp_path, repository):
    from test_receipt import write_ledger

    text = write_ledger(tmp_path / "ledger.jsonl", [({"type": "gaussian", "noise_multiplier": 5.0}, 3)]).read_text()
    _, whole, _ = check_receipt.read_ledger(str(tmp_path / "ledger.jsonl"))
    draw = random.Random(7)
    for _ in range(400):
        (tmp_path / "changed.jsonl").write_text(changed_text(text, draw), encoding="utf-8")
        try:
            _, released, _ = check_receipt.read_ledger(str(tmp_path / "changed.jsonl"))
        except Refused:
            continue
        assert released <= whole or sum(released.values()) <= 4
