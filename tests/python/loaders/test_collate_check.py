"""A collate_fn that mixes examples is refused; padding and augmentation are not."""

import collections
import random
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ghostshard.loaders import GhostDataLoader
from ghostshard.loaders.collate_check import CollateCheck

N = 24


class Texts:
    """Vectors of lengths from 2 to 8 and numbers from 0 to 2."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return torch.arange(1.0 + i, 3.0 + i + i % 7), i % 3


def padded(rows, value=0.0):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def stacked(examples):
    return torch.stack([x[:2] for x, _ in examples]), torch.tensor([y for _, y in examples])


def mixup(examples):
    x, y = stacked(examples)
    return 0.7 * x + 0.3 * x[torch.randperm(len(x))], y


def mixup_with_the_next(examples):
    x, y = stacked(examples)
    return 0.7 * x + 0.3 * x.roll(1, 0), y


def standardised(examples):
    x, y = stacked(examples)
    return (x - x.mean(0)) / (x.std(0) + 1e-3), y


def labels_of_others(examples):
    x, y = stacked(examples)
    return x, y.flip(0)


def padded_by_the_mean(examples):
    x = [x for x, _ in examples]
    return padded(x, float(torch.cat(x).mean())) * torch.cat(x).mean()


def by_numpy(examples):
    x = np.stack([x[:2].numpy() for x, _ in examples])
    return {"x": x / x.max(), "y": [y for _, y in examples]}


def sorted_by_length(examples):
    return stacked(sorted(examples, key=lambda each: -len(each[0])))


def divided_by_how_many(examples):
    x, y = stacked(examples)
    return x / (x > 0).sum(), y


def beside_the_first(examples):
    x, y = stacked(examples)
    return x - x[0], y


def with_the_one_before(examples):
    x, y = stacked(examples)
    return torch.cat([x[:1], 0.5 * (x[1:] + x[:-1])]), y


def summed_up(examples):
    x, y = stacked(examples)
    return x.cumsum(0), y


def the_last_good_one(examples):
    """In the place of those that cannot be read."""
    good, kept = None, []
    for each in examples:
        good = each if each[1] != 1 else good
        kept.append(good or each)
    return stacked(kept)


def with_their_mean(examples):
    x, y = stacked(examples)
    return x, y, float(x.mean())


def with_statistics(examples):
    x, y = stacked(examples)
    return {"x": x, "y": y, "mean and spread": torch.stack([x.mean(0), x.std(0)])}


def with_means_as_many_as_wanted(examples):
    x, y = stacked(examples)
    return x, y, x.mean(0).repeat(N)


def labels_of_others_in_a_list(examples):
    x, y = stacked(examples)
    return x, y.flip(0).tolist()


def labels_of_others_in_a_deque(examples):
    return stacked(examples)[0], collections.deque(stacked(examples)[1].flip(0).tolist())


def entries_of_others(examples):
    return [(x[:2], y) for (x, _), (_, y) in zip(examples, examples[::-1])]


def strings_of_others(examples):
    return stacked(examples), np.array([str(x.tolist()) for x, _ in examples])[::-1].copy()


MIXING = (strings_of_others, labels_of_others_in_a_deque, mixup, mixup_with_the_next, standardised, labels_of_others, padded_by_the_mean, by_numpy, beside_the_first, with_the_one_before,
          summed_up, the_last_good_one, with_their_mean, with_statistics, with_means_as_many_as_wanted, labels_of_others_in_a_list, entries_of_others)  # fmt: skip


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", MIXING, ids=lambda each: each.__name__)
def test_a_collate_fn_that_mixes_is_refused(collate, workers):
    if workers and collate is not mixup:
        pytest.skip("one of them with a worker")
    loader = GhostDataLoader(Texts(), sample_rate=0.9, steps=2, collate_fn=collate, num_workers=workers)
    with pytest.raises(ValueError, match="collate_fn mixes its examples"):
        list(loader)


@pytest.mark.parametrize("count", [2, 3, 8, 9])
def test_a_statistic_of_any_one_example_is_seen(count):
    """As the largest value, which may be that of any of them."""
    for largest in range(count):
        examples = [(torch.tensor([1.0 + i, 2.0 + i + 100 * (i == largest)]), 0) for i in range(count)]
        for _ in range(8):
            with pytest.raises(ValueError, match="collate_fn mixes its examples"):
                CollateCheck()(by_numpy, examples)


def test_what_the_place_before_gives_is_seen_in_any_batch():
    """It shows only if the one that takes it stays and the one that gives it does not."""
    for seed in range(60):
        drawn = random.Random(seed)
        examples = [Texts()[i] for i in range(N) if drawn.random() < 0.5]
        if len({y for _, y in examples}) > 1 and examples[0][1] != 1:
            with pytest.raises(ValueError, match="collate_fn mixes its examples"):
                CollateCheck()(the_last_good_one, examples)


def left_padded(examples):
    rows = [x for x, _ in examples]
    longest = max(map(len, rows))
    return torch.stack([torch.nn.functional.pad(x, (longest - len(x), 0)) for x in rows])


def to_the_longest(examples):
    x = padded([x for x, _ in examples])
    return {"x": x, "mask": x != 0, "lengths": torch.tensor([len(x) for x, _ in examples]), "y": [y for _, y in examples]}


def augmented(examples):
    """With coins of every generator, as many as each example needs."""
    rows = []
    for x, _ in examples:
        while random.random() < 0.5:
            x = x + 1
        start = np.random.randint(0, len(x) - 1)
        rows.append(x[start : start + 2] + torch.randn(2))
    return torch.stack(rows)


def masked(examples):
    """As for masked language models."""
    x = padded([x for x, _ in examples])
    hidden = torch.bernoulli(torch.full(x.shape, 0.3)).bool() & (x != 0)
    return torch.where(hidden, 99.0, x), torch.where(hidden, x, -100.0)


def as_it_is(examples):
    return examples


def time_first(examples):
    return torch.nn.utils.rnn.pad_sequence([x for x, _ in examples])


def shifted(examples):
    """As a model's decoder takes its labels: the last token has a place of its own where the batch is longer."""
    y = padded([x for x, _ in examples], -100.0)
    return {"labels": y, "decoder_input_ids": torch.cat([torch.zeros(len(y), 1), y[:, :-1].masked_fill(y[:, :-1] == -100, 0)], 1)}


