"""Models that write to whole numbers among their arguments: each example's gradient is of what the batch held, and the loop finds what was written."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private import Private
from private_run import prescribe
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine

transformers = pytest.importorskip("transformers")
CLIP = 0.5
GENERATOR = torch.Generator().manual_seed(4)
IDS = torch.randint(3, 29, (16, 6), generator=GENERATOR)
FIRST, LAST = (torch.randint(-2, 9, (16,), generator=GENERATOR) for _ in range(2))  # some lie outside of the text, which the head clamps
CLASSES = torch.randint(0, 2, (16,), generator=GENERATOR)


def rembert():
    config = transformers.RemBertConfig(
        vocab_size=29, hidden_size=16, input_embedding_size=8, output_embedding_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2,
    )  # fmt: skip
    return transformers.RemBertForQuestionAnswering(config).train()


class Writing(nn.Module):
    """Puts a first token into the ids, as BLIP does, and moves the classes by one."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(29, 8), nn.Linear(8, 3)

    def forward(self, ids, classes):
        ids[:, 0] = 1
        classes += 1
        return self.head(self.table(ids).mean(1))


def run_of(model, *columns):
    """The private model, its optimizer, criterion and loader."""
    made = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), data_loader=DataLoader(TensorDataset(*columns), batch_size=4), noise_multiplier=1e-9,
        max_grad_norm=CLIP, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost",
    )  # fmt: skip
    prescribe(made[3], (4, 3))
    return made


def released(model):
    return {name: 4 * p.grad for name, p in model.named_parameters()}


def test_a_head_that_clamps_positions_in_place_trains():
    torch.manual_seed(0)
    model = rembert()
    loss = lambda model, batch: model(input_ids=batch[0], start_positions=batch[1].clone(), end_positions=batch[2].clone()).loss
    module, optimizer, _, loader = run_of(model, IDS, FIRST, LAST)
    for taken, (ids, first, last) in zip((4, 3), loader):
        optimizer.zero_grad()
        module(input_ids=ids, start_positions=first, end_positions=last).loss.backward()
        optimizer.step()
        expected = oracle.clipped_sum(copy.deepcopy(model), loss, [(IDS[:taken], FIRST[:taken], LAST[:taken])], CLIP)
        assert oracle.worst_difference(released(model), expected) < 2 * SUM_TOLERANCE
        assert torch.equal(torch.tensor(first.tolist()), FIRST[:taken].clamp(0, 6)), "the loop finds what the model wrote"


def test_ids_that_a_model_writes_to_are_those_of_each_example():
    torch.manual_seed(0)
    model = Writing()
    module, optimizer, criterion, loader = run_of(model, IDS, CLASSES)
    for taken, (ids, classes) in zip((4, 3), loader):
        beside = classes.clone()  # what the model writes to stands in no loss afterwards
        optimizer.zero_grad()
        criterion(module(ids, classes), beside).backward()
        optimizer.step()
        loss = lambda model, batch: nn.functional.cross_entropy(model(batch[0].clone(), batch[1].clone()), batch[1])
        expected = oracle.clipped_sum(copy.deepcopy(model), loss, [(IDS[:taken], CLASSES[:taken])], CLIP)
        assert oracle.worst_difference(released(model), expected) < 2 * SUM_TOLERANCE


def test_targets_that_a_model_wrote_to_are_refused():
    module, _, criterion, loader = run_of(Writing(), IDS, CLASSES)
    ids, classes = next(iter(loader))
    with pytest.raises(ValueError, match="written to in a way that is not followed"):
        criterion(module(ids, classes), classes).backward()


class Kept(transformers.BertForSequenceClassification):
    """Its own loss is of classes that it moves in place."""

    def forward(self, input_ids=None, labels=None, **kwargs):
        labels += 1
        return super().forward(input_ids=input_ids, labels=labels, **kwargs)


def test_a_loss_of_labels_that_a_model_writes_to_is_that_of_the_example_alone():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=29, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=16, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=4,
    )  # fmt: skip
    model = Kept(config).train()
    module, optimizer, _, loader = run_of(model, IDS, CLASSES)
    loss = lambda model, batch: model(input_ids=batch[0], labels=batch[1].clone()).loss
    for taken, (ids, classes) in zip((4, 3), loader):
        optimizer.zero_grad()
        module(input_ids=ids, labels=classes).loss.backward()
        optimizer.step()
        expected = oracle.clipped_sum(copy.deepcopy(model), loss, [(IDS[:taken], CLASSES[:taken])], CLIP)
        assert oracle.worst_difference(released(model), expected) < 2 * SUM_TOLERANCE


class Scaled(nn.Module):
    """A layer without a rule."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(6))

    def forward(self, features, how):
        return torch.tanh(torch.stack(features).sum(0) * self.w * how["scale"])


class Dense(nn.Module):
    """Its layers take one list and one dict, which it goes on to write to. growth: of the scale, from layer to layer."""

    def __init__(self, growth):
        super().__init__()
        self.layers, self.head, self.growth = nn.ModuleList([Scaled() for _ in range(3)]), nn.Linear(6, 3), growth

    def forward(self, x):
        features, how = [x], {"scale": 1.0}
        for layer in self.layers:
            features.append(layer(features, how))
            how["scale"] *= self.growth
        return self.head(features[-1] + features[1])


class OneDict(Dense):
    """The list is the same length for each."""

    def forward(self, x):
        how = {"scale": 1.0}
        for layer in self.layers:
            x = layer([x], how)
            how["scale"] *= self.growth
        return self.head(x)


@pytest.mark.parametrize("kind", [Dense, OneDict])
def test_lists_and_dicts_that_the_model_goes_on_to_write_to(kind):
    torch.manual_seed(2)
    model = kind(growth=1.0)
    batch = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    loss = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    private = Private(model, 0.1)
    for model.growth in (1.0, 2.0):  # at first use layers are compared, and later not
        expected = oracle.clipped_sum(copy.deepcopy(model), loss, [batch], 0.1)
        assert oracle.worst_difference(private.step(loss, [batch]), expected) < SUM_TOLERANCE
