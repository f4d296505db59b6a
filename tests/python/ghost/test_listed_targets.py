"""Lists with an entry for each example, as detection models take their targets: whoever mixes their entries is refused, whoever does not is taken."""

import copy
import itertools

import pytest
import torch
import transformers
from private_run import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine
from ghostshard.ghost.listed import KnownLists, lists_units

N = 24
MIXED = "must not depend on other examples"
OTHERS = "its rows are of other examples than the model's output, or in another order"


class Pictures:
    """[3,6,6], and 1 to `most` boxes [k,4]: as many as examples are drawn, at times."""

    def __init__(self, most=5):
        self.most = most

    def __len__(self):
        return N

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(3, 6, 6, generator=g), torch.rand(1 + i % self.most, 4, generator=g)


def named(examples):
    return torch.stack([x for x, _ in examples]), [{"boxes": boxes} for _, boxes in examples]


def bare(examples):
    return torch.stack([x for x, _ in examples]), [boxes for _, boxes in examples]


class Model(nn.Module):
    def __init__(self, of_targets=None):
        super().__init__()
        self.of_targets = of_targets
        self.c, self.f = nn.Conv2d(3, 4, 3), nn.Linear(4, 4)

    def forward(self, x, targets=None):
        outputs = self.f(self.c(x).mean((2, 3)))
        return outputs if targets is None else self.of_targets(outputs, targets)


def boxes_of(target):
    return target["boxes"] if isinstance(target, dict) else target


def own(outputs, targets):
    if len(targets) == 0:
        return outputs.sum(1)
    return torch.stack([(output - boxes_of(target)).abs().sum(1).mean() for output, target in zip(outputs, targets)])


def by_all_boxes(outputs, targets):
    count = max(sum(len(boxes_of(target)) for target in targets), 1)
    return torch.stack([(output - boxes_of(target)).abs().sum() / count for output, target in zip(outputs, targets)]) if targets else outputs.sum(1)


def to_their_mean(outputs, targets):
    centre = torch.cat([boxes_of(target) for target in targets]).mean(0) if targets else 0
    return (outputs - centre).square().sum(1)


def run_of(module, collate, criterion, data=None, batch=4, **options):
    return PrivacyEngine().make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), data_loader=DataLoader(data or Pictures(), batch_size=batch, collate_fn=collate),
        noise_multiplier=1e-9, max_grad_norm=0.1, criterion=criterion, grad_sample_mode="ghost", **options,
    )  # fmt: skip


def steps(run, loss, count=12):
    module, optimizer, criterion, loader = run
    taken = 0
    for x, targets in itertools.islice(itertools.chain(loader, loader), count):
        optimizer.zero_grad()
        loss(module, criterion, x, targets).backward()
        optimizer.step()
        taken += 1
    return taken


def in_the_criterion(module, criterion, x, targets):
    return criterion(module(x), targets)


def in_the_model(module, criterion, x, targets):
    return criterion(module(x, targets), x[:, 0, 0, 0])


@pytest.mark.parametrize("collate", [named, bare])
@pytest.mark.parametrize("mixing", [by_all_boxes, to_their_mean])
def test_a_criterion_that_mixes_entries_is_refused(mixing, collate):
    with pytest.raises(RuntimeError, match=MIXED):
        steps(run_of(Model(), collate, mixing), in_the_criterion)


@pytest.mark.parametrize("mixing", [by_all_boxes, to_their_mean])
def test_a_model_that_mixes_entries_is_refused(mixing):
    with pytest.raises(RuntimeError, match=MIXED):
        steps(run_of(Model(mixing), named, lambda losses, _: losses), in_the_model)


@pytest.mark.parametrize("collate", [named, bare])
@pytest.mark.parametrize("loss", [in_the_criterion, in_the_model])
def test_entries_of_ones_own_are_taken_however_many_boxes_there_are(loss, collate):
    for seed in range(4):
        torch.manual_seed(seed)
        model, criterion = (Model(), own) if loss is in_the_criterion else (Model(own), lambda losses, _: losses)
        # (In a first batch of two, each with two boxes, they would be taken for columns.)
        assert steps(run_of(model, collate, criterion, Pictures(most=9), batch=8), loss, 6) == 6


def test_other_batches_tell_lists_of_examples_from_columns():
    boxes, known = [torch.rand(2, 4) for _ in range(3)], KnownLists()
    assert not known.of_units(boxes[:2], 2), "two tensors of two rows may be columns"
    assert known.of_units(boxes, 3) and known.of_units(boxes[:2], 2)
    columns = [torch.rand(3, 5), torch.zeros(3, dtype=torch.int64), torch.rand(3)]
    assert not known.of_units(columns, 3)


