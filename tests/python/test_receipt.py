"""Receipts: `ghostshard-account report --receipt` writes them, ghostshard.check_receipt proves them or refuses.

Nothing but files passes between the two. A forged receipt moves some number to the side of less epsilon.
"""

import copy
import hashlib
import json
import math
import random
import re
from pathlib import Path

import pytest
from ledgers import write_chain

from ghostshard import check_receipt
from ghostshard.check_receipt import Refused


def poisson(q: float, sigma: float) -> dict:
    return {"type": "poisson_gaussian", "sampling_rate": q, "noise_multiplier": sigma}


def write_ledger(path: Path, events: list[tuple[dict, int]], adjacency: str = "zero-out", delta: float = 1e-6) -> Path:
    header = {"type": "header", "schema": "ghostshard.ledger/1", "adjacency": adjacency, "delta": delta}
    write_chain(path, header, [event for event, count in events for _ in range(count)])
    return path


@pytest.fixture(scope="session")
def receipt_of(account, tmp_path_factory):
    """receipt_of([(event, count), …]): the folder with ledger.jsonl, receipt.json and privacy_report.json."""

    def make(events, adjacency: str = "zero-out", delta: float = 1e-6) -> Path:
        folder = tmp_path_factory.mktemp("receipt")
        ledger = write_ledger(folder / "ledger.jsonl", events, adjacency, delta)
        done = account("report", "--ledger", ledger, "--output", folder, "--receipt", folder / "receipt.json")
        assert done.returncode == 0, done.stderr
        return folder

    return make


def prove(folder: Path, receipt: dict | None = None) -> dict:
    given = receipt if receipt is not None else json.loads((folder / "receipt.json").read_text())
    return check_receipt.check(given, *check_receipt.read_ledger(str(folder / "ledger.jsonl")))


RUNS = {
    "mnist": ([(poisson(256 / 60000, 1.1), 1400)], "zero-out", 1e-5),
    "two phases": ([(poisson(0.01, 1.2), 300), (poisson(0.02, 0.9), 60)], "add-or-remove", 1e-5),
    "gaussian": ([({"type": "gaussian", "noise_multiplier": 5.0}, 10)], "zero-out", 1e-6),
    "replace-one": ([({"type": "gaussian", "noise_multiplier": 5.0}, 10)], "replace-one", 1e-6),
    "adaptive clipping": ([({"type": "poisson_adaptive_clipping", "sampling_rate": 0.01, "noise_multiplier": 1.0,
                             "count_noise": 10}, 1000)], "zero-out", 1e-6),
}  # fmt: skip


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_a_receipt_proves_the_epsilon_of_the_report(receipt_of, run):
    folder = receipt_of(*run)
    claim = json.loads((folder / "privacy_report.json").read_text())["guarantee"]["epsilon"]["upper"]
    assert prove(folder)["epsilon"] == claim


def test_where_moments_do_not_fall_a_receipt_proves_an_epsilon_of_its_own_and_says_so(receipt_of):
    folder = receipt_of([(poisson(0.02, 1.0), 4)], "zero-out", 1e-3)
    receipt = json.loads((folder / "receipt.json").read_text())
    assert receipt["remove"]["smoothing"] > 0
    assert receipt["report_epsilon"] < receipt["epsilon"] <= receipt["report_epsilon"] * 1.01
    assert prove(folder)["epsilon"] == receipt["epsilon"]


@pytest.mark.long
def test_a_schedule_of_noise_is_proven_from_fewer_phases(receipt_of):
    folder = receipt_of([(poisson(0.02, 3 + i / 100), 20) for i in range(60)], delta=1e-5)
    receipt = json.loads((folder / "receipt.json").read_text())
    assert len(receipt["events"]) == 60 and len(receipt["phases"]) <= 12
    assert receipt["report_epsilon"] < prove(folder)["epsilon"] < 1.05 * receipt["report_epsilon"]


