"""Values of a batch that come back where no batch is: in the data set, in numbers, by an alias, in which way a loop goes, in buffers, in terms of the
loss that begin to count later."""

import pytest
import torch
from private_run import Run
from torch import nn
from torch.nn import functional as F

from ghostshard import vouch_for
from ghostshard.ghost.provenance import plain

REFUSED = "not known to be of the batch"


def loop(run, loss, after=lambda *_: None, *, raises=None, match="", passes=2):
    """loss(x, y, step); after(x, y, outputs, loss, step)."""

    def turn():
        step = 0
        for _ in range(passes):
            for x, y in run.loader:
                run.optimizer.zero_grad()
                now = loss(x, y, step)
                now.backward()
                run.optimizer.step()
                after(x, y, now, step)
                step += 1

    if raises is None:
        return turn()
    with pytest.raises(raises, match=match):
        turn()


# The data set ------------------------------------------------------------------------------------------------------------


def relabelled(run):
    def after(x, y, loss, step):
        with torch.no_grad():
            out = run.module(plain(x))
        run.data.tensors[1][: len(x)] = (x[:, :3] - x[:, :3].mean(0) + out.mean()).argmax(1)

    return after


def centred(run):
    return lambda x, y, loss, step: run.data.tensors[0].sub_(0.1 * x.mean(0))


@pytest.mark.parametrize("change", [relabelled, centred])
def test_the_data_set_holds_no_values_of_a_batch(change):
    run = Run()
    loop(run, lambda x, y, step: run.criterion(run.module(x), y), change(run), raises=ValueError, match="data set holds values of an earlier batch")
    assert run.charged <= 2


def test_a_data_set_may_be_changed_by_public_numbers():
    run = Run()
    loop(run, lambda x, y, step: run.criterion(run.module(x), y), lambda *_: run.data.tensors[0].mul_(0.99))
    assert run.charged == 10


# Numbers -----------------------------------------------------------------------------------------------------------------


def kept_in_a_place(kept, value):
    kept[0] = value


def averaged_in_place(kept, value):
    kept.mul_(0.5).add_(0.5 * value)


def filled(kept, value):
    kept.fill_(value)


@pytest.mark.parametrize("keep", [kept_in_a_place, averaged_in_place, filled])
def test_numbers_do_not_come_back_in_tensors(keep):
    run, kept = Run(), torch.ones(2)
    loss = lambda x, y, step: run.criterion(run.module(x), y) * torch.softmax(kept, 0)[0]
    loop(run, loss, lambda x, y, loss, step: keep(kept, loss.item()), raises=ValueError, match="a number that was read from a private batch")


def test_numbers_may_be_kept_in_tensors_for_people():
    run, total = Run(), torch.zeros(())

    def after(x, y, loss, step):
        total.add_(loss.item() * len(x))
        assert f"{total:.3f}" and float(total) > 0

    loop(run, lambda x, y, step: run.criterion(run.module(x), y), after)
    assert run.charged == 10