def rarely_masked(examples):
    x = padded([x for x, _ in examples])
    hidden = torch.bernoulli(torch.full(x.shape, 0.02)).bool()
    return torch.where(hidden, torch.randint(50, 99, x.shape), x)


def of_strings(examples):
    return {"text": [str(x.tolist()) for x, _ in examples], "n": len(examples)}


def in_crops(examples):
    return torch.cat([torch.stack([x[:2], x[:2].flip(0)]) for x, _ in examples])


def taken_apart(examples):
    return [each.pop("x") for each in [{"x": x} for x, _ in examples]]


def with_numbers_of_its_own(examples):
    x = padded([x for x, _ in examples])
    return x, {"scale": 0.5, "when": time.perf_counter(), "longest": x.shape[1], "places": torch.arange(x.shape[1]), "bounds": torch.tensor([0.0, 9.0])}


def with_a_mask_of_places(examples):
    x = padded([x for x, _ in examples])
    return x, torch.full((x.shape[1],) * 2, -torch.inf).triu(1)


def with_arrays_of_strings(examples):
    names = np.array([str(x.tolist()) for x, _ in examples])
    return {"names": names, "entries": [(each, np.array([each, {}], dtype=object)) for each in names]}


APART = (with_a_mask_of_places, with_arrays_of_strings, stacked, with_numbers_of_its_own, to_the_longest, augmented, masked, as_it_is, time_first, of_strings, in_crops, taken_apart, left_padded, sorted_by_length, shifted, rarely_masked)


@pytest.mark.parametrize("collate", APART, ids=lambda each: each.__name__)
def test_padding_and_augmentation_are_taken(collate, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1.0)
    for _ in range(3):
        loader = GhostDataLoader(Texts(), sample_rate=0.5, steps=4, collate_fn=collate)
        assert len(list(loader)) == 4


@pytest.mark.parametrize("lengths", [(3, 2, 2), (4, 3, 1, 2), (2, 1)], ids=str)
def test_as_many_places_as_examples_and_one_less_of_both_are_no_mixing(lengths):
    examples = [(1.0 + i + torch.arange(float(length)), 0) for i, length in enumerate(lengths)]
    for collate in (time_first, to_the_longest):
        CollateCheck()(collate, examples)


