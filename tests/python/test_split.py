"""Declaring units public: a choice by seed and index, blind to the texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostshard.errors import UserError
from ghostshard.texts.split import split_indices


@given(st.data(), st.integers(1, 300), st.integers(0, 2**40))
def test_every_unit_is_in_exactly_one_part(data, units, seed):
    public = data.draw(st.integers(0, units - 1))
    evaluation = data.draw(st.integers(0, units - 1 - public))
    split = split_indices(units, public_units=public, eval_units=evaluation, seed=seed)
    assert (len(split.public_train), len(split.public_eval)) == (public, evaluation)
    assert sorted(split.public_train + split.public_eval + split.private) == list(range(units))
    for part in (split.public_train, split.public_eval, split.private):
        assert part == sorted(part)


def test_the_choice_is_fixed_for_ever():
    # Written down once: another machine, Python or library must give the same.
    split = split_indices(12, public_units=4, eval_units=3, seed=7)
    assert (split.public_train, split.public_eval) == ([2, 8, 10, 11], [3, 4, 7])


def test_another_seed_chooses_others():
    first, second = (split_indices(1000, public_units=500, eval_units=0, seed=seed) for seed in (0, 1))
    # Two independent halves share 250 on average, with a standard deviation of about 8.
    assert abs(len(set(first.public_train) & set(second.public_train)) - 250) < 80


def test_more_public_units_leave_the_evaluation_units_the_same():
    few, many = (split_indices(100, public_units=count, eval_units=10, seed=0) for count in (5, 50))
    assert few.public_eval == many.public_eval
    assert set(few.public_train) < set(many.public_train)


@pytest.mark.parametrize("public, evaluation", [(10, 0), (0, 10), (6, 4), (11, 0), (-1, 0), (0, -1)])
def test_refuses_to_leave_nothing_private(public, evaluation):
    with pytest.raises(UserError, match="fewer than the 10 units"):
        split_indices(10, public_units=public, eval_units=evaluation, seed=0)
