"""A model may make its batch a leaf of autograd (Wav2Vec2's features do, for checkpointing): that is the batch as long as it lies in its
memory. A copy looks like a table that trains, and is refused, as is a leaf of another draw. (Two ranks: test_ranks_together.py.)"""

import pytest
import torch
from private import Private
from private_run import Run
from torch import nn
from torch.utils.data import default_collate

from ghostshard.ghost.same_memory import lies_within

same = lambda h: h
# What becomes a leaf, and the rows that the model makes of it.
IN_ITS_MEMORY = {
    "itself": (same, same), "unsqueezed": (lambda x: x[:, None], lambda h: h[:, 0]), "reshaped": (lambda x: x.reshape(len(x), 2, 3), lambda h: h.flatten(1)),
    "a part": (lambda x: x[:, :3], lambda h: torch.cat([h, h], 1)), "transposed": (lambda x: x.t(), lambda h: h.t()), "detached": (lambda x: x.detach(), same),
    "expanded": (lambda x: x.expand(2, *x.shape), lambda h: h.mean(0)), "cast to what it is": (lambda x: x.to(torch.float32), same),
    "every second": (lambda x: x[:, ::2], lambda h: h.repeat_interleave(2, 1)),
}  # fmt: skip
COPIES = {
    "cloned": (lambda x: x.clone(), same), "cast": (lambda x: x.double(), lambda h: h.float()), "detached and cloned": (lambda x: x.detach().clone(), same),
    "reshaped over rows": (lambda x: x.t().reshape(2, -1), lambda h: h.reshape(6, -1).t()), "contiguous": (lambda x: x.t().contiguous(), lambda h: h.t()),
    "computed": (lambda x: x + 0, same), "chosen": (lambda x: x[torch.arange(len(x))], same), "by NumPy": (lambda x: torch.from_numpy(x.numpy().copy()), same),
}  # fmt: skip


class MakesALeaf(nn.Module):
    def __init__(self, form=same, rows=same, *, trains=True):
        super().__init__()
        torch.manual_seed(2)
        self.layer, self.form, self.rows, self.trains = nn.Linear(6, 3), form, rows, trains

    def forward(self, x, *, other=None):
        leaf = self.form(x if other is None else other)
        if self.trains:
            leaf.requires_grad_()
        return self.layer(self.rows(leaf))


@pytest.mark.parametrize("form", IN_ITS_MEMORY)
def test_a_view_of_a_drawn_batch_may_be_a_leaf(form):
    run = Run(model=MakesALeaf(*IN_ITS_MEMORY[form]), draws=(8, 1, 0, 7))
    for x, y in run.loader:
        run.step(x, y)
    assert run.charged == 4


@pytest.mark.parametrize("form", IN_ITS_MEMORY)
def test_the_sum_is_the_one_without_a_leaf(form):
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
    loss = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    found, expected = (Private(MakesALeaf(*IN_ITS_MEMORY[form], trains=trains), 0.5).step(loss, [(x, y)]) for trains in (True, False))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("form", COPIES)
def test_a_copy_may_not(form):
    """It has the batch's values, and so may a table have that was made of it."""
    run = Run(model=MakesALeaf(*COPIES[form]))
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match="outside of the model's layers .* so does a copy"):
        run.backward(x, y)
    assert run.charged == 0 and run.model.layer.weight.grad is None


@pytest.mark.parametrize("form", [*IN_ITS_MEMORY, *COPIES])
def test_under_own_batches_a_leaf_needs_the_users_word(form):
    forms = IN_ITS_MEMORY | COPIES
    for allowed in (False, True):
        run = Run(model=MakesALeaf(*forms[form]), own_batches=True, allow_vouched=allowed)
        x, y = torch.randn(4, 6), torch.zeros(4, dtype=torch.long)
        if allowed and form in IN_ITS_MEMORY:
            run.step(x, y)
            assert run.charged == 1
        else:
            with pytest.raises(ValueError, match="outside of the model's layers"):
                run.backward(x, y)
            assert run.charged == 0


def of_three(rows):
    """A collate_fn whose batches have a column that is no example's. rows(number of examples)"""
    return lambda examples: [*default_collate(examples), rows(len(examples))]


