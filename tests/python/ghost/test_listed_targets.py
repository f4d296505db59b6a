"""Lists with an entry for each example, as detection models take their targets: whoever mixes their entries is refused, whoever does not is taken."""

import copy
import itertools

import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine
from ghostshard.ghost.listed import lists_units

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
        assert steps(run_of(model, collate, criterion), loss) > 8


def test_boxes_by_twos_in_batches_of_two_are_not_taken_for_columns(monkeypatch):
    data = Pictures(most=1)
    monkeypatch.setattr(Pictures, "__getitem__", lambda self, i: (torch.randn(3, 6, 6), torch.rand(2, 4)))
    for seed in range(4):
        torch.manual_seed(seed)
        assert steps(run_of(Model(), bare, own, data, batch=2), in_the_criterion) > 8


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
    assert not lists_units([], 0)
