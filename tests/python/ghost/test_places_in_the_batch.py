"""What an example's place in the batch decides, and how many there are: then its absence changes how others are treated. Loops, models, criterions and
collate_fns that do so are refused; what chooses by coins or by an example's own values is taken."""

import copy
import json

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from private_run import Run, prescribe
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from ghostshard import PrivacyEngine

SIZES = (5, 6, 9, 8, 7, 6, 9, 5) * 4


def own(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def train(loss, *, model=None, criterion=own, sizes=SIZES, **options):
    run = Run(draws=sizes, model=model, criterion=criterion, **options)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        loss(run, x, y).backward()
        run.optimizer.step()
        run.data.tensors[0].copy_(torch.randn(40, 6))
        run.data.tensors[1].copy_(torch.randint(0, 3, (40,)))


# Loops -------------------------------------------------------------------------------------------------------------------


def set_first(x):
    x = x.clone()
    x[: len(x) // 4] = 0
    return x


BY_PLACE = {
    "one half is flipped": lambda x: torch.cat([x[: len(x) // 2].flip(1), x[len(x) // 2 :]]),
    "one chunk is scaled": lambda x: torch.cat([(one * 2) if number else one for number, one in enumerate(x.chunk(2))]),
    "a narrow part": lambda x: torch.cat([x.narrow(0, 0, 2) * 3, x.narrow(0, 2, len(x) - 2)]),
    "the first quarter is set": set_first,
}
OF_ITS_OWN = {
    "coins": lambda x: torch.where(torch.rand_like(x[:, :1]) < 0.5, x.flip(1), x),
    "own values": lambda x: torch.where((x.sum(1) > 0)[:, None], x.flip(1), x),
    "chunks alike": lambda x: torch.cat([each.flip(1) for each in x.split(4)]),
    "each for itself": lambda x: torch.stack([each.flip(0) for each in x]),
    "columns": lambda x: torch.cat([x[:, :3].flip(1), x[:, 3:]], 1),
}


@pytest.mark.parametrize("change", BY_PLACE.values(), ids=BY_PLACE.keys())
def test_rows_that_are_treated_by_their_place_are_refused(change):
    with pytest.raises(ValueError, match="treated its rows by their place in the batch, so that an example's absence would change how others are treated"):
        train(lambda run, x, y: run.criterion(run.module(change(x)), y))


@pytest.mark.parametrize("change", OF_ITS_OWN.values(), ids=OF_ITS_OWN.keys())
def test_rows_that_are_treated_by_themselves_are_taken(change):
    train(lambda run, x, y: run.criterion(run.module(change(x)), y))


def test_a_loss_that_larger_batches_form_in_another_way_is_refused():
    with pytest.raises(ValueError, match="in all batches of more examples than in the others"):
        train(lambda run, x, y: run.criterion(run.module(x), y) if len(x) > 7 else run.criterion(-run.module(x), y))


def test_ways_that_a_counter_chooses_are_taken():
    turns = iter(range(len(SIZES)))
    train(lambda run, x, y: run.criterion(run.module(x), y) if next(turns) % 3 else run.criterion(-run.module(x), y))


# Models ------------------------------------------------------------------------------------------------------------------


class FlipsFirstHalf(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        n = len(x) // 2 * self.training
        return self.linear(torch.cat([x[:n].flip(1), x[n:]]))


class ScalesByCount(FlipsFirstHalf):
    def forward(self, x):
        return torch.sin(self.linear(x) * (len(x) if self.training else 1))


@pytest.mark.parametrize("kind", [FlipsFirstHalf, ScalesByCount])
def test_models_that_do_so_in_training_are_refused(kind):
    with pytest.raises(RuntimeError, match="an example's output must not depend on other examples"):
        train(lambda run, x, y: run.criterion(run.module(x), y), model=kind())


class ScaledPositions(nn.Module):
    """x + alpha·pe, whose argument pe [T, d] all examples share."""

    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(()))

    def forward(self, x, pe):
        return x + self.alpha * pe


class WithPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("pe", torch.arange(8.0)[:, None] * torch.ones(2))
        self.positions, self.out = ScaledPositions(), nn.Linear(2, 3)

    def forward(self, x):
        x = x.repeat(1, 3)[:, :16].unflatten(1, (8, 2))
        return self.out(torch.tanh(self.positions(x, self.pe)).mean(1))


def test_a_tensor_that_all_share_does_not_become_theirs_where_it_has_as_many_rows():
    """Batches of 8 examples of 8 places, among others: each example's part of the sum is what it is alone."""
    norms = []
    for draw in (range(8), range(1, 8)):
        run = Run(draws=(5, 6), model=WithPositions(), noise=0.0)
        prescribe(run.loader, (5, 6, 8))
        run.loader.batch_sampler.draw_epoch.batches = lambda self, draw=draw: iter([np.arange(5), np.arange(6), np.array(draw)])
        for x, y in run.loader:
            run.step(x, y)
        norms.append(8 * torch.cat([p.grad.flatten() for p in run.model.parameters()]))
    assert float((norms[0] - norms[1]).norm()) <= 0.1 * (1 + 1e-5)


# Numbers -----------------------------------------------------------------------------------------------------------------


def test_a_criterion_that_is_told_how_many_there_are_is_refused():
    with pytest.raises(ValueError, match="the criterion met a number that goes with how"):
        train(lambda run, x, y: run.criterion(run.module(x), y, len(x)), criterion=lambda out, y, n: own(out, y) / n)


def test_a_criterion_that_is_told_a_number_that_was_read_is_refused():
    with pytest.raises(ValueError, match="the criterion met a constant that is not what it was in earlier draws, after int.. read values"):
        train(lambda run, x, y: run.criterion(run.module(x), y, int((x[:, 0] > 0).sum())), criterion=lambda out, y, n: own(out, y) / max(n, 1))


def test_a_criterion_may_be_told_the_step_and_the_classes():
    steps = iter(range(len(SIZES)))
    train(lambda run, x, y: run.criterion(run.module(x), y, 3, next(steps)), criterion=lambda out, y, classes, step: own(out, y) / classes * 0.9**step)


class Boxes(Dataset):
    counts = [3 + number * number % 7 for number in range(40)]

    def __len__(self):
        return 40

    def __getitem__(self, number):
        return torch.ones(6), {"boxes": torch.ones(self.counts[number], 4)}


@pytest.mark.parametrize("where", ["the loss", "the criterion"])
def test_numbers_of_all_boxes_are_refused(where):
    module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=(model := nn.Linear(6, 3)), optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        grad_sample_mode="ghost", criterion=lambda out, targets, count=1: out.mean(1) / count,
        data_loader=DataLoader(Boxes(), batch_size=8, collate_fn=lambda items: (torch.stack([x for x, _ in items]), [t for _, t in items])),
    )  # fmt: skip
    prescribe(loader, SIZES)
    with pytest.raises(ValueError, match=f"{where} met a number that goes with how"):
        for x, targets in loader:
            count = sum(len(each["boxes"]) for each in targets)
            loss = criterion(module(x), targets, count) if where == "the criterion" else criterion(module(x), targets) / count
            loss.backward()
            optimizer.step()


class DividesByTheDivisor(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x, labels=None, num_items_in_batch=None):
        return own(self.linear(x), labels) / num_items_in_batch


def test_a_divisor_of_ones_own_model_is_followed():
    with pytest.raises(ValueError, match="num_items_in_batch is not known to be of the batch"):
        train(
            lambda run, x, y: run.criterion(run.module(x, labels=y, num_items_in_batch=(y != 1).sum().clamp(min=1))),
            model=DividesByTheDivisor(), criterion=lambda losses: losses,
        )  # fmt: skip


PARTS = {
    "split": lambda x, n: x.split([n, 6 - n], 1)[0],
    "tensor_split": lambda x, n: x.tensor_split((n,), 1)[0],
    "index_select": lambda x, n: x.index_select(1, torch.arange(n)),
    "a list": lambda x, n: x[:, list(range(n))],
    "chunk": lambda x, n: x.chunk(n, 1)[0],
}


class MeanOf(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 3)

    def forward(self, x):
        return self.linear(x.mean(1, keepdim=True))


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_parts_of_a_size_that_was_read_are_refused(part):
    with pytest.raises(ValueError, match="met a (number|constant) that (was read|is not what it was)"):
        train(lambda run, x, y: run.criterion(run.module(part(x, 2 + (y[:4] == 2).sum().item() % 3)), y), model=MeanOf())


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_parts_of_a_size_that_a_counter_gives_are_taken(part):
    turns = iter(range(len(SIZES)))
    train(lambda run, x, y: run.criterion(run.module(part(x, 2 + next(turns) % 3)), y), model=MeanOf())


# collate_fn --------------------------------------------------------------------------------------------------------------


def collated(change):
    return lambda items: (torch.stack([change(number, x) for number, (x, _) in enumerate(items)]), torch.stack([y for _, y in items]), torch.arange(len(items)))


@pytest.mark.parametrize("change, refused", [(lambda n, x: x.flip(0) if n % 2 else x, True), (lambda n, x: x * (n + 1), True), (lambda n, x: x.flip(0), False)])
def test_a_collate_fn_that_goes_by_places_is_refused(change, refused):
    run = Run(draws=SIZES, collate=collated(change))
    step = lambda: [run.step(x, y) for x, y, _ in run.loader]
    if not refused:
        step()
        return
    with pytest.raises(ValueError, match="collate_fn mixes its examples"):
        step()


# Settings and buffers -----------------------------------------------------------------------------------------------------


def setting(change):
    def loss(run, x, y):
        change(run, len(x))
        return run.criterion(run.module(x), y)

    return loss


def rate(run, count):
    run.optimizer.param_groups[0]["lr"] = 0.1 * count / 8


class Seen:
    def __init__(self):
        self.count = 0

    def __call__(self, run, count):
        self.count += count
        run.optimizer.param_groups[0]["lr"] = 0.1 * (1 - self.count / 10_000)


@pytest.mark.parametrize("change", [rate, Seen()], ids=["the batch's size", "examples seen"])
def test_a_learning_rate_by_how_many_were_drawn_is_refused(change):
    with pytest.raises(ValueError, match="it was a function of how many examples were drawn"):
        train(setting(change))


def test_a_learning_rate_by_the_step_is_taken_whatever_sizes_come():
    steps = iter(range(1, 99))
    train(setting(lambda run, count: run.optimizer.param_groups[0].update(lr=0.1 / next(steps))))
    steps_of_one_size = iter(range(1, 99))
    train(setting(lambda run, count: run.optimizer.param_groups[0].update(lr=0.1 - 0.001 * next(steps_of_one_size))), sizes=(8,) * 30)


@pytest.mark.parametrize("each_part", [True, False], ids=["each physical batch", "each step"])
def test_a_scheduler_is_stepped_once_a_step(each_part):
    run = Run(draws=SIZES)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(run.optimizer, 0.9)

    def loop():
        with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=7, optimizer=run.optimizer) as parts:
            for x, y in parts:
                run.optimizer.zero_grad()
                run.backward(x, y)
                run.optimizer.step()
                if each_part or not run.optimizer._is_last_step_skipped:
                    scheduler.step()

    if not each_part:
        loop()
        return
    with pytest.raises(ValueError, match="ExponentialLR was stepped 1 times in one step and 2 times in another"):
        loop()


@pytest.mark.parametrize("written", [True, False])
def test_buffers_that_are_written_after_the_last_step_are_not_saved(written, tmp_path):
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False).eval(), nn.Linear(6, 3))
    model.train = lambda mode=True: model
    run = Run(draws=SIZES, model=model, ledger=tmp_path / "ledger.jsonl")
    for x, y in run.loader:
        run.step(x, y)
    if written:
        model[1].running_mean.copy_(run.data.tensors[0].mean(0))
        with pytest.raises(RuntimeError, match="buffer '1.running_mean' is not what the last forward left: it was replaced or changed after that"):
            run.engine.save_checkpoint(path=tmp_path / "saved", module=run.module, optimizer=run.optimizer)
    else:
        run.engine.save_checkpoint(path=tmp_path / "saved", module=run.module, optimizer=run.optimizer)
    run.engine.report(tmp_path / "report", every_rank=True)
    report = json.loads((tmp_path / "report" / "privacy_report.json").read_text())
    assert ("not known" in report["provenance"]["weights_after"]) == written


class Places(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 2))

    def forward(self, places):
        return self.table[places]


class WithLearntPlaces(nn.Module):
    def __init__(self):
        super().__init__()
        self.places, self.out = Places(), nn.Linear(2, 3)

    def forward(self, x):
        x = x.repeat(1, 3)[:, :16].unflatten(1, (8, 2))
        return self.out(torch.tanh(x + self.places(torch.arange(8))).mean(1))


@pytest.mark.parametrize("sizes", [(5, 6, 8, 7), (8, 5, 8)], ids=["later", "at first"])
def test_learnt_places_are_not_the_units_in_a_batch_of_as_many(sizes):
    torch.manual_seed(5)
    run = Run(draws=sizes, model=WithLearntPlaces(), noise=0.0, max_grad_norm=1e3)
    twin = copy.deepcopy(run.model)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        run.backward(x, y)
        run.optimizer.pre_step()
        loss = F.cross_entropy(twin(x + 0), y, reduction="sum") / 8
        expected = torch.autograd.grad(loss, list(twin.parameters()))
        for ours, theirs in zip(run.model.parameters(), expected):
            torch.testing.assert_close(ours.grad, theirs, rtol=1e-4, atol=1e-6)
