"""Runs that are stopped, killed or starved, and what goes on from them. The ledger must always hold at least what was used."""

import fcntl
import hashlib
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
from program import (
    CONFIG, PLAIN, PRIVATE, UNITS, Finished, Program, arguments, everything_in, json_lines, metrics, report, same_weights,
    texts, wait_until, weights, write_data, write_inputs, write_key, write_model,
)  # fmt: skip

KEY = bytes(range(50, 82))
STEPS = 20
# Every unit in every step and next to no noise, so that a run resumed from the same state ends with the same weights but
# for that noise. Momentum is a state that a checkpoint must bring back.
QUIET = {"--noise-multiplier": "1e-9", "--expected-batch": str(UNITS), "--optimizer": "sgd", "--momentum": "0.9",
         "--learning-rate": "0.1"}  # fmt: skip
KEYED = {**PRIVATE, "--steps": str(STEPS), "--noise-key-file": "key", "--checkpoint-every": "5", "--keep-checkpoints": "9",
         "--eval-data": "public.safetensors", "--timeout": "60"}  # fmt: skip


def ledger_lines(run: Path) -> list[dict]:
    """The chain checked by its own rule; a last line cut short is no line."""
    lines = (run / "ledger.jsonl").read_bytes().split(b"\n")
    lines.pop()
    found, previous = [], "0" * 64
    for number, line in enumerate(lines):
        content = json.loads(line)
        assert content["previous"] == previous
        assert number == 0 or content["sequence"] == number
        previous = hashlib.sha256(line).hexdigest()
        found.append(content)
    return found


def releases(run: Path) -> list[tuple[int, int]]:
    return [(line["step"], line["attempt"]) for line in ledger_lines(run) if line["type"] == "release"]


def checkpoints(run: Path) -> dict[int, dict]:
    """Manifests of the complete ones, by step; every file they name has its hash."""
    found = {}
    for path in sorted((run / "checkpoints").glob("step-*")):
        if "partial" in path.name:
            continue
        manifest = json.loads((path / "checkpoint.json").read_text())
        for file in manifest["files"]:
            assert hashlib.sha256((path / file["name"]).read_bytes()).hexdigest() == file["sha256"]
        found[manifest["step"]] = manifest
    return found


def run_all(program: Program, ranks: int, words: list[str], seconds: float = 60) -> Finished:
    """Rank 0's result; every rank must end alike."""
    done = program.run_ranks(*[words] * ranks, seconds=seconds) if ranks > 1 else [program.run(words, seconds)]
    assert len({rank.code for rank in done}) == 1, done
    return done[0]


def steps_shown(run: Path) -> int:
    file = run / "metrics.jsonl"
    return max(file.read_text().count("\n") - 1, 0) if file.exists() else 0


def resumed(flags: dict, **changes) -> list[str]:
    return arguments(flags, resume="", **changes)


@pytest.fixture
def keyed(program):
    write_key(program.folder)
    return program


@pytest.fixture(scope="module")
def undisturbed(binary, tmp_path_factory):
    """A whole run with its key and checkpoints after 5, 10, 15 and 20 steps, and the folder it lies in."""
    folder = tmp_path_factory.mktemp("undisturbed") / "work"
    write_inputs(folder)
    write_key(folder)
    program = Program(binary, folder)
    try:
        assert program.run(arguments(KEYED)).code == 0
    finally:
        program.kill_all()
    return folder


def as_if_ended(work: Path, step: int, charged: int | None = None) -> Path:
    """Makes of a whole run one that has a checkpoint of this step and a ledger of so many releases."""
    run = work / "run"
    for later in checkpoints(run):
        if later > step:
            shutil.rmtree(run / "checkpoints" / f"step-{later:012}")
    for file, count in (("ledger.jsonl", 1 + (step if charged is None else charged)), ("metrics.jsonl", 1 + step)):
        kept = (run / file).read_bytes().split(b"\n")[:count]
        (run / file).write_bytes(b"\n".join(kept) + b"\n")
    (run / "privacy_report.json").unlink(missing_ok=True)
    shutil.rmtree(run / "model", ignore_errors=True)
    return run