def test_a_run_that_released_nothing_costs_nothing(receipt_of):
    assert prove(receipt_of([]))["epsilon"] == 0


def random_run(seed: int) -> tuple[list, str, float]:
    draw = random.Random(seed)
    phases = [(poisson(10 ** draw.uniform(-4, -0.3), math.exp(draw.uniform(-0.5, 2.5))), int(10 ** draw.uniform(0.5, 3.3)))
              for _ in range(draw.choice([1, 1, 2, 3]))]  # fmt: skip
    return phases, draw.choice(["zero-out", "add-or-remove"]), 10 ** draw.uniform(-9, -3)


@pytest.mark.parametrize("seed", range(2))
def test_receipts_of_random_runs_are_proven(receipt_of, seed):
    prove(receipt_of(*random_run(seed)))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 50))
def test_receipts_of_further_random_runs_are_proven(receipt_of, seed):
    prove(receipt_of(*random_run(seed)))


# ---------------------------------------------------------------------------------------------------------------------
# Forgeries


@pytest.fixture(scope="module")
def honest(receipt_of):
    """A receipt that takes a fraction of a second to check, with two events."""
    return receipt_of([(poisson(0.3, 8.0), 40), (poisson(0.2, 6.0), 30)], "zero-out", 1e-6)


def scaled(*path, by: float):
    def forge(receipt: dict) -> None:
        holder = receipt
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] *= by

    return forge


def put(*path, value):
    def forge(receipt: dict) -> None:
        holder = receipt
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value

    return forge


def lowered_term(direction: str, k: int):
    def forge(receipt: dict) -> None:  # by a millionth of the largest term
        terms = receipt[direction]["terms"]
        terms[k] -= 1e-6 * terms[0]

    return forge


def moved_between_terms(receipt: dict) -> None:
    terms = receipt["remove"]["terms"]
    terms[0], terms[1] = terms[0] * 1.1, terms[1] - terms[0] * 0.1


def without_an_event(receipt: dict) -> None:
    gone = receipt["events"].pop()
    receipt["phases"] = [phase for phase in receipt["phases"] if phase["events"] != [len(receipt["events"])]]
    assert gone and len(receipt["phases"]) == 1
    for direction in ("remove", "add"):
        receipt[direction]["shifts"] = receipt[direction]["shifts"][:1]


def without_a_phase(receipt: dict) -> None:
    receipt["phases"].pop()
    for direction in ("remove", "add"):
        receipt[direction]["shifts"].pop()


def fewer_releases(receipt: dict) -> None:
    receipt["events"][0]["count"] -= 1
    receipt["phases"][0]["count"] -= 1


def counted_in_the_phase_alone(receipt: dict) -> None:
    receipt["phases"][0]["count"] -= 1


