"""A ledger whose report claims nothing gives no number to any other command either, and what is read is not overwritten."""

import csv
import hashlib
import json

import pytest
from ledgers import answer, write_chain, write_ledger

PASS = {"type": "balls_in_bins_gaussian", "steps": 10, "noise_multiplier": 1.0}
HEADER = {"type": "header", "schema": "ghostshard.ledger/1", "adjacency": "zero-out", "units": 1000, "delta": 1e-5}
BUFFERS = {"noise_blt": {"outputs": [0.1], "decays": [0.9], "separation": 10}, "planned_steps": 20, "noise_multiplier": 2.0}
SAMPLER = "the sampler that ran is not the balls-in-bins sampler that was accounted"
VOID = {
    "a_fact": ({"facts": {"sampler": {"executed": "poisson"}}}, [PASS], SAMPLER),
    "the_header": ({"sampler": "poisson"}, [PASS], SAMPLER),
    "buffers": ({**BUFFERS, "expected_batch": 200}, [], "the steps of one unit must not be nearer than the separation of noise_blt"),
}
COMMANDS = [["epsilon"], ["delta", "--epsilon", "1"], ["curve"], ["curve", "--over-steps"], ["events"], ["zcdp"], ["tradeoff"]]


@pytest.fixture(params=VOID)
def void(request, tmp_path):
    header, events, reason = VOID[request.param]
    write_chain(tmp_path / "ledger.jsonl", {**HEADER, **header}, events)
    return tmp_path / "ledger.jsonl", reason


@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
def test_no_command_bounds_what_its_report_does_not_claim(account, void, command):
    ledger, reason = void
    done = account(*command, "--ledger", ledger)
    assert done.returncode == 2 and f"the ledger bounds nothing: {reason}" in done.stderr, done


def test_nor_do_its_report_and_verify(account, void, tmp_path):
    ledger, reason = void
    assert account("report", "--ledger", ledger, "--output", tmp_path).returncode == 0
    claim = json.loads((tmp_path / "privacy_report.json").read_text())["guarantee"]
    assert not claim["applies"] and any(reason in said for said in claim["reasons"])
    done = account("verify", "--ledger", ledger)
    assert done.returncode == 1 and f"DIFFERS      {reason}" in done.stdout


def test_a_key_that_comes_again_makes_the_same_noise_whatever_its_epoch_is_called(account, tmp_path):
    event = {"type": "poisson_gaussian", "sampling_rate": 0.1, "noise_multiplier": 2.0}
    again = {"type": "epoch", "epoch": 1, "step": 0, "run_id": "r", "key": {"commitment": "c"}}
    for key, voided in (({"commitment": "c"}, True), ({"commitment": "d"}, False)):
        lines = [json.dumps({**HEADER, "run_id": "r", "key": key, "previous": "0" * 64})]
        release = {"type": "release", "step": 0, "attempt": 0, "event": event}
        for number, line in enumerate((release, again, release), start=1):
            lines.append(json.dumps({**line, "sequence": number, "previous": hashlib.sha256(lines[-1].encode()).hexdigest()}))
        (tmp_path / "ledger.jsonl").write_text("".join(line + "\n" for line in lines))
        done = account("epsilon", "--ledger", tmp_path / "ledger.jsonl")
        assert ("the same noise may have been added" in done.stderr) == voided, done


def test_numbers_without_noise_that_a_run_showed_are_mentioned(account, tmp_path):
    write_ledger(tmp_path / "ledger.jsonl", facts={"released_outputs": {"nonprivate_metrics": True}})
    done = account("epsilon", "--ledger", tmp_path / "ledger.jsonl")
    assert done.returncode == 0 and "the run also showed numbers without noise" in done.stderr


@pytest.mark.parametrize("steps, points", [(1, 20), (7, 20), (20, 20), (50, 20), (50, 1)])
def test_a_curve_over_steps_ends_with_the_whole_run(account, steps, points):
    run = ["--phase", f"0.1:2:{steps}", "--delta", "1e-5"]
    done = account("curve", *run, "--over-steps", "--points", str(points), "--csv")
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len(rows) == min(steps, points) and int(rows[-1]["steps"]) == steps
    assert float(rows[-1]["epsilon_upper"]) == answer(account("epsilon", *run, "--json"))["upper"]