@pytest.fixture
def ended(undisturbed, binary, tmp_path):
    """ended(step, charged): a program in a copy of the undisturbed run's folder, cut back to there."""
    started = []

    def make(step: int, charged: int | None = None) -> Program:
        work = tmp_path / f"copy{len(started)}"
        shutil.copytree(undisturbed, work)
        as_if_ended(work, step, charged)
        started.append(Program(binary, work))
        return started[-1]

    yield make
    for program in started:
        program.kill_all()


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints of a run


def test_checkpoints_come_every_k_steps_and_say_where_the_ledger_stood(undisturbed):
    run = undisturbed / "run"
    found = checkpoints(run)
    assert list(found) == [5, 10, 15, 20]
    hashes = [hashlib.sha256(line).hexdigest() for line in (run / "ledger.jsonl").read_bytes().split(b"\n")]
    for step, manifest in found.items():
        assert manifest["about"]["ledger"] == {"header_hash": hashes[0], "head": hashes[step], "releases": step}


def test_only_the_newest_are_kept(keyed):
    assert keyed.run(arguments(KEYED, keep_checkpoints="2")).code == 0
    assert list(checkpoints(keyed.folder / "run")) == [15, 20]


def test_a_short_run_needs_none(program):
    assert program.run(arguments(PRIVATE)).code == 0
    assert not (program.folder / "run" / "checkpoints").exists()


def test_neither_key_nor_data_nor_a_plain_hash_of_them_is_in_a_checkpoint(undisturbed):
    data = (undisturbed / "data.safetensors").read_bytes()
    secrets = [KEY, KEY.hex().encode(), data[-40:], *(hashlib.sha256(part).hexdigest().encode() for part in (data, KEY))]
    for content in everything_in(undisturbed / "run").values():
        assert content is None or not any(secret in content for secret in secrets)


# ---------------------------------------------------------------------------------------------------------------------
# Going on where it ended


def run_ids(run: Path) -> list[str]:
    """Of the run and of each session that went on with it."""
    return [line["run_id"] for line in ledger_lines(run) if line["type"] in ("header", "epoch")]


@pytest.mark.parametrize("step", [5, 15])
def test_a_resumed_run_goes_on_under_a_run_id_of_its_own(ended, undisturbed, step):
    """Also with the key: two copies of this folder must never draw the same noise."""
    program = ended(step)
    done = program.run(resumed(KEYED))
    assert done.code == 0, done.err
    assert f"Resuming after step {step} from run/checkpoints/step-{step:012}" in done.err
    assert "From here on sampling and noise follow from a new run id (epoch 1 in the ledger)" in done.err
    run, other = program.folder / "run", undisturbed / "run"
    assert run_ids(run)[:1] == run_ids(other) and len(set(run_ids(run))) == 2
    assert releases(run) == releases(other)
    (epoch,) = [line for line in ledger_lines(run) if line["type"] == "epoch"]
    assert epoch["key"]["origin"] == "key file" and epoch["step"] == step
    assert metrics(run)[: step + 1] == metrics(other)[: step + 1]
    assert [line["epsilon"] for line in metrics(run)] == [line["epsilon"] for line in metrics(other)]
    assert report(run)["guarantee"] == report(other)["guarantee"]
    assert report(run)["provenance"]["resumed"] == f"after step {step} from this run's own checkpoint"
    first, last = (metrics(run)[i]["eval_loss"] for i in (0, -1))
    assert f"Public evaluation loss: {first:.4f} before, {last:.4f} after" in done.out
    a, b = weights(run), weights(other)
    assert all((a[name] != b[name]).mean() > 0.9 for name in a)


def test_of_a_copied_folder_each_copy_draws_noise_of_its_own(program):
    """Resumed without a checkpoint under one key file: the difference of what they release is noise, not that of sums."""
    write_key(program.folder)
    sigma, steps = 5.0, 2
    flags = {**PRIVATE, "--noise-multiplier": str(sigma), "--expected-batch": str(UNITS), "--optimizer": "sgd",
             "--learning-rate": "1", "--steps": str(steps), "--noise-key-file": "key"}  # fmt: skip
    assert program.run(arguments(flags)).code == 0
    as_if_ended(program.folder, 0, 1)
    copies = [program.folder / name for name in ("run", "copy")]
    shutil.copytree(*copies)
    for copy in copies:
        assert program.run(resumed(flags, output=copy.name, epsilon_limit="1e6")).code == 0
        assert releases(copy) == [(0, 0), (0, 1), (1, 0)]
    assert run_ids(copies[0])[0] == run_ids(copies[1])[0] and run_ids(copies[0])[1] != run_ids(copies[1])[1]
    a, b = map(weights, copies)
    apart = numpy.concatenate([(a[name] - b[name]).ravel() for name in a])
    # Two releases each, divided by the expected batch; some 7,000 values: 4 % is five standard errors.
    assert apart.std() == pytest.approx((2 * steps) ** 0.5 * sigma / UNITS, rel=0.04)


