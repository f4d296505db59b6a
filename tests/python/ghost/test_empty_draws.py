"""A draw of no example is a step, also where the model or the criterion takes no batch without examples."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private_run import prescribe
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ghostshard import PrivacyEngine

transformers = pytest.importorskip("transformers")
CLIP, BATCH = 0.05, 4
DRAWS = [(3, 0, 2), (0, 0, 3)]


class Boxes(Dataset):
    """Inputs, and a few boxes."""

    def __init__(self, *extents, key=None):
        g = torch.Generator().manual_seed(2)
        self.key = key
        self.items = [(torch.randn(*extents, generator=g), torch.rand(1 + i % 3, 4, generator=g) * 0.4 + 0.1) for i in range(16)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def columns(examples):
    return torch.stack([x for x, _ in examples]), [{"boxes": boxes} for _, boxes in examples]


def bare(examples):
    return torch.stack([x for x, _ in examples]), [boxes for _, boxes in examples]


def boxes_of(target):
    return target["boxes"] if isinstance(target, dict) else target


def stacked(outputs, targets):
    return torch.stack([(output - boxes_of(target)).square().mean() for output, target in zip(outputs, targets)])


def joined(outputs, targets):
    counts = [len(boxes_of(target)) for target in targets]
    each = (outputs.repeat_interleave(torch.tensor(counts), 0) - torch.cat([boxes_of(target) for target in targets])).square().mean(1)
    return torch.stack([part.mean() for part in each.split(counts)])


class Losses(nn.Module):
    """A model that forms its losses itself."""

    def __init__(self, form=None):
        super().__init__()
        self.form, self.inner = form, nn.Linear(6, 4)

    def forward(self, x, targets=None):
        outputs = self.inner(x)
        return outputs if targets is None else self.form(outputs, targets)


def private(model, data, collate, draws, criterion=None):
    engine = PrivacyEngine(accountant="rdp")
    run = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=BATCH, collate_fn=collate),
        noise_multiplier=0.0, max_grad_norm=CLIP, grad_sample_mode="ghost", criterion=criterion,
    )  # fmt: skip
    prescribe(run[-1], draws)
    return run


def assert_steps_are_right(model, run, loss, data, alone, draws, *, wide=True):
    """loss(module, criterion, batch); alone(model, example): its loss. Of a draw of nobody nothing is released."""
    module, optimizer, criterion, loader = run
    taken = []
    for batch in loader:
        drawn = draws[len(taken)]
        twin, expected = copy.deepcopy(model), {name: torch.zeros_like(p).double() for name, p in model.named_parameters() if p.requires_grad}
        for example in [data[i] for i in range(drawn)]:
            of_one = lambda m, _, example=example: alone(m, example)
            for name, value in oracle.clipped_sum(twin, of_one, [(torch.zeros(1),)], CLIP, wide=wide).items():
                expected[name] += value
        optimizer.zero_grad()
        loss(module, criterion, batch).backward()
        optimizer.step()
        found = {name: p.grad * BATCH for name, p in model.named_parameters() if p.requires_grad}
        if drawn:
            assert oracle.worst_difference(found, expected) < 2 * SUM_TOLERANCE
        else:
            assert all(bool((value == 0).all()) for value in found.values())
        taken.append(drawn)
    assert tuple(taken) == draws


def wide(x):
    return x.double() if x.is_floating_point() else x


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("collate", [columns, bare])
@pytest.mark.parametrize("form", [stacked, joined])
def test_criterions_that_take_no_empty_list(form, collate, draws):
    torch.manual_seed(3)
    model, data = nn.Linear(6, 4), Boxes(6)
    run = private(model, data, collate, draws, form)
    loss = lambda module, criterion, batch: criterion(module(batch[0]), batch[1])
    assert_steps_are_right(model, run, loss, data, lambda m, each: form(m(wide(each[0])[None]), [wide(each[1])]), draws)


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("collate", [columns, bare])
@pytest.mark.parametrize("form", [stacked, joined])
def test_models_that_take_no_empty_list(form, collate, draws):
    torch.manual_seed(3)
    model, data = Losses(form), Boxes(6)
    run = private(model, data, collate, draws, lambda losses: losses)
    moved = lambda targets: [{key: value.float() for key, value in each.items()} if isinstance(each, dict) else each.float() for each in targets]
    loss = lambda module, criterion, batch: criterion(module(batch[0], moved(batch[1])))
    assert_steps_are_right(model, run, loss, data, lambda m, each: form(m(wide(each[0])[None]), [wide(each[1])]), draws)


def yolos():
    return transformers.YolosForObjectDetection(
        transformers.YolosConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=[16, 16], patch_size=8, num_detection_tokens=4,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
        )  # fmt: skip
    )


@pytest.mark.parametrize("draws", DRAWS)
def test_a_detection_models_own_loss(draws):
    torch.manual_seed(3)
    model, data = yolos(), Boxes(3, 16, 16)
    labels = lambda boxes: {"class_labels": torch.arange(len(boxes)), "boxes": boxes}
    collate = lambda examples: {"pixel_values": torch.stack([x for x, _ in examples]), "labels": [labels(boxes) for _, boxes in examples]}
    run = private(model, data, collate, draws)
    given = lambda batch: {"pixel_values": batch["pixel_values"], "labels": [dict(each) for each in batch["labels"]]}
    alone = lambda m, each: m(pixel_values=each[0][None], labels=[labels(each[1])]).loss  # its class weights are float32
    assert_steps_are_right(model, run, lambda module, _, batch: module(**given(batch)).loss, data, alone, draws, wide=False)


def test_an_error_of_a_criterion_stays_an_error_where_examples_are():
    def odd(outputs, targets):
        raise KeyError("of the criterion")

    module, optimizer, criterion, loader = private(nn.Linear(6, 4), Boxes(6), bare, (3,), odd)
    for x, targets in loader:
        with pytest.raises(KeyError, match="of the criterion"):
            criterion(module(x), targets)


def test_outputs_without_elements_are_not_a_draw_without_examples():
    """A model that finds no box has a loss for each example, and a criterion's error is one there, too."""

    def none_found(outputs, targets):
        return outputs[:, :0].sum(1)

    def odd(outputs, targets):
        raise KeyError("of the criterion")

    module, optimizer, criterion, loader = private(nn.Linear(6, 4), Boxes(6), bare, (3, 2), none_found)
    for x, targets in loader:
        optimizer.zero_grad()
        criterion(module(x)[:, :0], targets).backward()
        optimizer.step()
        assert all(not bool(p.grad.any()) for p in module.parameters())  # and no noise
    module, _, criterion, loader = private(nn.Linear(6, 4), Boxes(6), bare, (3,), odd)
    with pytest.raises(KeyError, match="of the criterion"):
        criterion(module(next(iter(loader))[0])[:, :0], None)


