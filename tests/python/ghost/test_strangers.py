"""Values of a batch in tensors that the loader did not hand out: written to plain tensors, or trained into another model beside the private one."""

import pytest
import torch
from private_run import Run
from torch import nn
from torch.nn import functional as F

REFUSED = "not known to be of the batch"


def each(run, form):
    for x, y in run.loader:
        run.optimizer.zero_grad()
        form(x, y).backward()
        run.optimizer.step()


def written_by_copy(mean, of):
    mean.copy_(of)


def written_by_index(mean, of):
    mean[:] = of


def written_to_a_part(mean, of):
    mean[:3].copy_(of[:3])


def written_by_out(mean, of):
    torch.add(of, 0.0, out=mean)


def averaged(mean, of):
    mean.mul_(0.9).add_(of, alpha=0.1)


def drawn_nearer(mean, of):
    mean.lerp_(of, 0.1)


def added(mean, of):
    mean += 0.1 * of


def set_to(mean, of):
    mean.set_(of.clone())


def added_with_others(mean, of):
    torch._foreach_add_([mean], [of])


WAYS = (written_by_copy, written_by_index, written_to_a_part, written_by_out, averaged, drawn_nearer, added, set_to, added_with_others)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_statistics_of_earlier_batches_are_not_subtracted(way):
    run, mean = Run(), torch.zeros(6)

    def form(x, y):
        loss = run.criterion(run.module(x - mean), y)
        way(mean, x.mean(0))
        return loss

    with pytest.raises(ValueError, match=REFUSED):
        each(run, form)
    assert run.charged == 1


def test_a_memory_of_earlier_outputs_is_not_compared_with():
    run, queue = Run(), torch.randn(16, 3)

    def form(x, y):
        out = run.module(x)
        loss = run.criterion(torch.cat([out, out @ queue.clone().T], 1), y)
        queue[: len(out)] = out.detach()
        return loss

    with pytest.raises(ValueError, match=REFUSED):
        each(run, form)
    assert run.charged == 1


def test_a_layer_that_gathers_statistics_is_not_applied():
    run, norm = Run(), nn.BatchNorm1d(6, affine=False)

    def form(x, y):
        norm.train()(x)
        return run.criterion(run.module(norm.eval()(x)), y)

    with pytest.raises(ValueError, match=REFUSED):
        each(run, form)


def test_a_batch_that_is_copied_is_the_batch():
    run = Run()

    def form(x, y):
        there, beside = torch.empty(x.shape), torch.zeros(x.shape)
        there.copy_(x)
        beside[:] = x
        return run.criterion(run.module(there), y) + run.criterion(run.module(beside), y)

    each(run, form)
    assert run.charged == 5


def test_counts_for_people_are_gathered():
    run, right = Run(), torch.zeros(1)

    def form(x, y):
        out = run.module(x)
        loss = run.criterion(out, y)
        right.add_((out.argmax(1) == y).sum())
        return loss

    each(run, form)
    assert 0 <= right.item() <= 38 and run.charged == 5


def test_a_teacher_that_trains_beside_is_no_teacher():
    run, teacher = Run(), nn.Linear(6, 3)
    beside = torch.optim.SGD(teacher.parameters(), lr=0.5)

    def form(x, y):
        with torch.no_grad():
            targets = teacher(x)
        beside.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        beside.step()
        return run.criterion(run.module(x) + targets, y)

    with pytest.raises(ValueError, match="weights that were trained on batches of the private loader, without noise"):
        each(run, form)
    assert run.charged == 1


def test_a_probe_that_trains_beside_is_the_callers_own():
    """Nothing of it comes back."""
    run, probe = Run(), nn.Linear(3, 3)
    beside = torch.optim.SGD(probe.parameters(), lr=0.5)

    def form(x, y):
        out = run.module(x)
        loss = run.criterion(out, y)
        F.cross_entropy(probe(out.detach()), y).backward()
        beside.step()
        return loss

    each(run, form)
    assert run.charged == 5