def quiet_difference(one: Path, other: Path) -> float:
    a, b = weights(one), weights(other)
    return max(float(numpy.abs(a[name] - b[name]).max()) for name in a)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_goes_on_from_the_very_state_at_which_it_stopped(keyed, ranks):
    flags = {**KEYED, **QUIET, "--eval-data": None, "--keep-checkpoints": "9"}
    assert keyed.run(arguments(flags)).code == 0
    shutil.copytree(keyed.folder / "run", keyed.folder / "straight")
    as_if_ended(keyed.folder, 10)
    assert run_all(keyed, ranks, resumed(flags)).code == 0
    run = keyed.folder / "run"
    assert checkpoints(run)[20]["world_size"] == ranks and checkpoints(run)[10]["world_size"] == 1
    # float32 sums in another order, and noise of 1e-9 C: far below what a momentum lost (0.05 after one step) would move.
    assert quiet_difference(run, keyed.folder / "straight") < 1e-5


@pytest.mark.parametrize("ranks", [1, 2])
def test_sigterm_ends_in_a_checkpoint_from_which_the_run_goes_on(keyed, ranks):
    """Two futures of one beginning: one goes straight to the end, the other is stopped once more."""
    flags = {**KEYED, "--steps": "100", "--checkpoint-every": "1000", "--eval-data": None}
    run, other = keyed.folder / "run", keyed.folder / "other"

    def stop_after(folder: Path, steps: int, words: list[str]) -> int:
        started = keyed.start_ranks(*[words] * ranks) if ranks > 1 else [keyed.start(words)]
        wait_until(lambda: steps_shown(folder) >= steps)
        started[-1].process.send_signal(signal.SIGTERM)
        done = [rank.wait(30) for rank in started]
        assert [rank.code for rank in done] == [3] * ranks, done
        newest = max(checkpoints(folder))
        assert f"Stopped after step {newest} of 100" in done[0].out and "--resume goes on." in done[0].out
        assert len(releases(folder)) == newest == steps_shown(folder) < 100
        assert not (folder / "model").exists()
        return newest

    first = stop_after(run, 5, arguments(flags))
    shutil.copytree(run, other)
    assert stop_after(other, first + 5, resumed(flags, output="other")) > first
    for folder in (run, other):
        assert run_all(keyed, ranks, resumed(flags, output=folder.name)).code == 0
        assert releases(folder) == [(step, 0) for step in range(100)]
    assert (len(set(run_ids(run))), len(set(run_ids(other)))) == (2, 3)
    assert not same_weights(run, other)


def test_a_finished_run_says_that_it_is_done(undisturbed, binary, tmp_path):
    work = tmp_path / "whole"
    shutil.copytree(undisturbed, work)
    before = everything_in(work)
    done = Program(binary, work).run(resumed(KEYED))
    assert done.code == 0 and "This run is done" in done.out
    assert everything_in(work) == before


def test_a_run_that_lost_only_its_outputs_writes_them_again(ended, undisturbed):
    program = ended(20)
    assert program.run(resumed(KEYED)).code == 0
    assert same_weights(program.folder / "run", undisturbed / "run")
    assert len(releases(program.folder / "run")) == STEPS


def test_a_run_without_privacy_goes_on_to_the_bit(program):
    flags = {**PLAIN, "--steps": "12", "--checkpoint-every": "4", "--keep-checkpoints": "9"}
    assert program.run(arguments(flags)).code == 0
    run, other = program.folder / "run", program.folder / "other"
    shutil.copytree(run, other)
    for step in (8, 12):
        shutil.rmtree(other / "checkpoints" / f"step-{step:012}")
    shutil.rmtree(other / "model")
    assert program.run(resumed(flags, output="other")).code == 0
    assert same_weights(run, other)
    assert [line["step"] for line in metrics(other)] == list(range(13))