def test_a_list_in_another_order_is_refused():
    with pytest.raises(ValueError, match=OTHERS):
        steps(run_of(Model(), bare, own), lambda module, criterion, x, targets: criterion(module(x), targets[1:] + targets[:1]))


def test_what_a_loop_stacks_of_a_list_is_each_examples_own():
    def loss(module, criterion, x, targets):
        return criterion(module(x), torch.stack([target["boxes"].mean(0) for target in targets]) if targets else x.new_zeros(0, 4))

    assert steps(run_of(Model(), named, nn.MSELoss(), batch=8), loss, 6) == 6


@pytest.mark.parametrize("loss", [in_the_criterion, in_the_model])
def test_the_sum_is_that_of_each_example_alone(loss):
    data = Pictures()
    model = Model(own)
    alone = copy.deepcopy(model)
    module, optimizer, criterion, loader = run_of(
        model, lambda examples: (*named([each for _, each in examples]), torch.tensor([i for i, _ in examples])),
        own if loss is in_the_criterion else lambda losses, _: losses, Numbered(data), batch=12,
    )  # fmt: skip
    x, targets, numbers = next(iter(loader))
    optimizer.zero_grad()
    loss(module, criterion, x, targets).backward()
    optimizer.step()
    expected = [torch.zeros_like(p) for p in alone.parameters()]
    for i in numbers.tolist():
        picture, boxes = data[i]
        gradients = torch.autograd.grad(own(alone(picture[None]), [boxes]).sum(), list(alone.parameters()))
        norm = torch.cat([each.flatten() for each in gradients]).norm()
        for total, each in zip(expected, gradients):
            total += each * min(1, 0.1 / norm) / 12
    for ours, theirs in zip(model.parameters(), expected):
        torch.testing.assert_close(ours.grad, theirs, rtol=1e-4, atol=1e-6)


class Numbered:
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return i, self.data[i]


def test_a_detection_models_own_loss():
    config = transformers.YolosConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=[16, 16], patch_size=8, num_detection_tokens=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.YolosForObjectDetection(config)
    labels = [{"class_labels": torch.randint(0, 3, (1 + i % 4,)), "boxes": torch.rand(1 + i % 4, 4) * 0.3 + 0.3} for i in range(N)]
    pictures = torch.randn(N, 3, 16, 16)
    alone = copy.deepcopy(model)

    class Data:
        def __len__(self):
            return N

        def __getitem__(self, i):
            return {"pixel_values": pictures[i], "labels": labels[i], "i": i}

    def collate(examples):
        return {"pixel_values": torch.stack([each["pixel_values"] for each in examples]), "labels": [each["labels"] for each in examples],
                "i": torch.tensor([each["i"] for each in examples])}  # fmt: skip

    module, optimizer, _, loader = run_of(model, collate, None, Data(), batch=12)
    batch = next(iter(loader))
    optimizer.zero_grad()
    module(pixel_values=batch["pixel_values"], labels=batch["labels"]).loss.backward()
    optimizer.step()
    expected = 0
    for i in batch["i"].tolist():
        loss = alone(pixel_values=pictures[i][None], labels=[labels[i]]).loss
        gradients = torch.autograd.grad(loss, [p for p in alone.parameters() if p.requires_grad], allow_unused=True)
        flat = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(gradients, alone.parameters())])
        expected = expected + flat * min(1, 0.1 / flat.norm()) / 12
    ours = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5)


def test_lists_of_units_and_of_columns():
    boxes = [torch.rand(k, 4) for k in (1, 3, 2)]
    assert lists_units(boxes, 3) and not lists_units(boxes, 2)
    assert lists_units([{"boxes": each} for each in boxes], 3)
    assert lists_units(["a", "b"], 2) and lists_units([1, 2.0], 2) and not lists_units([1, "b"], 2)
    assert lists_units([torch.rand(3, 4) for _ in range(3)], 3) is None
    assert not lists_units([torch.rand(2, 4), torch.zeros(2, dtype=torch.int64)], 2)
    assert lists_units([{"boxes": each} for each in boxes[:2]] + [{"boxes": boxes[2], "crowd": torch.tensor(1)}], 3), "a key that others lack"
    assert lists_units([boxes[0], None, boxes[1]], 3), "an example without a target"
    assert lists_units([torch.rand(k, 4) for k in (1, 4, 3, 2)], 4), "four coordinates are no four examples"
    assert not lists_units([], 0)