def test_a_view_of_the_second_argument_may_be_a_leaf():
    run = Run(model=MakesALeaf(lambda x: x[:, None], lambda h: h[:, 0]), draws=(8, 7))
    for x, y in run.loader:
        run.optimizer.zero_grad()
        run.criterion(run.module(x * 2, other=x), y).backward()
        run.optimizer.step()
    assert run.charged == 2


class KeepsParameters(nn.Module):
    """Makes a leaf of something of its own, in the place of a weight."""

    def __init__(self, of):
        super().__init__()
        self.layer, self.of = nn.Linear(6, 3), of
        self.register_buffer("held", torch.zeros(6))

    def forward(self, x):
        return self.layer(x + self.of(self).detach()[None].requires_grad_()[0])


@pytest.mark.parametrize("of", [lambda m: m.layer.weight[0], lambda m: m.held, lambda m: m.layer.weight.view(-1)[:6]], ids=["parameter", "buffer", "part"])
@pytest.mark.parametrize("own", [False, True])
def test_a_view_of_a_parameter_or_a_buffer_may_not(of, own):
    run = Run(model=KeepsParameters(of), own_batches=own, allow_vouched=own)
    x, y = (torch.randn(4, 6), torch.zeros(4, dtype=torch.long)) if own else next(iter(run.loader))
    with pytest.raises(ValueError, match="outside of the model's layers"):
        run.backward(x, y)
    assert run.charged == 0


def leaf_of_the_draw_before(run, batches):
    (before, _), (x, y) = next(batches), next(batches)
    before.requires_grad_()
    return before, lambda: run.criterion(run.module(x) + before[: len(x), :3], y)


def leaf_of_a_forward_that_is_in_no_loss(run, batches):
    x, y = next(batches)
    table = torch.zeros(len(x), 6, requires_grad=True)
    run.module(table)
    return table, lambda: run.criterion(run.module(x) + table[:, :3], y)


@pytest.mark.filterwarnings("ignore:a batch of the private loader was passed over")
@pytest.mark.parametrize("deed", [leaf_of_the_draw_before, leaf_of_a_forward_that_is_in_no_loss], ids=lambda deed: deed.__name__)
def test_a_leaf_of_something_else_gets_no_gradient(deed):
    run = Run(draws=(8, 8))
    leaf, loss = deed(run, iter(run.loader))
    with pytest.raises(ValueError, match="outside of the model's layers|is not known to be of the batch"):
        loss().backward()
    assert leaf.grad is None


def test_a_table_that_was_handed_out_gets_no_gradient():
    """It requires a gradient already, so that it is somebody's, and no example's."""
    table = torch.zeros(8, 6, requires_grad=True)
    run = Run(collate=of_three(lambda count: table[:count]), draws=(8,))
    x, y, rows = next(iter(run.loader))
    with pytest.raises(ValueError, match="outside of the model's layers"):
        run.criterion(run.module(x + rows), y).backward()
    assert table.grad is None


x = torch.arange(24.0).view(4, 6)


@pytest.mark.parametrize(("part", "whole", "within"), [
    (x, x, True), (x[1:3], x, True), (x, x[1:3], False), (x[:, 1::2], x[:, 1:], True), (x[:, ::2], x[:, 1:], False), (x[::2], x[1::2], False),
    (x[:2], x[2:], False), (x[1:3, :1], x[:, 1:], False), (x[1:3], x[:, ::5], False), (x.t(), x, True), (x.view(torch.int32), x, True), (x.view(torch.int16)[:, 2:4], x[:, 1:2], True),
    (x.view(torch.int16)[:, 2:5], x[:, 1:2], False), (x[:1].expand(3, 6), x[0], True), (x[0], x[:1].expand(3, 6), True), (x.clone(), x, False),
    (x[:0], x, False), (x[3, 5], x, True), (x.unfold(0, 2, 1), x, True), (x, x.unfold(0, 2, 1), True), (x.to_sparse(), x, False),
])  # fmt: skip
def test_which_memory_lies_within_another(part, whole, within):
    assert lies_within(part, whole) is within
