"""Somebody touches the ledger of a run that trains: the run fails, with exit code 1, at its next step or with its report."""

import pytest
from program import PRIVATE, Program, arguments, wait_until
from resumable import ledger_length, steps_shown

REMOVED = "it was removed, moved or replaced under way"


def same_length(path):
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"attempt":0', b'"attempt":1', 1))


TOUCHES = {
    "removed": (lambda path: path.unlink(), REMOVED),
    "moved_with_its_folder": (lambda path: path.parent.rename(path.parent.parent / "elsewhere"), REMOVED),
    "longer": (lambda path: path.open("a").write("\n"), "it was changed under way"),
    "changed": (same_length, None),
}


@pytest.mark.parametrize("touch", TOUCHES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_ledger_that_is_touched_ends_its_run(program: Program, touch, ranks):
    change, rule = TOUCHES[touch]
    run = program.folder / "run"
    words = arguments(PRIVATE, steps="300" if rule is None else "100000", timeout="30")
    started = program.start_ranks(*[words] * ranks)
    wait_until(lambda: ledger_length(run) >= 2 and steps_shown(run) >= 2, 60)
    change(run / "ledger.jsonl")
    done = [rank.wait(60) for rank in started]
    assert [rank.code for rank in done] == [1] * ranks, done
    assert rule is None or rule in done[0].err
    assert not any((place / "model").exists() for place in (run, program.folder / "elsewhere"))