# ---------------------------------------------------------------------------------------------------------------------
# Steps whose results are lost


def test_lost_steps_are_new_attempts_charged_again_and_the_run_ends_within_its_promise(ended, undisturbed):
    program = ended(10, charged=14)
    done = program.run(resumed(KEYED))
    assert done.code == 0, done.err
    assert "4 step(s) after it were charged, but their results are lost" in done.err
    assert "the run will end after step 16 of 20" in done.err
    run = program.folder / "run"
    again = [(10, 1), (11, 1), (12, 1), (13, 1), (14, 0), (15, 0)]
    assert releases(run) == [(step, 0) for step in range(14)] + again
    said = report(run)
    assert said["guarantee"]["epsilon"] == report(undisturbed / "run")["guarantee"]["epsilon"]
    steps = said["population_and_steps"]
    assert (steps["steps_executed"], steps["releases_charged"], steps["releases_of_later_attempts"]) == (16, 20, 4)
    assert "ended_early" in steps and "Ended after step 16 of 20" in done.out
    assert metrics(run)[-1]["step"] == 16 and "eval_loss" in metrics(run)[-1]
    # It is done until the promise is raised.
    assert "This run is done" in program.run(resumed(KEYED)).out
    assert program.run(resumed(KEYED, epsilon_limit="50")).code == 0
    assert releases(run)[20:] == [(step, 0) for step in range(16, 20)]
    assert report(run)["guarantee"]["epsilon"]["upper"] > said["guarantee"]["epsilon"]["upper"]
    assert report(run)["population_and_steps"]["steps_executed"] == 20


def test_without_a_checkpoint_everything_is_redone_and_the_promise_can_be_spent(ended):
    program = ended(0, charged=20)
    before = everything_in(program.folder)
    refused = program.run(resumed(KEYED))
    assert refused.code == 2 and "--epsilon-limit raises it" in refused.err
    assert everything_in(program.folder) == before
    assert program.run(resumed(KEYED, epsilon_limit="50")).code == 0
    assert releases(program.folder / "run")[20:] == [(step, 1) for step in range(20)]


def test_new_attempts_have_new_noise_and_new_coins(ended, undisturbed):
    """The same key, the same weights before: what follows differs in every weight."""
    one, other = ended(10, charged=11), ended(10)
    assert one.run(resumed(KEYED, epsilon_limit="50")).code == other.run(resumed(KEYED)).code == 0
    a, b = weights(one.folder / "run"), weights(other.folder / "run")
    assert all((a[name] != b[name]).mean() > 0.9 for name in a)


# ---------------------------------------------------------------------------------------------------------------------
# Keys


def test_without_the_key_a_resume_begins_an_epoch_of_its_own(ended, undisturbed):
    program = ended(10)
    done = program.run(resumed(KEYED, noise_key_file=None))
    assert done.code == 0 and "sampling and noise follow from a new key (epoch 1 in the ledger)" in done.err
    run = program.folder / "run"
    lines = ledger_lines(run)
    (epoch,) = [line for line in lines if line["type"] == "epoch"]
    assert (epoch["sequence"], epoch["epoch"], epoch["step"]) == (11, 1, 10)
    assert epoch["key"] == {"origin": "operating system"} and epoch["run_id"] != lines[0]["run_id"]
    assert releases(run) == [(step, 0) for step in range(STEPS)]
    epochs = report(run)["provenance"]["key_epochs"]
    assert [(e["epoch"], e["releases"]) for e in epochs] == [(0, 10), (1, 10)]
    assert not same_weights(run, undisturbed / "run")