class Pictures(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return torch.randn(6, generator=torch.Generator().manual_seed(i)), i % 3


class Spare(nn.Module):
    """It has a parameter without an element."""

    def __init__(self):
        super().__init__()
        self.inner, self.places = nn.Linear(6, 3), nn.Parameter(torch.zeros(0, 4))

    def forward(self, x):
        return self.inner(x) + self.places.sum()


def test_a_parameter_without_elements_has_nothing_to_train():
    torch.manual_seed(3)
    model, data = Spare(), Pictures()
    run = private(model, data, None, (3, 2), nn.CrossEntropyLoss())
    module, optimizer, criterion, loader = run
    for drawn, (x, y) in zip((3, 2), loader):
        given = torch.stack([data[i][0] for i in range(drawn)]), torch.tensor([data[i][1] for i in range(drawn)])
        expected = oracle.clipped_sum(model, lambda m, each: nn.functional.cross_entropy(m(each[0]), each[1]), [given], CLIP)
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()
        found = {name: p.grad * BATCH for name, p in model.inner.named_parameters(prefix="inner")}
        expected.pop("places")
        assert oracle.worst_difference(found, expected) < SUM_TOLERANCE


def each_alone(module, criterion, batch, join):
    return criterion(join([(output - boxes[0]).square().mean() for output, boxes in zip(module(batch[0]), batch[1])]))


def of_two_forwards(module, criterion, batch, join):
    outputs = zip(module(batch[0]), module(2 * batch[0]), batch[1])
    return criterion(join([(one - boxes[0]).square().mean() + (two - boxes[0]).square().mean() for one, two, boxes in outputs]))


def or_none(losses):
    return torch.stack(losses) if losses else torch.zeros(0)


def alone_of(form):
    of_one = lambda m, each: (m(wide(each[0])[None])[0] - wide(each[1])[0]).square().mean()
    return of_one if form is each_alone else lambda m, each: of_one(m, each) + of_one(m, (2 * each[0], each[1]))


@pytest.mark.filterwarnings("error:this draw has no example")
@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("form", [each_alone, of_two_forwards])
def test_losses_that_a_loop_stacks(form, draws):
    """Of no example it has none, whatever the forwards were."""
    torch.manual_seed(3)
    model, data = nn.Linear(6, 4), Boxes(6)
    run = private(model, data, bare, draws, lambda losses: losses)
    loss = lambda module, criterion, batch: form(module, criterion, batch, or_none)
    assert_steps_are_right(model, run, loss, data, alone_of(form), draws)


def test_a_sum_of_none_is_a_number():
    model, data = nn.Linear(6, 4), Boxes(6)
    module, optimizer, criterion, loader = private(model, data, bare, (0, 2), lambda losses: losses)
    for x, targets in loader:
        optimizer.zero_grad()
        losses = [(output - boxes[0]).square().mean() for output, boxes in zip(module(x), targets)]
        criterion(torch.stack(losses) if losses else sum(losses)).backward()
        optimizer.step()


def test_a_stack_of_an_empty_list_is_named_before_torch_ends_it():
    torch.manual_seed(3)
    module, optimizer, criterion, loader = private(nn.Linear(6, 4), Boxes(6), bare, (3, 0), lambda losses: losses)
    with pytest.warns(UserWarning, match=r"torch.stack \(test_empty_draws.py:\d+\) takes none. Write `torch.stack\(losses\) if losses else torch.zeros\(0\)`"):
        with pytest.raises(RuntimeError, match="non-empty TensorList"):
            for batch in loader:
                optimizer.zero_grad()
                each_alone(module, criterion, batch, lambda losses: torch.stack(losses)).backward()
                optimizer.step()


def test_a_draw_with_examples_has_no_losses_of_nobody():
    module, _, criterion, loader = private(nn.Linear(6, 4), Boxes(6), bare, (3,), lambda losses: losses)
    x, _ = next(iter(loader))
    module(x)
    with pytest.raises(ValueError, match="one loss for each of the 3 units"):
        criterion(torch.zeros(0)).backward()
