"""A rank that evaluates or saves alone, leaves its loop, or ends, while the other goes on: one sentence within seconds on every rank that
is still there, in the place of torch's error or of a wait of ten minutes.
"""

import json
import re

import pytest
from launch import HERE, run_ranks

SECONDS = 10  # measured in the ranks, from the first batch: a rank that ends is known at once; the rest is for a busy machine
APART = "the ranks are not at the same place of the run"
GONE = "rank 0 is at nothing: it has left its loop over the private loader"
WAS_GONE = "this rank left its loop over the private loader, in which other ranks went on"
LOST = "another rank does not answer: it has ended, or is elsewhere in the run"

# (kind, how rank 0 leaves): what each rank says; None: it is gone, or says what torch does
SENTENCES = {
    ("sharded", "all together"): ("nothing", "nothing"),
    ("replicas", "all together"): ("nothing", "nothing"),
    ("replicas", "rank 0 alone"): ("nothing", "nothing"),
    ("sharded", "evaluates"): (APART, APART),
    ("sharded", "saves"): (APART, APART),
    ("replicas", "saves"): (APART, APART),
    ("sharded", "all break"): ("nothing", "nothing"),
    ("replicas", "all break"): ("nothing", "nothing"),
    ("sharded", "breaks"): (WAS_GONE, GONE),
    ("replicas", "breaks"): (WAS_GONE, GONE),
    ("replicas", "breaks into a barrier"): (None, GONE),
    ("sharded", "breaks after a forward"): (WAS_GONE, GONE),
    ("replicas", "breaks before step()"): (WAS_GONE, GONE),
    ("replicas", "breaks with a manager"): (WAS_GONE, GONE),
    ("replicas", "keeps its iterator"): (WAS_GONE, GONE),
    ("sharded", "returns"): ("nothing", LOST),
    ("replicas", "raises"): ("OSError: no such file", LOST),
    ("sharded", "exits"): (None, LOST),
    ("replicas", "dies in backward"): (None, LOST),
}


# The rules of leaving are tried in test_presence.py; these are more of the same ways.
LONG = {
    ("sharded", "all break"), ("replicas", "all break"), ("replicas", "breaks"), ("replicas", "breaks before step()"), ("replicas", "breaks with a manager"),
    ("replicas", "rank 0 alone"), ("replicas", "saves"), ("replicas", "keeps its iterator"),
}  # fmt: skip
CASES = [pytest.param(*each, id=" ".join(each), marks=[pytest.mark.long] if each in LONG else []) for each in SENTENCES]


@pytest.mark.parametrize(("kind", "how"), CASES)
def test_who_is_still_there_says_why(kind, how, tmp_path):
    run_ranks(HERE / "departing_main.py", 2, str(tmp_path), how, kind)
    for rank, expected in enumerate(SENTENCES[kind, how]):
        if expected is None:
            continue
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert expected in found["said"] and found["seconds"] < SECONDS, found


def test_who_keeps_its_iterator_is_named_to_the_other(tmp_path):
    run_ranks(HERE / "departing_main.py", 2, str(tmp_path), "keeps its iterator", "sharded")
    said = (tmp_path / "told.txt").read_text()
    assert re.match(r"rank 1 has waited \d+ s at a forward for rank 0, which is slow or elsewhere \(an error ends the wait after 10 minutes\)", said)