def test_a_new_epochs_key_file_serves_the_next_resume(program):
    """Begun without a file, stopped, resumed with one, stopped, resumed with it: an epoch each."""
    write_key(program.folder)
    flags = {**PRIVATE, "--steps": "100000"}
    run = program.folder / "run"
    words = [arguments(flags), resumed(flags, noise_key_file="key"), resumed(flags, noise_key_file="key")]
    for number, word in enumerate(words):
        shown = steps_shown(run)
        started = program.start(word)
        wait_until(lambda shown=shown: steps_shown(run) > shown + 2)
        started.process.send_signal(signal.SIGINT)
        assert started.wait(20).code == 3
        assert sum(line["type"] == "epoch" for line in ledger_lines(run)) == number
    assert KEY not in b"".join(content for content in everything_in(run).values() if content)


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be proven is refused, and nothing is touched


def edit_ledger(change):
    def spoil(work: Path) -> None:
        path = work / "run" / "ledger.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1]
        path.write_bytes(b"\n".join(change(lines)) + b"\n")

    return spoil


def other_ledger(work: Path) -> None:
    ledger = work / "run" / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    lines[0]["run_id"], previous, text = "0" * 32, "0" * 64, ""
    for line in lines:
        line["previous"] = previous
        content = json.dumps(line, separators=(",", ":"), sort_keys=True)
        previous = hashlib.sha256(content.encode()).hexdigest()
        text += content + "\n"
    ledger.write_text(text)


def damage(work: Path) -> None:
    path = work / "run" / "checkpoints" / "step-000000000010" / "rank-00000-of-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(bytes(content))


def cut_without_witness(work: Path) -> None:
    """Ledger and checkpoints put back to step 5, the metrics forgotten."""
    as_before = (work / "run" / "metrics.jsonl").read_bytes()
    as_if_ended(work, 5)
    (work / "run" / "metrics.jsonl").write_bytes(as_before)


REFUSED = {
    "ledger_behind": (edit_ledger(lambda lines: lines[:-1]), {}, "it is behind the checkpoint, was cut or was rewritten"),
    "ledger_emptied": (edit_ledger(lambda lines: lines[:1]), {}, "behind the checkpoint"),
    "ledger_edited": (edit_ledger(lambda lines: [*lines[:3], lines[3].replace(b'"step":2', b'"step":9'), *lines[4:]]), {},
                      "previous must be the SHA-256"),
    "ledger_of_another_run": (other_ledger, {}, "another run's than the checkpoint's"),
    "ledger_gone": (lambda work: (work / "run" / "ledger.jsonl").unlink(), {}, "no ledger.jsonl"),
    "metrics_know_more": (cut_without_witness, {}, "metrics.jsonl has 6 steps, but the ledger"),
    "checkpoint_damaged": (damage, {}, "is damaged"),
    "checkpoint_without_manifest": (lambda work: (work / "run/checkpoints/step-000000000010/checkpoint.json").unlink(), {},
                                    "the manifest must be there"),
    "another_learning_rate": (None, {"learning_rate": "0.01"}, "--learning-rate must be what the run began with (0.001), is 0.01"),
    "another_optimizer": (None, {"optimizer": "sgd"}, "--optimizer must be what the run began with"),
    "another_freeze": (None, {"freeze": "*.wpe.*"}, "--freeze must be what the run began with (not given)"),
    "private_metrics_now_shown": (None, {"allow_nonprivate_metrics": ""}, "--allow-nonprivate-metrics must be"),
    "another_clip_norm": (None, {"clip_norm": "2"}, "clip_norm is 1.0, here it would be 2.0"),
    "another_clipping": (None, {"clipping": "per-layer"}, "the ledger's clipping is \"flat, per unit"),
    "another_noise": (None, {"noise_multiplier": "0.5"}, "noise_multiplier is 1.0, here it would be 0.5"),
    "another_batch": (None, {"expected_batch": "5"}, "expected_batch is 4, here it would be 5"),
    "more_steps": (None, {"steps": "30"}, "planned_steps is 20, here it would be 30"),
    "more_texts": (lambda work: write_data(work / "data.safetensors", texts([3] * 25)), {}, "units is 24, here it would be 25"),
    "other_texts_under_the_same_key": (lambda work: write_data(work / "data.safetensors", texts([3] * 24)), {},
                                       "the texts in --data must be what the run began with"),
    "another_key": (lambda work: write_key(work, content=bytes(32)), {}, "does not hold the key of this run"),
    "another_model": (lambda work: (work / "model" / "config.json").write_text(json.dumps({**CONFIG, "n_head": 4})), {},
                      "config.json must be what the run began with"),
    "other_weights_to_start_from": (lambda work: write_model(work / "model", change=lambda t: t["transformer.ln_f.bias"].fill(1)), {},
                                    "the weights in --model must be what the run began with"),
    "public_texts_now_shown": (None, {"eval_data": None}, "--eval-data must be what the run began with (given), is not given"),
    "no_privacy_any_more": (None, {"non_private": "", "noise_multiplier": None, "noise_key_file": None},
                            "cannot go on with --non-private"),
    "no_such_run": (None, {"output": "elsewhere"}, "it must be the folder of an earlier run, there is none"),
}  # fmt: skip


