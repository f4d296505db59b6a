"""ghostshard advise: the noise that batches and steps mean."""

import json

import pytest

from ghostshard import advise
from ghostshard.errors import UserError
from ghostshard.launcher import main

PLAN = ["--units", "10000", "--target-epsilon", "8", "--expected-batch", "256", "--steps", "60"]


def test_the_table_has_the_accountants_noise(account, capsys):
    assert main(["advise", *PLAN]) == 0
    out = capsys.readouterr().out
    told = account("noise", "--epsilon", "8", "--delta", "1e-6", "--sampling-rate", "256/10000", "--steps", "60", "--json").stdout
    sigma = json.loads(told)["noise_multiplier"]
    mine = [line for line in out.splitlines() if line.endswith("<- yours")]
    assert len(mine) == 2 and mine[0] == mine[1], "the plan stands in both tables, with the same noise"
    assert mine[0].split()[:3] == ["256", "60", f"{sigma:.4f}"]


@pytest.mark.long
def test_balls_in_bins_are_planned_as_passes(account, capsys):
    assert main(["advise", *PLAN, "--sampling", "balls-in-bins"]) == 0
    out = capsys.readouterr().out
    told = account("noise", "--epsilon", "8", "--delta", "1e-6", "--bins", "40", "--passes", "2", "--json").stdout
    sigma = json.loads(told)["noise_multiplier"]
    mine = [line for line in out.splitlines() if line.endswith("<- yours")]
    assert mine[0].split()[:3] == ["256", "60", f"{sigma:.4f}"]


def test_texts_are_kept_where_steps_are_not(account, capsys):
    main(["advise", *PLAN])
    rows = [line.split() for line in capsys.readouterr().out.split("texts in all")[1].splitlines()]
    seen = [int(row[0]) * int(row[1]) for row in rows if len(row) >= 5 and row[0].isdigit()]
    assert len(seen) > 5 and all(256 * 60 <= each < 256 * 60 + 16384 for each in seen)


def rows(*ratios):
    return [advise.Row(2**i, 10, ratio * 2**i) for i, ratio in enumerate(ratios)]


@pytest.mark.parametrize(
    "ratios, batch", [((8, 4, 2, 1.9), 4), ((8, 7.9, 7.8), 1), ((8, 4, 2, 1), 8), ((8, 6, 5.9), 2)]
)
def test_a_larger_batch_pays_while_doubling_takes_a_quarter_away(ratios, batch):
    assert advise.pays(rows(*ratios)) == batch


def test_batches_lie_within_the_units():
    assert advise.batches_around(256, 1000) == [32, 64, 128, 256, 512]
    assert advise.batches_around(1, 3) == [1, 2]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"--expected-batch": "10001"}, "--expected-batch must be at most --units (10000), got 10001"),
        ({"--target-epsilon": "0"}, "--target-epsilon must be > 0, got 0.0"),
        ({"--delta": "1"}, "--delta must lie strictly between 0 and 1, got 1.0"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(change, message):
    flags = dict(zip(PLAN[::2], PLAN[1::2], strict=True)) | change
    with pytest.raises(UserError) as refused:
        advise.main([word for pair in flags.items() for word in pair])
    assert str(refused.value) == message