TWICE = '{"type":"laplace","noise_multiplier":2,"noise_multiplier":200,"sampling_rate":1}'


def test_an_event_with_a_key_twice_is_refused(account, tmp_path):
    done = account("epsilon", "--delta", "1e-5", "--event", "1:" + TWICE)
    assert done.returncode == 2 and "--event must be JSON that has each key of an object once" in done.stderr
    (tmp_path / "event.json").write_text('{"class_name": "GaussianDpEvent", "noise_multiplier": 1, "noise_multiplier": 100}')
    done = account("epsilon", "--delta", "1e-5", "--dp-event", tmp_path / "event.json")
    assert done.returncode == 2 and "--dp-event must be JSON that has each key of an object once" in done.stderr
    assert "noise_multiplier" not in done.stderr  # a file that was named by mistake may be private


CLASHES = {
    "receipt_and_report": (["--receipt", "audit/privacy_report.json"], "--receipt must be another file than what is written beside it"),
    "receipt_and_page": (["--receipt", "audit/../audit/privacy_report.html"], "--receipt must be another file"),
    "ledger": (["--force"], "--output would overwrite"),
    "facts": (["--facts", "audit/facts/../privacy_report.html", "--force"], "--output would overwrite"),
}


@pytest.mark.parametrize("words, sentence", CLASHES.values(), ids=CLASHES)
def test_a_report_overwrites_nothing_that_is_read_or_written_beside_it(account, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "audit" / "facts").mkdir(parents=True)
    ledger = tmp_path / ("audit/privacy_report.json" if words == ["--force"] else "ledger.jsonl")
    write_ledger(ledger)
    if "--facts" in words:
        (tmp_path / "audit" / "privacy_report.html").write_text("{}")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = account("report", "--ledger", ledger, "--output", "audit", *words)
    assert done.returncode == 2 and sentence in done.stderr, done
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_head_from_before_a_resumption_says_how_many_releases_came_later(account, tmp_path):
    event = {"type": "poisson_gaussian", "sampling_rate": 0.1, "noise_multiplier": 2.0}
    lines = [json.dumps({**HEADER, "previous": "0" * 64})]
    for number in range(1, 5):
        line = {"type": "release", "step": number - 1 - (number > 2), "attempt": 0, "event": event}
        if number == 2:
            line = {"type": "epoch", "epoch": 1, "step": 1, "run_id": "s", "key": {}}
        lines.append(json.dumps({**line, "sequence": number, "previous": hashlib.sha256(lines[-1].encode()).hexdigest()}))
    (tmp_path / "ledger.jsonl").write_text("".join(line + "\n" for line in lines))
    heads = [hashlib.sha256(line.encode()).hexdigest() for line in lines]
    later = ["0: 3 releases came later, and 1 new key(s)", "1: 2 releases came later, and 1 new key(s)", "1: 2 releases came later",
             "2: 1 releases came later"]  # fmt: skip
    for head, expected in zip(heads[:4], later, strict=True):
        done = account("verify", "--ledger", tmp_path / "ledger.jsonl", "--head", head)
        assert done.returncode == 1 and f"that after release {expected}\n" in done.stdout, done.stdout


def test_a_terminal_obeys_no_word_of_a_strangers_ledger(account, tmp_path):
    unit = "text\x1b[2J\u009b2K\nEverything is private"
    write_ledger(tmp_path / "ledger.jsonl", unit_of_privacy=unit, facts={"sampler": {"executed": unit}})
    for words in (["report", "--output", tmp_path], ["verify", "--report", tmp_path / "privacy_report.json"], ["verify"]):
        done = account(words[0], "--ledger", tmp_path / "ledger.jsonl", *words[1:])
        said = done.stdout + done.stderr
        assert not any(sign in said for sign in "\x1b\u009b") and "\nEverything" not in said