def some_without(examples):
    return torch.stack([x for x, _ in examples]), [None if len(boxes) == 3 else {"boxes": boxes} | ({"odd": 1} if len(boxes) % 2 else {}) for _, boxes in examples]


def own_if_any(outputs, targets):
    none = lambda output: output.square().sum()
    return torch.stack([none(o) if t is None else (o - t["boxes"]).abs().sum(1).mean() for o, t in zip(outputs, targets)]) if targets else outputs.sum(1)


def to_the_mean_of_those(outputs, targets):
    return to_their_mean(outputs, [each for each in targets if each is not None])


def test_entries_may_be_missing_or_have_keys_and_numbers_of_their_own():
    for seed in range(3):
        torch.manual_seed(seed)
        assert steps(run_of(Model(), some_without, own_if_any, batch=8), in_the_criterion, 6) == 6
        with pytest.raises(RuntimeError, match=MIXED):
            steps(run_of(Model(), some_without, to_the_mean_of_those, batch=8), in_the_criterion)


class Sized(Model):
    def forward(self, x, size=(), names=(), levels=()):
        outputs = super().forward(x)
        return outputs * (sum(size, start=1.0) + len(names) + sum(float(each.sum()) for each in levels))


def test_constants_of_as_many_entries_as_examples_are_no_lists_of_theirs(monkeypatch):
    monkeypatch.setattr("ghostshard.ghost.checks.gradients.AttributionCheck.again", 1)
    levels = [torch.full((8,), 1.0 + each) for each in range(4)]

    def loss(module, criterion, x, targets):
        given = {"size": (5.0, 7.0), "names": ["a", "b", "c"], "levels": levels} if len(x) % 2 else {"size": [1.0, 2.0, 3.0, 4.0]}
        return criterion(module(x, **given), targets)

    assert steps(run_of(Sized(), bare, own), loss, 16) > 10


def test_pairs_in_batches_of_two_are_looked_at_like_others():
    """(outputs, outputs) is no list of two examples."""

    def mixing(outputs, targets):
        return (outputs[0] - outputs[1].detach().mean(0)).square().sum(1)

    from opacus.utils.batch_memory_manager import BatchMemoryManager

    module, optimizer, criterion, loader = run_of(Model(), bare, mixing, batch=8)
    with pytest.raises((RuntimeError, ValueError), match=MIXED):
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as pieces:
            for x, targets in pieces:
                optimizer.zero_grad()
                criterion((module(x), module(x)), targets).backward()
                optimizer.step()


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 4)

    def forward(self, given):
        return self.inner(given["x"])


COLUMNS = {
    "two dicts": (lambda rows: ([{"x": torch.stack([x for x, _ in rows])}] * 2, None), lambda m, c, b: c(m(b[0][0]), m(b[0][1]))),
    "as many numbers as examples": (lambda rows: ([x for x, _ in rows], None), lambda m, c, b: c(m({"x": torch.stack(b[0])}), m({"x": torch.stack(b[0])}))),
}  # fmt: skip


@pytest.mark.parametrize("collate, loss", COLUMNS.values(), ids=COLUMNS)
def test_as_many_entries_as_examples_tell_nothing(collate, loss):
    """Of a first draw of two or three: a list of two columns, and a list of vectors of three numbers each."""
    from private_run import prescribe

    for draws in ((2, 3, 2), (3, 2, 3)):
        data = [(torch.randn(3), i) for i in range(N)]
        module, optimizer, criterion, loader = run_of(Towers(), collate, lambda a, b: (a - b.flip(1)).square().sum(1), data)
        prescribe(loader, draws)
        for batch in loader:
            optimizer.zero_grad()
            loss(module, criterion, batch).backward()
            optimizer.step()


class Stacks(nn.Module):
    """Takes a list of pictures, as models that find boxes do."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, pictures):
        return self.head(self.conv(torch.stack(list(pictures))).mean((2, 3)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", [tuple, list, torch.stack], ids=["tuple", "list", "stacked"])
def test_a_list_of_examples_in_front_is_told_what_to_do(how):
    pictures = TensorDataset(torch.randn(40, 3, 8, 8), torch.randint(0, 3, (40,)))
    model = Stacks()
    if how is torch.stack:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    run = Run(model=model, data=pictures, collate=lambda items: (tuple(x for x, _ in items), torch.stack([y for _, y in items])))
    x, y = next(iter(run.loader))
    if how is torch.stack:
        run.step(torch.stack(x), y)
        assert run.charged == 1
        return
    with pytest.raises(ValueError, match=r"a list with one entry for each of the 8 examples.*torch\.stack\(images\)"):
        run.step(how(x), y)
