"""Runs that are killed at any moment, stopped by a signal, or starved: nothing hangs, and everything used is charged."""

import fcntl
import json
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from program import PRIVATE, arguments, everything_in, wait_until
from resumable import KEYED, STEPS, checkpoints, ledger_length, releases, resumed, steps_shown


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


@pytest.mark.parametrize("ranks, kills", [
    pytest.param(1, 8, id="one_rank"), pytest.param(2, 4, id="two_ranks"),
    pytest.param(1, 80, id="one_rank_long", marks=pytest.mark.long),
    pytest.param(2, 40, id="two_ranks_long", marks=pytest.mark.long),
])  # fmt: skip
def test_a_kill_at_any_moment_leaves_a_ledger_of_at_least_what_was_used(keyed, ranks, kills):
    """One kill in four comes at any time after the start, the others once the ledger has grown by a few lines."""
    chance = random.Random(4)
    flags = {**KEYED, "--steps": "20000", "--checkpoint-every": "3", "--keep-checkpoints": "2", "--eval-data": None,
             "--timeout": "6"}  # fmt: skip
    run = keyed.folder / "run"
    used = going_on = tried = 0
    # On a busy machine kills come early in a run: some more, until enough of them have come late.
    while tried < kills or (tried < 4 * kills and not (going_on >= kills // 4 and used > kills)):
        tried += 1
        first = not (run / "ledger.jsonl").exists()
        words = arguments(flags) if first else resumed(flags)
        started = keyed.start_ranks(*[words] * ranks) if ranks > 1 else [keyed.start(words)]
        if chance.random() < 0.25:
            time.sleep(chance.uniform(0.02, 0.9 * ranks))
        else:
            enough = ledger_length(run) + chance.randrange(1, 12)
            wait_until(lambda length=enough: ledger_length(run) >= length, 60)
            time.sleep(chance.uniform(0, 0.03))
        victim = chance.randrange(ranks)
        started[victim].process.kill()
        done = [rank.wait(20) for rank in started]
        assert done[victim].code == -signal.SIGKILL, done
        assert all(rank.code in (1, -signal.SIGKILL) for rank in done), done
        said = [word for word in done[0].err.split("\n") if word.startswith("Resuming after step ")]
        start = int(said[0].split()[3]) if said else 0 if "Resuming at the start" in done[0].err or first else None
        going_on += bool(said)
        used = charged_and_used(run, start, used)
    assert going_on >= kills // 4 and used > kills, "the kills came too early to show anything"
    # The last word: stopped in good order, everything charged is there.
    started = keyed.start(resumed(flags))
    wait_until(lambda: " s/step" in started.err.read_text())
    started.process.send_signal(signal.SIGTERM)
    assert started.wait(20).code == 3
    assert {step for step, _ in releases(run)} >= set(range(max(checkpoints(run))))


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