FORGED = {
    "epsilon": scaled("epsilon", by=1 - 1e-6),
    "epsilon by a little": scaled("epsilon", by=1 - 1e-9),
    "half of epsilon": scaled("epsilon", by=0.5),
    "delta": scaled("delta", by=1 - 1e-6),
    "delta by a little": scaled("delta", by=1 - 1e-9),
    "no delta": put("delta", value=0.0),
    "epsilon below zero": put("epsilon", value=-1.0),
    "epsilon is not a number": put("epsilon", value=math.nan),
    "epsilon is infinite": put("epsilon", value=math.inf),
    "epsilon is text": put("epsilon", value="0.1"),
    "epsilon is true": put("epsilon", value=True),
    **{f"term {k} of {direction}": lowered_term(direction, k) for direction in ("remove", "add") for k in (0, 1, 2, 5, -2, -1)},
    "terms against each other": moved_between_terms,
    "no terms": put("remove", "terms", value=[]),
    "one term": put("remove", "terms", value=[1e-7]),
    "terms are words": put("remove", "terms", value=["1e-7"]),
    "no rest": put("remove", "rest", value=0.0),
    "half of the rest": scaled("remove", "rest", by=0.5),
    "rest below zero": put("remove", "rest", value=-1e-8),
    "half of the rest, adding": scaled("add", "rest", by=0.5),
    "another line": scaled("remove", "intercept", by=0.97),
    "a line at zero": put("remove", "intercept", value=0.0),
    "a longer period": scaled("remove", "period", by=1.03),
    "a shorter period": scaled("remove", "period", by=0.97),
    "no shifts": put("remove", "shifts", value=[]),
    "a shift too far": put("remove", "shifts", value=[1e4, 1e4]),
    "less noise in an event": scaled("events", 0, "event", "noise_multiplier", by=0.9),
    "more noise in an event": scaled("events", 0, "event", "noise_multiplier", by=1.1),
    "a smaller rate in an event": scaled("events", 0, "event", "sampling_rate", by=0.9),
    "more noise in a phase": scaled("phases", 0, "noise_multiplier", by=1 + 1e-9),
    "a smaller rate in a phase": scaled("phases", 0, "sampling_rate", by=1 - 1e-9),
    "fewer releases": fewer_releases,
    "fewer releases in a phase": counted_in_the_phase_alone,
    "a missing event": without_an_event,
    "a missing phase": without_a_phase,
    "an event in two phases": put("phases", 1, "events", value=[0]),
    "an event of no index": put("phases", 1, "events", value=[-1]),
    "another head": put("ledger_head", value="0" * 64),
    "another adjacency": put("adjacency", value="add-or-remove"),
    "no adjacency": put("adjacency", value=None),
    "another schema": put("schema", value="ghostshard.receipt/2"),
    "no method": put("remove", "method", value="trust me"),
    "removing has no largest loss": put("remove", value={"method": "largest-loss"}),
    "chernoff": put("remove", value={"method": "chernoff", "intercept": 5.0, "bound": 1e-7}),
    "a direction is missing": put("add", value=None),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
def test_a_forged_receipt_is_refused(honest, forge):
    receipt = json.loads((honest / "receipt.json").read_text())
    forged = copy.deepcopy(receipt)
    forge(forged)
    assert forged != receipt
    with pytest.raises(Refused):
        prove(honest, forged)


def test_the_receipt_that_is_forged_is_proven_as_it_is(honest):
    assert prove(honest)["releases"] == 70


LEDGERS = {
    "one release less": lambda lines: lines[:-1],
    "another sigma": lambda lines: [line.replace("8.0", "9.0") for line in lines],
    "another header": lambda lines: [lines[0].replace("zero-out", "add-or-remove"), *lines[1:]],
    "two lines in another order": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "nothing": lambda lines: [],
    "no JSON": lambda lines: [lines[0], "{", *lines[1:]],
    "a key twice": lambda lines: [lines[0], lines[1].replace('{"type"', '{"step": 0, "type"', 1), *lines[2:]],
}


@pytest.mark.parametrize("change", LEDGERS.values(), ids=LEDGERS.keys())
def test_a_receipt_holds_for_its_own_ledger_alone(honest, change, tmp_path):
    lines = (honest / "ledger.jsonl").read_text().splitlines()
    (tmp_path / "ledger.jsonl").write_text("".join(line + "\n" for line in change(lines)))
    with pytest.raises(Refused):
        prove(tmp_path, json.loads((honest / "receipt.json").read_text()))


@pytest.mark.long
def test_an_engine_that_caps_losses_at_709_is_refused(receipt_of):
    """exp(loss) once overflowed: a loss above 709.78 counted as 709.78, and two of them as 1419.56 at most."""
    folder = receipt_of([(poisson(0.01, 0.025), 5)], "zero-out", 1e-5)
    forged = json.loads((folder / "receipt.json").read_text())
    assert forged["epsilon"] > 1500 and forged["remove"]["method"] == "chernoff"
    assert prove(folder)["epsilon"] == forged["epsilon"]
    c = forged["remove"]["intercept"]
    capped = 5 * math.log1p(0.01 * math.expm1(709.78 * c))  # at least log E[e^(c·loss)] of such losses
    forged["epsilon"] = (capped - c * math.log1p(1 / c) - math.log1p(c) - math.log(1e-5)) / c
    assert forged["epsilon"] < 0.95 * json.loads((folder / "receipt.json").read_text())["epsilon"]
    forged["remove"]["bound"] = 1e-5
    with pytest.raises(Refused, match="bound is smaller"):
        prove(folder, forged)


def test_a_receipt_asks_for_a_bounded_amount_of_work(honest):
    forged = json.loads((honest / "receipt.json").read_text())
    forged["remove"]["terms"] = [1e-9] * 3_000_000
    with pytest.raises(Refused, match="minutes"):
        prove(honest, forged)


# ---------------------------------------------------------------------------------------------------------------------
# The command


def test_the_command_says_what_is_proven(honest, run_module):
    files = ["--receipt", honest / "receipt.json", "--ledger", honest / "ledger.jsonl"]
    done = run_module("ghostshard.check_receipt", *files, "--report", honest / "privacy_report.json", "--json")
    assert done.code == 0 and json.loads(done.out)["proven"] is True
    done = run_module("ghostshard.check_receipt", *files)
    assert done.code == 0 and done.out.startswith("Proven: epsilon <= ")


def test_a_report_that_claims_less_than_its_receipt_proves_is_refused(honest, tmp_path, capsys):
    report = json.loads((honest / "privacy_report.json").read_text())
    report["guarantee"]["epsilon"]["upper"] *= 1 - 1e-6
    (tmp_path / "report.json").write_text(json.dumps(report))
    words = ["--receipt", honest / "receipt.json", "--ledger", honest / "ledger.jsonl", "--report", tmp_path / "report.json"]
    assert check_receipt.main([str(word) for word in words]) == 1
    assert "claims less" in capsys.readouterr().out


def test_the_checker_is_short_and_shares_no_code(repository):
    source = (repository / "bindings" / "python" / "ghostshard" / "check_receipt.py").read_text()
    assert len(source.splitlines()) <= 430
    imported = {line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= {"argparse", "collections", "fractions", "hashlib", "json", "math", "mpmath", "os", "pathlib", "stat", "sys"}


def test_events_that_receipts_do_not_cover_are_named(account, tmp_path):
    event = {"type": "truncated_poisson_gaussian", "units": 1000, "sampling_rate": 0.01, "cap": 30, "noise_multiplier": 1.0}
    ledger = write_ledger(tmp_path / "ledger.jsonl", [(event, 10)])
    done = account("report", "--ledger", ledger, "--output", tmp_path, "--receipt", tmp_path / "receipt.json")
    assert done.returncode == 2 and "truncated_poisson_gaussian" in done.stderr


# Each rule by itself: in a whole receipt another one would refuse the same forgery too.


def phases_with(honest, forge) -> list:
    receipt = json.loads((honest / "receipt.json").read_text())
    forge(receipt)
    _, released, _ = check_receipt.read_ledger(str(honest / "ledger.jsonl"))
    return check_receipt.phases_of(receipt, released, "zero-out")


@pytest.mark.parametrize("name, sentence", [("more noise in a phase", "more private"), ("a smaller rate in a phase", "more private"),
                                            ("an event in two phases", "in one phase"), ("a missing phase", "in no phase")])  # fmt: skip
def test_a_phase_must_cover_its_events(honest, name, sentence):
    assert len(phases_with(honest, lambda receipt: None)) == 2
    with pytest.raises(Refused, match=sentence):
        phases_with(honest, FORGED[name])


@pytest.mark.parametrize("name, sentence", [("another header", "chain breaks at line 2"), ("a key twice", "key twice"),
                                            ("two lines in another order", "chain breaks")])  # fmt: skip
def test_a_ledger_that_was_changed_is_not_read(honest, name, sentence, tmp_path):
    lines = (honest / "ledger.jsonl").read_text().splitlines()
    (tmp_path / "ledger.jsonl").write_text("".join(line + "\n" for line in LEDGERS[name](lines)))
    with pytest.raises(Refused, match=sentence):
        check_receipt.read_ledger(str(tmp_path / "ledger.jsonl"))


# ---------------------------------------------------------------------------------------------------------------------
# What somebody else writes: a ledger whose chain holds and a receipt that lists its event, neither from us


HOSTILE_EVENTS = {
    "no text": {"type": "\ud800", "noise_multiplier": 1.0},
    "a type of another kind": {"type": ["gaussian"], "noise_multiplier": 1.0},
    "a field too many": {**poisson(0.1, 2.0), "attempts": 0},
    "nothing in it": {},
    **{f"nested {depth} deep": {"type": "gaussian", "noise_multiplier": 1.0, "x": f"<{depth}>"} for depth in (60, 900, 960, 980)},
    "huge noise": {"type": "gaussian", "noise_multiplier": 10**310},
    "no rate": {"type": "poisson_gaussian", "sampling_rate": 0, "noise_multiplier": 1.0},
    "rate above one": {"type": "poisson_gaussian", "sampling_rate": 1.5, "noise_multiplier": 1.0},
}


def with_depth(text: str) -> str:
    """The text "<900>" becomes 900 lists inside each other, which json.dumps would not write."""
    return re.sub('"<([0-9]+)>"', lambda found: "[" * int(found[1]) + "]" * int(found[1]), text)


@pytest.mark.parametrize("event", HOSTILE_EVENTS.values(), ids=HOSTILE_EVENTS.keys())
def test_what_a_stranger_writes_is_refused_with_a_sentence(event, tmp_path, capsys):
    ledger = write_ledger(tmp_path / "ledger.jsonl", [(event, 1)])
    ledger.write_text(with_depth(ledger.read_text()))
    head = hashlib.sha256(ledger.read_text().splitlines()[-1].encode()).hexdigest()
    receipt = {"schema": "ghostshard.receipt/1", "ledger_head": head, "adjacency": "zero-out", "epsilon": 1.0, "delta": 1e-6,
               "events": [{"event": event, "count": 1}],
               "phases": [{"sampling_rate": 1.0, "noise_multiplier": 1.0, "count": 1, "events": [0]}],
               "remove": {"method": "chernoff", "intercept": 1.0, "bound": 0.0},
               "add": {"method": "chernoff", "intercept": 1.0, "bound": 0.0}}  # fmt: skip
    (tmp_path / "receipt.json").write_text(with_depth(json.dumps(receipt)))
    assert check_receipt.main(["--receipt", str(tmp_path / "receipt.json"), "--ledger", str(ledger)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("NOT PROVEN: ") and said.encode()


HOSTILE_RECEIPTS = {
    "too deep": "[" * 100_000,
    "deep objects": '{"a":' * 3000 + "1" + "}" * 3000,
    "a key twice": '{"schema": "ghostshard.receipt/1", "epsilon": 9, "epsilon": 1}',
    "cut short": '{"schema": "ghostshard.receipt/1", "epsilon": 1',
    "two documents": "{}{}",
    "a list": "[]",
    "nothing": "",
    "a number of five thousand digits": '{"epsilon": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("text", HOSTILE_RECEIPTS.values(), ids=HOSTILE_RECEIPTS.keys())
def test_what_is_no_receipt_is_refused_with_a_sentence(honest, text, tmp_path, capsys):
    (tmp_path / "receipt.json").write_text(text)
    words = ["--receipt", str(tmp_path / "receipt.json"), "--ledger", str(honest / "ledger.jsonl")]
    assert check_receipt.main(words) == 1
    assert capsys.readouterr().out.startswith("NOT PROVEN: ")