WRITES = {
    "scaled": lambda p, read, x: p.mul_(1 - 0.01 * read), "divided": lambda p, read, x: p.data.div_(1 + read),
    "by_a_tensor": lambda p, read, x: p.data.div_(1 + x.std()), "by_an_alias": lambda p, read, x: p.detach().add_(x.mean(0)),
    "by_a_view": lambda p, read, x: p.data[0].add_(x[0]),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_weights_are_not_written_from_a_batch(write):
    run = Run()

    def after(x, y, loss, step):
        before.append(run.model.weight.detach().clone())
        with torch.no_grad():
            write(run.model.weight, loss.item(), x)

    before = []
    loop(run, lambda x, y, step: run.criterion(run.module(x), y), after, raises=ValueError, match="written to a parameter")
    assert run.charged == 1 and torch.equal(run.model.weight, before[0])


def test_gradients_are_not_scaled_by_what_was_read():
    run = Run()
    x, y = next(iter(run.loader))
    loss = run.criterion(run.module(x), y)
    loss.backward()
    run.optimizer.pre_step()
    run.model.weight.grad.mul_(loss.item())
    before = run.model.weight.detach().clone()
    with pytest.raises(RuntimeError, match="was changed by values of a private batch"):
        run.optimizer.original_optimizer.step()
    assert torch.equal(run.model.weight, before)


# Aliases -----------------------------------------------------------------------------------------------------------------

ALIASES = {
    "data": lambda c, x: c.data.mul_(0.9).add_(x.mean(0)), "detached": lambda c, x: c.detach().lerp_(x.mean(0), 0.1),
    "index": lambda c, x: c.detach().__setitem__(slice(0, 3), x.mean(0)[:3]), "whole": lambda c, x: c.data.copy_(x.mean(0)),
}  # fmt: skip


@pytest.mark.parametrize("write", ALIASES.values(), ids=ALIASES)
def test_what_is_written_to_an_alias_is_written(write):
    run, centre = Run(), torch.zeros(6)
    loss = lambda x, y, step: run.criterion(run.module(x - centre), y)
    loop(run, loss, lambda x, *_: write(centre, x), raises=ValueError, match="in whose memory values of a batch are")
    assert run.charged <= 2


# Ways --------------------------------------------------------------------------------------------------------------------


def until_small(x, step):
    while x.abs().max() > 1.5:
        x = x * 0.9
    return x


def as_often_as(x, step):
    for _ in range(int((x.abs() > 1).sum()) % 7):
        x = torch.tanh(x)
    return x


def more_than_once(x, step):
    for _ in range(2 + int((x.abs() > 1).sum()) % 5):
        x = torch.tanh(x)
    return x


def turned(x, step):
    return x.flip(1) if x.mean() > 0 else x


def not_turned(x, step):
    return x if x.mean() > 0 else -x


def normalised(x, step):
    return F.normalize(x, dim=1) if bool(x.max() > 2.2) else x


def shifted(x, step):
    return x.roll(int(x.sum().abs()) % 5, 1)


def chosen(x, step):
    return torch.cat([x.topk(1 + int(x.sum().abs()) % 5, 1).values, x], 1)[:, -6:]


@pytest.mark.parametrize("way", [until_small, as_often_as, more_than_once, turned, not_turned, normalised, shifted, chosen], ids=lambda way: way.__name__)
def test_a_loop_goes_no_way_that_follows_from_the_batch(way):
    """Draws of the same units, whose values the test changes."""
    run = Run(draws=(8,) * 8)
    torch.manual_seed(3)
    after = lambda *_: run.data.tensors[0].copy_(torch.randn(40, 6) * (0.5 + 1.5 * torch.rand(())))
    match = "in another way than in an earlier draw|met a constant that"
    loop(run, lambda x, y, step: run.criterion(run.module(way(x, step)), y), after, raises=ValueError, match=match)


def test_losses_go_no_way_that_follows_from_the_batch():
    run = Run(draws=(8,) * 8)
    torch.manual_seed(3)

    def loss(x, y, step):
        out = run.module(x)
        return run.criterion(-out if x.mean() > 0 else out, y)

    after = lambda *_: run.data.tensors[0].copy_(torch.randn(40, 6) + torch.randn(()))
    loop(run, loss, after, raises=ValueError, match="in another way than in an earlier draw")


def by_counters(x, step, read):
    return x.flip(1) if step % 2 else x


def places_of_a_text(x, step, read):
    parts = [x[:, t] * (1 + t) for t in range(x.shape[1])]
    return torch.stack(parts, 1)


def row_by_row(x, step, read):
    return torch.stack([row * 0.5 if row.sum() > 0 else row for row in x]) if len(x) else x


@pytest.mark.parametrize("read", [False, True], ids=["nothing_read", "read_after"])
@pytest.mark.parametrize("way", [by_counters, places_of_a_text, row_by_row], ids=lambda way: way.__name__)
def test_other_ways_are_taken(way, read):
    run = Run(draws=(8, 1, 0, 7))
    after = lambda x, y, loss, step: loss.item() if read else None
    loop(run, lambda x, y, step: run.criterion(run.module(way(x, step, read)), y), after)
    assert run.charged == 8


# Functions of one's own -----------------------------------------------------------------------------------------------------


class Rounded(torch.autograd.Function):
    """To a grid of the whole batch, with the gradient of the identity."""

    @staticmethod
    def forward(ctx, x):
        step = x.abs().max() / 7
        return (x / step).round() * step

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_a_function_that_joins_examples_without_gradients_is_refused():
    run = Run()
    loop(run, lambda x, y, step: run.criterion(Rounded.apply(run.module(x)), y), raises=ValueError, match="max joined its examples")


def test_a_function_that_keeps_them_apart_is_taken():
    run = Run()
    loop(run, lambda x, y, step: run.criterion(Doubled.apply(run.module(x)), y))
    assert run.charged == 10


# Buffers -----------------------------------------------------------------------------------------------------------------


class SetOnce(nn.Module):
    """Takes the mean of the first batch that it sees; later: from its fourth forward on, which records, an average."""

    def __init__(self, *, later=False):
        super().__init__()
        self.inner, self.later, self.calls = nn.Linear(6, 3), later, 0
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("is_set", torch.tensor(False))

    def forward(self, x):
        if self.later and torch.is_grad_enabled():
            self.calls += 1
            if self.calls > 3:
                self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
        elif not self.later and not self.is_set:
            self.mean.copy_(x.mean(0))
            self.is_set.fill_(True)
        return self.inner(x - self.mean)


def test_a_buffer_is_not_set_by_the_first_batch():
    run = Run(model=SetOnce())
    loop(run, lambda x, y, step: run.criterion(run.module(x), y), raises=RuntimeError, match="outputs changed with the inputs of others|buffers follow")
    assert run.charged == 0


def test_a_buffer_is_not_set_by_an_evaluation_of_private_examples():
    run = Run(model=SetOnce())

    def loss(x, y, step):
        if step == 0:
            with torch.no_grad():
                run.module(x)
        return run.criterion(run.module(x), y)

    loop(run, loss, raises=RuntimeError, match="buffer 'mean'.*a forward on a private batch that is no private step's wrote to it")


def test_a_buffer_may_be_set_by_public_examples():
    run = Run(model=SetOnce())
    with torch.no_grad():
        run.module(torch.randn(5, 6))
    loop(run, lambda x, y, step: run.criterion(run.module(x), y))
    assert run.charged == 10


def test_a_buffer_that_moves_later_is_looked_at_when_it_does():
    run = Run(model=SetOnce(later=True))
    loop(run, lambda x, y, step: run.criterion(run.module(x), y), raises=RuntimeError, match="buffers follow from examples|gradients changed with the inputs of others")
    assert run.charged in (2, 3)  # forwards of the check are counted by the model, too


# Terms that begin to count later -----------------------------------------------------------------------------------------------


class Later(nn.Module):
    reduction = "mean"

    def forward(self, outputs, targets):
        losses = F.cross_entropy(outputs, targets, reduction="none")
        return losses if self.begun < 7 else losses * (losses.detach() / losses.detach().mean())

    begun = 0


def test_a_criterion_is_looked_at_when_it_computes_something_else():
    run = Run()
    criterion = Later()
    run = Run(criterion=criterion)

    def loss(x, y, step):
        criterion.begun = step
        return run.criterion(run.module(x), y)

    loop(run, loss, raises=RuntimeError, match="losses that the criterion gave changed")
    assert run.charged == 7


def test_a_loss_is_looked_at_when_a_weight_leaves_zero():
    run = Run()

    def loss(x, y, step):
        out = run.module(x)
        return run.criterion(out, y) + (0.0 if step < 3 else 0.5) * (out * out.detach().roll(1, 0)).sum(1)

    loop(run, loss, raises=(RuntimeError, ValueError))
    assert run.charged <= 3


# Words -------------------------------------------------------------------------------------------------------------------

WORDS = {
    "added": lambda x, word: x + word, "alone_in_effect": lambda x, word: 0 * x + word, "joined": lambda x, word: torch.cat([x, word], 1)[:, 6:],
    "written": lambda x, word: x.clone().copy_(word), "in_a_place": lambda x, word: x.clone().index_copy_(1, torch.tensor([0]), word[:, :1]),
}  # fmt: skip


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("join", WORDS.values(), ids=WORDS)
def test_a_word_stays_in_what_is_made_of_it(join, allowed):
    run = Run(allow_vouched=allowed)
    x, y = next(iter(run.loader))
    given = join(x, vouch_for(plain(x).flip(0)))
    if allowed and join is not WORDS["in_a_place"]:
        return run.step(given, y)
    with pytest.raises(ValueError, match="allow_vouched=True" if not allowed else "index_copy"):
        run.step(given, y)


def test_a_word_in_the_loss_is_a_word():
    run = Run()
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match="allow_vouched=True"):
        run.criterion(run.module(x) + vouch_for(torch.randn(8, 3)), y).backward()
