"""What ranks tell each other before they communicate anything else, with the other rank's message made up."""

import struct
import types

import pytest
import torch

from ghostshard.ghost.checks import agreement
from ghostshard.ghost.checks.agreement import BACKWARD, STEP, Agreement

PLACE = (3, 0, 7, 2, 4, 1, 0, 0, 5, 8, 6)
TERMS = (0.5, 1.25, 0.01)
BITS = struct.unpack("<qqq", struct.pack("<ddd", *TERMS))
HERE = (*PLACE, *BITS)
NO_WEIGHTS = (-1, 0, 0, 0, 0, 0)  # that another rank has, too, nor units, nor numbers that were read


def meet(monkeypatch, other, sentence=None, **mine):
    """This rank is rank 0 at a backward; `other`: rank 1's message."""

    def all_gather(every, own, group, async_op):
        every[0].copy_(own)
        every[1].copy_(torch.tensor(other))
        return types.SimpleNamespace(wait=lambda *_: True)

    def all_gather_object(said, own, group):
        said[:] = [own, sentence]

    monkeypatch.setattr(agreement.dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(agreement.dist, "all_gather", all_gather)
    monkeypatch.setattr(agreement.dist, "all_gather_object", all_gather_object)
    return Agreement(types.SimpleNamespace(group_name="these"))(BACKWARD, PLACE, TERMS, **mine)


def test_ranks_at_one_place_go_on(monkeypatch):
    assert meet(monkeypatch, [False, BACKWARD, *HERE, 0, *NO_WEIGHTS]) == 0
    assert meet(monkeypatch, [False, BACKWARD, *HERE, 2, *NO_WEIGHTS]) == 2
    assert meet(monkeypatch, [False, BACKWARD, *HERE, 2, *NO_WEIGHTS], news=1) == 3


APART = {
    "another_event": [False, STEP, *HERE, False, *NO_WEIGHTS],
    **{f"another_{i}": [False, BACKWARD, *(value + (i == j) for j, value in enumerate(HERE)), False, *NO_WEIGHTS] for i in range(len(HERE))},
}


@pytest.mark.parametrize("other", APART.values(), ids=APART)
def test_ranks_apart_are_refused(monkeypatch, other):
    with pytest.raises(RuntimeError, match="the ranks are not at the same place of the run"):
        meet(monkeypatch, other)


def test_another_ranks_error_is_raised_here(monkeypatch):
    with pytest.raises(RuntimeError, match="rank 1 refused this: no such batch"):
        meet(monkeypatch, [True, BACKWARD, *HERE, False, *NO_WEIGHTS], sentence="no such batch")


def test_an_error_of_ones_own_is_raised_after_the_others_know(monkeypatch):
    with pytest.raises(ValueError, match="mine"):
        meet(monkeypatch, [False, BACKWARD, *HERE, False, *NO_WEIGHTS], wrong=ValueError("mine"))
