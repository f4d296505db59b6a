"""How far a batch is padded follows from its longest example: models that it moves are refused, those that mask are not."""

import itertools

import pytest
import torch
from padded_texts import REFUSED, Model, Texts, classes, in_columns, left, mean_of_all, right, run_of, seen_where_masked, sorted_by_length, steps, time_first, to_nine
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine


def mean_of_its_own(self, x, mask):
    return self.head((self.embedding(x) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def masked_sum_over_all(self, x, mask):
    return self.head((self.embedding(x) * mask[..., None]).sum(1) / x.shape[1])


def last_place(self, x, mask):
    return self.head(self.recurrent(self.embedding(x))[0][:, -1])


def last_of_its_own(self, x, mask):
    states = self.recurrent(self.embedding(x))[0]
    return self.head(states[torch.arange(len(x)), mask.sum(1) - 1])


def seen_by_all(self, x, mask):
    h = self.embedding(x)
    return self.head(self.attention(h, h, h)[0][:, 0])



def largest_of_all(self, x, mask):
    return self.head(F.relu(self.convolution(self.embedding(x).transpose(1, 2))).amax(2))


def largest_of_its_own(self, x, mask):
    h = self.convolution((self.embedding(x) * mask[..., None]).transpose(1, 2))
    return self.head(h.masked_fill(~mask[:, None], -1e9).amax(2))


@pytest.mark.parametrize("forward", [mean_of_all, masked_sum_over_all, last_place, seen_by_all, largest_of_all], ids=lambda each: each.__name__)
@pytest.mark.parametrize("collate", [right, sorted_by_length], ids=lambda each: each.__name__)
def test_a_model_that_padding_moves_is_refused(forward, collate):
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(classes, run_of(Model(forward), collate))


@pytest.mark.parametrize("forward", [mean_of_its_own, last_of_its_own, seen_where_masked, largest_of_its_own], ids=lambda each: each.__name__)
@pytest.mark.parametrize("collate", [right, sorted_by_length], ids=lambda each: each.__name__)
def test_a_model_that_masks_is_taken(forward, collate, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    steps(classes, run_of(Model(forward), collate), 6)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_tell_it_too(workers):
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(classes, run_of(Model(mean_of_all), right, workers=workers))
    steps(classes, run_of(Model(mean_of_its_own), right, workers=workers))


def test_padding_on_the_left():
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(classes, run_of(Model(mean_of_all), left))
    steps(classes, run_of(Model(mean_of_its_own), left))
    steps(classes, run_of(Model(lambda self, x, mask: self.head(self.embedding(x)[:, -1])), left))


def test_one_length_for_all_may_be_averaged_over(monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    steps(classes, run_of(Model(mean_of_all), to_nine), 4)


def test_in_pieces_of_a_draw():
    module, optimizer, criterion, loader = run_of(Model(mean_of_all), right, accumulation_steps=2)
    with pytest.raises(RuntimeError, match=REFUSED):
        for taken, batch in enumerate(itertools.chain(loader, loader, loader)):
            classes(module, criterion, batch).backward()
            if taken % 2:
                optimizer.step()
                optimizer.zero_grad()


def test_columns_without_names_and_moved_rows():
    def loss(module, criterion, batch, moved=False):
        x, mask, y = batch
        order = torch.randperm(len(x)) if moved else torch.arange(len(x))
        return criterion(module(x[order], mask[order]), y[order])

    for moved in (False, True):
        steps(lambda *given: loss(*given, moved=moved), run_of(Model(mean_of_its_own), in_columns))
        with pytest.raises(RuntimeError, match=REFUSED):
            steps(lambda *given: loss(*given, moved=moved), run_of(Model(mean_of_all), in_columns))


def test_the_loaders_collate_fn_serves_an_evaluation():
    """What it tells the engine is not part of a batch."""
    *_, loader = run_of(Model(mean_of_its_own), in_columns)
    for x, mask, y in itertools.chain(loader, DataLoader(Texts(), batch_size=8, collate_fn=loader.collate_fn), [loader.collate_fn([Texts()[i] for i in range(5)])]):
        assert x.shape == mask.shape and len(y) == len(x)


def test_a_collate_fn_that_takes_no_example_alone_is_taken():
    def of_several(examples):
        assert len(examples) > 1
        return right(examples)

    steps(classes, run_of(Model(mean_of_its_own), of_several), 4)


def test_time_first():
    forward = lambda self, x, mask: self.head(self.embedding(x).mean(0, keepdim=True))[0]
    masked = lambda self, x, mask: self.head((self.embedding(x) * mask[..., None]).sum(0, keepdim=True) / mask.sum(0)[:, None])[0]
    steps(classes, run_of(Model(masked), time_first, batch_first=False))
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(classes, run_of(Model(forward), time_first, batch_first=False))


def test_a_packed_recurrent_layer_is_taken():
    def forward(self, x, mask):
        packed = pack_padded_sequence(self.embedding(x), mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        return self.head(pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)[0].sum(1))

    steps(classes, run_of(Model(forward), right))


@pytest.mark.parametrize("by", ["mask", "examples"])
def test_a_packed_layer_that_is_as_long_as_its_longest_example(by):
    """No batch without that one fits its mask."""

    def forward(self, x, mask):
        mask = x != 0 if by == "examples" else mask
        packed = pack_padded_sequence(self.embedding(x), mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        states = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)[0]
        return self.head((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))

    steps(classes, run_of(Model(forward), right), 6)


def test_it_is_looked_at_when_lengths_first_differ():
    """In a batch whose examples are all of one length, nothing shows."""

    class Growing(Texts):
        late = False

        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return (x if Growing.late else x[:3]), y

    model = Model(mean_of_all)
    engine = PrivacyEngine(accountant="rdp")
    *run, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1), noise_multiplier=1.0,
        data_loader=DataLoader(Growing(), batch_size=12, collate_fn=right), max_grad_norm=1.0, grad_sample_mode="ghost",
        criterion=nn.CrossEntropyLoss(),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=REFUSED):
        for taken, batch in enumerate(itertools.chain(loader, loader, loader)):
            Growing.late = taken >= 1
            steps(classes, (*run, [batch]), 1)