@pytest.mark.parametrize("collate", APART, ids=lambda each: each.__name__)
def test_extents_that_are_the_number_of_examples_by_chance_are_no_mixing(collate, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._HALVES", 3)
    drawn = random.Random(7)
    for _ in range(12):
        CollateCheck()(collate, [Texts()[i] for i in drawn.sample(range(N), drawn.randrange(2, 9))])


@pytest.mark.parametrize("given", ["tensor", "list"])
def test_labels_that_count_up_by_chance_are_no_mixing(given):
    CollateCheck()(lambda each: (stacked(each)[0], stacked(each)[1] if given == "tensor" else stacked(each)[1].tolist()), [Texts()[i] for i in (3, 4, 5)])


def test_a_collate_fn_that_takes_no_more_examples_is_looked_at_all_the_same():
    def limited(examples):
        assert len(examples) <= 8
        return mixup_with_the_next(examples)

    with pytest.raises(ValueError, match="mixes its examples"):
        CollateCheck()(limited, [Texts()[i] for i in range(8)])
    with pytest.raises(ValueError, match="mixes its examples"):
        CollateCheck()(lambda examples: mixup_with_the_next(examples[:8]), [Texts()[i] for i in range(8)])


def test_what_counts_the_examples_is_told_without_more_of_them():
    def limited(examples):
        assert len(examples) <= 5
        return to_the_longest(examples) | {"places": torch.arange(len(examples))}

    for start in range(4):  # as many places as examples, too
        CollateCheck()(limited, [Texts()[start + i] for i in range(5)])


def flipped(rate):
    def collate(examples):
        return torch.stack([x[:2].flip(0) if random.random() < rate else x[:2] for x, _ in examples])

    return collate


def mixed_sometimes(rate):
    def collate(examples):
        x = torch.stack([x[:2].sqrt() for x, _ in examples])
        return (x + x.roll(1, 0)) / 2 if random.random() < rate else x

    return collate


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
def test_coins_that_fall_rarely_are_no_mixing(rate):
    """Before, one run in ten was refused at 0.02: its coins fell in none of the tosses that tell, and then on an example that stayed."""
    random.seed(8)
    for _ in range(40):
        CollateCheck()(flipped(rate), [Texts()[i] for i in random.sample(range(N), 6)])


@pytest.mark.parametrize("rate, least", [(0.5, 40), (0.1, 28)])
def test_mixtures_that_come_by_coins_are_seen(rate, least):
    """At one batch in ten: 0.9^24 of them go through, 3 of 40 expected; 12 or more do once in 30,000."""
    random.seed(8)
    seen = 0
    for _ in range(40):
        try:
            CollateCheck()(mixed_sometimes(rate), [Texts()[i] for i in random.sample(range(N), 6)])
        except ValueError:
            seen += 1
    assert seen > least if rate < 0.5 else seen == least


class Named:
    """Items that are dicts."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"x": torch.arange(2.0 + i % 7), "label": i % 2}


def popped(examples):
    labels = torch.tensor([each.pop("label") for each in examples])
    return {"x": padded([each["x"] for each in examples]), "y": labels}


def test_a_collate_fn_may_take_its_examples_apart(monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1.0)
    assert len(list(GhostDataLoader(Named(), sample_rate=0.5, steps=4, collate_fn=popped))) == 4


def test_lists_with_as_many_rows_as_examples_are_read_as_either(monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1.0)
    check = CollateCheck()
    for count in (2, 3):
        examples = [torch.arange(4.0 * count).view(count, 4) + i for i in range(count)]
        check(lambda given: {"boxes": list(given)}, examples)


def test_the_batch_and_its_coins_are_what_they_would_be():
    made = []
    for check in (True, False):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        collate = augmented
        if check:
            examples = [Texts()[i] for i in range(N)]
            CollateCheck()(collate, examples)
            assert all(torch.equal(one, Texts()[i][0]) for i, (one, _) in enumerate(examples))
        made.append((augmented([Texts()[i] for i in range(N)]), random.random(), np.random.rand(), torch.rand(1)))
    assert torch.equal(made[0][0], made[1][0]) and made[0][1:] == made[1][1:]


def test_the_usual_collate_fn_is_not_called_again():
    calls = collections.deque()  # no setting: what a list beside the code holds is one

    class Counted(Texts):
        def __getitem__(self, i):
            calls.append(i)
            return torch.zeros(2), 0

    assert len(list(GhostDataLoader.from_data_loader(DataLoader(Counted(), batch_size=6)))) == 4
    assert len(calls) <= 4 * N


def test_it_is_looked_at_again_by_lot(monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1.0)
    late = collections.deque()  # no setting

    def collate(examples):
        return (mixup_with_the_next if late else stacked)(examples)

    check, examples = CollateCheck(), [Texts()[i] for i in range(8)]
    check(collate, examples)
    late.append(True)
    with pytest.raises(ValueError, match="mixes its examples"):
        check(collate, examples)
