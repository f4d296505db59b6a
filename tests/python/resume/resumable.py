"""A run whose steps can be told apart, and what its folder holds."""

import hashlib
import json
import shutil
import signal
from pathlib import Path

from program import PRIVATE, UNITS, Finished, Program, arguments, metrics, same_weights, wait_until

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


def goes_on_to_the_bit_and_on_other_ranks(program: Program, flags: dict[str, str]) -> None:
    """A run of 8 steps on two ranks, gone on with from step 4 on two and on one. Without privacy, so that the batches come again."""
    flags = {**flags, "--steps": "8", "--checkpoint-every": "4", "--keep-checkpoints": "9", "--timeout": "60"}
    assert run_all(program, 2, arguments(flags)).code == 0
    run = program.folder / "run"
    for ranks in (2, 1):
        other = program.folder / f"other{ranks}"
        shutil.copytree(run, other)
        shutil.rmtree(other / "checkpoints" / "step-000000000008")
        shutil.rmtree(other / "model")
        done = run_all(program, ranks, resumed(flags, output=other.name))
        assert done.code == 0, done.err
        assert [line["step"] for line in metrics(other)] == list(range(9))
        if ranks == 2:
            assert same_weights(run, other)


def is_killed_and_goes_on_to_the_bit(program: Program, flags: dict[str, str], steps: int = 60) -> None:
    """A run on two ranks, one of which is killed at a moment that nobody chose, beside one that was left alone. Without privacy, so that
    the batches come again."""
    flags = {**flags, "--steps": str(steps), "--checkpoint-every": "3", "--timeout": "20"}
    assert run_all(program, 2, arguments(flags, output="straight")).code == 0
    run = program.folder / "run"
    started = program.start_ranks(*[arguments(flags)] * 2)
    wait_until(lambda: steps_shown(run) >= 8, 60)
    started[1].process.kill()
    done = [rank.wait(30) for rank in started]
    assert [rank.code for rank in done] == [1, -signal.SIGKILL], done
    assert not (run / "model").exists() and 0 < max(checkpoints(run)) < steps, "the kill came too late to show anything"
    assert run_all(program, 2, resumed(flags)).code == 0
    assert same_weights(run, program.folder / "straight")


def steps_shown(run: Path) -> int:
    file = run / "metrics.jsonl"
    return max(file.read_text().count("\n") - 1, 0) if file.exists() else 0


def ledger_length(run: Path) -> int:
    file = run / "ledger.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def resumed(flags: dict, **changes) -> list[str]:
    return arguments(flags, resume="", **changes)


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