@pytest.mark.parametrize("spoil, changes, message", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_proven_is_refused(ended, spoil, changes, message):
    program = ended(10)
    if spoil:
        spoil(program.folder)
    before = everything_in(program.folder)
    done = program.run(resumed(KEYED, **changes))
    assert done.code == 2 and message in done.err and done.err.count("\n") == 1, done
    assert everything_in(program.folder) == before


BINDING = ("another_learning_rate", "another_optimizer", "another_freeze", "private_metrics_now_shown", "another_clip_norm",
           "another_clipping", "another_noise", "another_batch", "more_texts", "other_texts_under_the_same_key", "another_key",
           "another_model", "other_weights_to_start_from", "public_texts_now_shown")  # fmt: skip


@pytest.mark.parametrize("name", BINDING)
def test_what_binds_a_run_binds_it_before_its_first_checkpoint_too(ended, name):
    spoil, changes, message = REFUSED[name]
    program = ended(0, charged=2)
    if spoil:
        spoil(program.folder)
    before = everything_in(program.folder)
    done = program.run(resumed(KEYED, epsilon_limit="1e6", **changes))
    assert done.code == 2 and message in done.err and done.err.count("\n") == 1, done
    assert everything_in(program.folder) == before


def test_a_ledger_that_binds_nothing_is_not_continued(ended):
    """As versions before the binding wrote it."""
    program = ended(0, charged=2)
    path = program.folder / "run" / "ledger.jsonl"
    lines, previous = [json.loads(line) for line in path.read_text().splitlines()], "0" * 64
    del lines[0]["binding"]
    text = ""
    for line in lines:
        content = json.dumps({**line, "previous": previous}, separators=(",", ":"), sort_keys=True)
        previous = hashlib.sha256(content.encode()).hexdigest()
        text += content + "\n"
    path.write_text(text)
    done = program.run(resumed(KEYED, epsilon_limit="1e6"))
    assert done.code == 2 and "must say what binds the run: an older version began it" in done.err


def test_every_rank_hears_of_a_refusal(ended):
    program = ended(10)
    edit_ledger(lambda lines: lines[:-1])(program.folder)
    for rank in program.run_ranks(*[resumed(KEYED)] * 2):
        assert rank.code == 2 and "behind the checkpoint" in rank.err


FREE = {"microbatch": "2", "timeout": "33", "eval_every": "3", "checkpoint_every": "0", "learning_rate": "1e-3"}


@pytest.mark.parametrize("name", FREE)
def test_pace_and_spelling_may_change(ended, name):
    assert ended(15).run(resumed(KEYED, **{name: FREE[name]})).code == 0


def test_a_new_run_does_not_overwrite_one_that_could_go_on(ended):
    program = ended(10)
    before = everything_in(program.folder)
    assert program.run(arguments(KEYED)).code == 2
    assert everything_in(program.folder) == before


@pytest.mark.parametrize("words, message", [
    (arguments(PRIVATE, epsilon_limit="9"), "--epsilon-limit raises the budget"),
    (arguments(PRIVATE, keep_checkpoints="0"), "--keep-checkpoints must be >= 1"),
    (arguments(PRIVATE, checkpoint_every="-1"), "--checkpoint-every"),
    (arguments(PLAIN, epsilon_limit="9", resume=""), "--epsilon-limit raises the budget"),
])  # fmt: skip
def test_flags_that_make_no_sense(program, words, message):
    done = program.run(words)
    assert done.code == 2 and message in done.err
    assert not (program.folder / "run").exists()


# ---------------------------------------------------------------------------------------------------------------------
# kill -9 at random moments


def charged_and_used(run: Path, start: int | None, used: int) -> int:
    """Checks the ledger after a session that began after `start` steps (None: it never began), and returns how many
    releases were used by then: a line of metrics is written after its step's gradient went into the weights."""
    if not (run / "ledger.jsonl").exists():
        return used
    charged = releases(run)
    assert len(set(charged)) == len(charged), "one step and attempt was charged twice: its noise was repeated"
    steps = [line["step"] for line in metrics_of(run)]
    if start is not None:
        used += max([start, *steps]) - start
    assert len(charged) >= used
    assert all(step == 0 or (step - 1) in {s for s, _ in charged} for step in steps)
    if (run / "checkpoints").exists():
        for step, manifest in checkpoints(run).items():
            assert manifest["about"]["ledger"]["releases"] <= len(charged)
            assert {s for s, _ in charged} >= set(range(step))
    return used


def metrics_of(run: Path) -> list[dict]:
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []


@pytest.mark.parametrize("ranks, kills, reach", [(1, 40, 0.9), (2, 10, 3.5)], ids=["one_rank", "two_ranks"])
def test_a_kill_at_any_moment_leaves_a_ledger_of_at_least_what_was_used(keyed, ranks, kills, reach):
    chance = random.Random(4)
    flags = {**KEYED, "--steps": "20000", "--checkpoint-every": "7", "--keep-checkpoints": "2", "--eval-data": None,
             "--timeout": "6"}  # fmt: skip
    run = keyed.folder / "run"
    used = going_on = 0
    for number in range(kills):
        first = not (run / "ledger.jsonl").exists()
        words = arguments(flags) if first else resumed(flags)
        started = keyed.start_ranks(*[words] * ranks) if ranks > 1 else [keyed.start(words)]
        time.sleep(chance.uniform(0.02, reach))
        victim = chance.randrange(ranks)
        started[victim].process.kill()
        done = [rank.wait(20) for rank in started]
        assert done[victim].code == -signal.SIGKILL, done
        assert all(rank.code in (1, -signal.SIGKILL) for rank in done), done
        said = [word for word in done[0].err.split("\n") if word.startswith("Resuming after step ")]
        start = int(said[0].split()[3]) if said else 0 if "Resuming at the start" in done[0].err or first else None
        going_on += bool(said)
        if going_on * 2 < number:
            reach *= 1.2  # most kills come before the run begins: this machine is slower than that, or busy
        used = charged_and_used(run, start, used)
    assert going_on > kills // 4 and used > 20, "the kills came too early to show anything"
    # The last word: stopped in good order, everything charged is there.
    started = keyed.start(resumed(flags))
    wait_until(lambda: " s/step" in started.err.read_text())
    started.process.send_signal(signal.SIGTERM)
    assert started.wait(20).code == 3
    assert {step for step, _ in releases(run)} >= set(range(max(checkpoints(run))))


# ---------------------------------------------------------------------------------------------------------------------
# Signals


def test_torchrun_passes_sigterm_on_and_the_run_goes_on_under_it(keyed):
    flags = {**KEYED, "--steps": "60", "--checkpoint-every": "0", "--eval-data": None}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
                "--nproc-per-node", "2", "--no-python", str(keyed.binary)]  # fmt: skip
    run = keyed.folder / "run"
    launched = subprocess.Popen([*launcher, *arguments(flags, steps="100000")], cwd=keyed.folder, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    try:
        wait_until(lambda: steps_shown(run) >= 3, 60)
        launched.terminate()
        said, _ = launched.communicate(timeout=40)
    finally:
        launched.kill()
    (step,) = checkpoints(run)
    assert f"Stopped after step {step} of 100000" in said
    assert [(s, 0) for s in range(step)] == releases(run)
    assert launched.returncode != 0


def test_before_training_a_signal_ends_the_program_at_once(program):
    started, absent = program.start_ranks(arguments(PRIVATE, output="b"), ["--version"])
    assert absent.wait(5).code == 0
    time.sleep(0.5)
    started.process.send_signal(signal.SIGTERM)
    # On a busy machine it may not have come to its first line: then the system ends it.
    assert started.wait(5).code in (128 + signal.SIGTERM, -signal.SIGTERM)
    assert not (program.folder / "b").exists()


def test_a_second_signal_ends_a_run_that_cannot_stop_in_good_order(program):
    words = arguments(PRIVATE, steps="100000", timeout="60")
    ranks = program.start_ranks(words, words)
    wait_until(lambda: steps_shown(program.folder / "run") >= 3)
    ranks[1].process.send_signal(signal.SIGSTOP)
    ranks[0].process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    ranks[0].process.send_signal(signal.SIGTERM)  # the launcher's copy of the first
    time.sleep(2.2)
    assert ranks[0].process.poll() is None
    ranks[0].process.send_signal(signal.SIGTERM)
    assert ranks[0].wait(5).code == 128 + signal.SIGTERM


# ---------------------------------------------------------------------------------------------------------------------
# No hang


@pytest.mark.parametrize("stuck", [0, 1])
def test_a_rank_stuck_while_saving_ends_the_others_and_leaves_no_half_checkpoint(keyed, stuck):
    words = arguments(KEYED, steps="100000", checkpoint_every="1", timeout="3", eval_data=None)
    ranks = keyed.start_ranks(words, words)
    run = keyed.folder / "run"
    wait_until(lambda: steps_shown(run) >= 3)
    wait_until(lambda: any("partial" in path.name for path in (run / "checkpoints").iterdir()))
    ranks[stuck].process.send_signal(signal.SIGSTOP)
    survivor = ranks[1 - stuck].wait(20)
    assert survivor.code == 1 and "timed out" in survivor.err.lower()
    ranks[stuck].process.kill()
    ranks[stuck].wait(5)
    charged_and_used(run, 0, 0)
    before = max(checkpoints(run))
    again = keyed.start(resumed(KEYED, steps="100000", checkpoint_every="1", timeout="3", eval_data=None))
    wait_until(lambda: max(checkpoints(run), default=0) > before + 1)
    again.process.send_signal(signal.SIGTERM)
    assert again.wait(20).code == 3


def files_up_to(size: int):
    """The signal ignored, a write beyond the limit fails as on a full disk."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


FULL = 60_000  # more than the model (29 kB) and the ledger, less than weights and moments together (88 kB)


def test_a_disk_too_full_for_a_checkpoint_is_reported_and_the_run_goes_on(keyed):
    rank = keyed.start(arguments(KEYED), before_exec=files_up_to(FULL))
    done = rank.wait(30)
    assert done.code == 0, done.err
    assert done.err.count("warning: no checkpoint of step") == 4
    assert "warning: no checkpoint of step 5 could be written (there is none): " in done.err and "File too large" in done.err
    run = keyed.folder / "run"
    assert list((run / "checkpoints").iterdir()) == []
    assert len(releases(run)) == STEPS and (run / "model" / "model.safetensors").exists()


def test_every_rank_goes_on_where_one_of_them_cannot_save(keyed):
    words = arguments(KEYED, steps="60", checkpoint_every="20", eval_data=None)
    ranks = keyed.start_ranks(words, words)
    wait_until(lambda: steps_shown(keyed.folder / "run") >= 3)
    (keyed.folder / "run" / "checkpoints").write_text("in the way")
    done = [rank.wait(60) for rank in ranks]
    assert [rank.code for rank in done] == [0, 0], done
    assert done[0].err.count("warning: no checkpoint of step") == 3
    assert "Not a directory" in done[0].err or "File exists" in done[0].err


def test_a_stop_that_cannot_save_is_a_failure_that_says_what_is_left(keyed):
    rank = keyed.start(arguments(KEYED, steps="100000", checkpoint_every="0"), before_exec=files_up_to(FULL))
    wait_until(lambda: steps_shown(keyed.folder / "run") >= 3)
    rank.process.send_signal(signal.SIGTERM)
    done = rank.wait(20)
    assert done.code == 1
    assert "stopped by a signal, but no checkpoint of step" in done.err and "(there is none): " in done.err


def test_two_programs_cannot_go_on_with_one_run(ended):
    program = ended(10)
    before = everything_in(program.folder)
    with (program.folder / "run" / "ledger.jsonl").open("rb") as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        done = program.run(resumed(KEYED))
    assert done.code == 1 and "another writer has it open" in done.err
    assert everything_in(program.folder) == before
