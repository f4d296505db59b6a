"""Draws that a loop passes over by what they hold: then whether a step was made tells who was drawn. Counters, whole passes and coins may choose."""

import math
import random
import warnings

import pytest
import torch
from private_run import Run

from ghostshard.ghost.checks.passed_over import PassedOver

N = 30  # draws of a pass


def loop(skips, *, sizes=(8,) * N, passes=1, **options):
    """skips(run, number, x, y, loss) of each draw: True: no step is made of it. Values change from draw to draw."""
    run = Run(draws=sizes, **options)
    torch.manual_seed(3)
    random.seed(3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="a batch of the private loader was passed over")
        for number in range(passes * len(sizes)):
            if number % len(sizes) == 0:
                batches = iter(run.loader)
            other_examples(run)
            x, y = next(batches)
            run.optimizer.zero_grad()
            loss = run.criterion(run.module(x), y)
            if skips(run, number, x, y, loss):
                continue
            loss.backward()
            run.optimizer.step()
    return run


def other_examples(run):
    run.data.tensors[0].copy_(torch.randn(40, 6) + torch.randn(()))
    run.data.tensors[1].copy_(torch.randint(0, 3, (40,)))


BY_VALUES = {
    "an outlier's loss": (lambda run, number, x, y, loss: loss.item() > 1.5, "after a comparison of its values .test_passed_over.py:"),
    "a class that is missing": (lambda run, number, x, y, loss: bool((y[:2] == 1).sum() == 0), "after a comparison of its values"),
    "a mean of inputs": (lambda run, number, x, y, loss: x.mean() > 0.5, "after a comparison of its values"),
    "its perplexity": (lambda run, number, x, y, loss: math.exp(loss.item()) > 4, "by item.., the .th time, and in no turn"),
    "a number without a trace": (lambda run, number, x, y, loss: float(loss.detach()) * 1.0 > 1.5, "read by float"),
    "NumPy": (lambda run, number, x, y, loss: bool(x.numpy().mean() > 0.4), "read by numpy"),
}


@pytest.mark.parametrize("skips, message", BY_VALUES.values(), ids=BY_VALUES.keys())
def test_draws_that_values_choose_are_refused(skips, message):
    with pytest.raises(RuntimeError, match=f"a draw of the private loader was passed over .*{message}.*Make a step of every draw"):
        loop(skips, passes=4)


def test_a_batch_that_went_backward_and_is_dropped_by_its_loss():
    run = Run(draws=(8,) * N)
    torch.manual_seed(3)
    with pytest.raises(RuntimeError, match="after a comparison of its values"):
        for x, y in run.loader:
            loss = run.criterion(run.module(x), y)
            value = loss.item()
            loss.backward()
            if value > 1.2:
                run.optimizer.zero_grad()
                continue
            run.optimizer.step()
            run.optimizer.zero_grad()
            other_examples(run)


def test_a_draw_that_is_left_by_its_loss_ends_the_run():
    """`break` before the step, and another pass."""
    run = Run(draws=(8,) * N)
    torch.manual_seed(3)
    with pytest.raises(RuntimeError, match="after a comparison of its values"):
        for _ in range(9):
            for x, y in run.loader:
                loss = run.criterion(run.module(x), y)
                if loss.item() > 1.3:
                    break
                loss.backward()
                run.optimizer.step()
                run.optimizer.zero_grad()
                other_examples(run)


@pytest.mark.parametrize("least, draws", [(7, 40), (4, 200)], ids=["usual sizes", "rare sizes"])
def test_small_draws_that_are_passed_over(least, draws):
    lot = random.Random(least)
    sizes = tuple(sum(lot.random() < 0.2 for _ in range(40)) for _ in range(draws))
    with pytest.raises(RuntimeError, match=f"that held . examples, where all that steps were made of held {least} to 1., and . others before it likewise"):
        loop(lambda run, number, x, y, loss: len(x) < least, sizes=sizes)


def test_passes_that_only_look_at_the_data_hide_no_choice():
    """Small draws are passed over in passes that train; between them, passes without a step."""
    lot, seen = random.Random(6), PassedOver()
    found = ""
    for turn in range(12):
        for _ in range(10):
            seen.begin(turn)
            size = sum(lot.random() < 0.2 for _ in range(40))
            found = found or (seen.passed(size, "") if turn % 2 or size < 7 else seen.stepped(size))
    assert "all that steps were made of held 7 to" in found


def test_draws_that_nobody_chose_are_rarely_of_unusual_sizes():
    """First draws that are passed over by a counter, as a resumed loop does, coins, and every third: 2,000 runs of each."""
    lot = random.Random(5)

    def refused(skips):
        seen, n = PassedOver(), lot.choice((6, 20, 100))
        for number in range(n):
            seen.begin(0)
            size = sum(lot.random() < 0.2 for _ in range(40))
            if (seen.passed(size, "") if skips(number, n) else seen.stepped(size)):
                return True
        return False

    for skips in (lambda i, n: i < n // 3 and i > 1, lambda i, n: lot.random() < 0.3, lambda i, n: i % 3 == 2):
        assert sum(refused(skips) for _ in range(2000)) <= 2  # expected: less than 0.6, each size's ties counted as none


@pytest.mark.parametrize("chosen", [True, False], ids=["by its loss", "by a counter"])
def test_a_run_whose_last_draw_was_chosen_has_no_report(chosen, tmp_path):
    run = loop(lambda run, number, x, y, loss: loss.item() < -1 if number < N - 1 else not chosen or loss.item() > -1, ledger=tmp_path / "ledger.jsonl")
    next(iter(run.loader))  # another pass: no further chance
    if chosen:
        with pytest.raises(RuntimeError, match="after a comparison of its values"):
            run.engine.report(tmp_path / "report")
    else:
        run.engine.report(tmp_path / "report")
        assert run.charged == N


HONEST = {
    "every third": lambda run, number, x, y, loss: number % 3 == 2,
    "every fifth, after its loss was read": lambda run, number, x, y, loss: (loss.item(), number % 5 == 4)[1],
    "the first of each pass, after its loss was read": lambda run, number, x, y, loss: (float(loss.detach()), number % N == 0)[1],
    "coins": lambda run, number, x, y, loss: random.random() < 0.3,
    "losses are compared, and a counter chooses": lambda run, number, x, y, loss: (loss.item() > 1.2, number % 4 == 3)[1],
    "one size among others": lambda run, number, x, y, loss: number == 11,
}


@pytest.mark.parametrize("skips", HONEST.values(), ids=HONEST.keys())
def test_draws_that_counters_and_coins_choose_are_charged(skips):
    sizes = tuple(random.Random(4).randint(4, 12) for _ in range(N))
    run = loop(skips, sizes=sizes, passes=3)
    assert run.charged >= 3 * N - 1  # the last draw may still have its step


def test_passes_that_only_look_at_the_data_are_charged():
    run = Run(draws=(8,) * 6)
    best = math.inf
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="a batch of the private loader was passed over")
        for number in range(4):
            for x, y in run.loader:
                if number % 2:
                    run.step(x, y)
                elif (value := run.criterion(run.module(x), y).item()) < best:
                    best = value
    assert run.charged == 24


def test_whoever_vouches_may_choose():
    run = loop(lambda run, number, x, y, loss: loss.item() > 1.5, allow_vouched=True, passes=2)
    assert run.charged >= 2 * N - 1
