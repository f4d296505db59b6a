"""python tests/long_run.py [STEPS] [RANKS]: a long run of a tiny model, twice from one beginning.

Not a part of `make test`: 2,000 steps on 4 ranks take minutes. Checked: memory does not grow after the first tenth, the
ledger has one release for every step in an unbroken chain, and the same key gives the same weights to the bit.
"""

import hashlib
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "python"))

import numpy
from program import PRIVATE, Program, arguments, metrics, wait_until, weights, write_inputs

BINARY = Path(__file__).parents[1] / "build" / "release" / "bin" / "ghostshard-finetune-gpt2"
MOST_GROWTH_KIB = 4096  # two heap arenas' worth; a leak of one 29 kB model in a hundred steps would be seen in 2,000


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def follow(program: Program, ranks: int, words: list[str], run: Path, steps: int) -> list[list[int]]:
    """Runs to the end; each rank's memory in KiB after a tenth of the steps and near the end."""
    started = program.start_ranks(*[words] * ranks) if ranks > 1 else [program.start(words)]
    seen = []
    for mark in (steps // 10, steps - steps // 50):
        wait_until(lambda mark=mark: metrics_count(run) > mark, 1200)
        seen.append([resident_kib(rank.process.pid) for rank in started])
    done = [rank.wait(60) for rank in started]
    assert [rank.code for rank in done] == [0] * ranks, done
    return seen


def metrics_count(run: Path) -> int:
    return (run / "metrics.jsonl").read_bytes().count(b"\n") - 1 if (run / "metrics.jsonl").exists() else 0


def check_ledger(run: Path, steps: int) -> None:
    lines = (run / "ledger.jsonl").read_bytes().split(b"\n")
    assert lines.pop() == b"" and len(lines) == 1 + steps
    previous = "0" * 64
    for number, line in enumerate(lines):
        content = json.loads(line)
        assert content["previous"] == previous
        assert number == 0 or (content["step"], content["attempt"]) == (number - 1, 0)
        previous = hashlib.sha256(line).hexdigest()


def main(steps: int = 2000, ranks: int = 4) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "work"
        write_inputs(folder)
        (folder / "key").write_bytes(bytes(range(32)))
        (folder / "key").chmod(0o600)
        program = Program(BINARY, folder)
        settings = {"steps": str(steps), "noise_key_file": "key", "checkpoint_every": "200", "timeout": "120"}
        words = arguments(PRIVATE, **settings)
        try:
            # One run id for both: the second begins as a copy of the first's first steps.
            started = program.start_ranks(*[words] * ranks) if ranks > 1 else [program.start(words)]
            wait_until(lambda: metrics_count(folder / "run") >= 2, 120)
            for rank in started:
                rank.process.send_signal(signal.SIGTERM)
            assert [rank.wait(60).code for rank in started] == [3] * ranks
            shutil.copytree(folder / "run", folder / "again")
            for run in (folder / "run", folder / "again"):
                begin = time.monotonic()
                early, late = follow(program, ranks, arguments(PRIVATE, **settings, resume="", output=run.name), run, steps)
                seconds = time.monotonic() - begin
                check_ledger(run, steps)
                assert len(metrics(run)) == steps + 1
                growth = [after - before for before, after in zip(early, late, strict=True)]
                print(f"{run.name}: {ranks} ranks, {steps} steps in {seconds:.0f} s; resident KiB after {steps // 10} steps "
                      f"{early}, near the end {late}, growth {growth}; ledger of {steps} releases unbroken", flush=True)  # fmt: skip
                assert max(growth) <= MOST_GROWTH_KIB
            a, b = weights(folder / "run"), weights(folder / "again")
            assert all(numpy.array_equal(a[name], b[name]) for name in a)
            print("weights of both runs: equal to the bit")
        finally:
            program.kill_all()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
