"""A rule is of a class, not of a name, and of the forward that the class has: nothing is computed by a rule that is another's."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from models import class_loss
from private import Private
from torch import nn
from torch.nn import functional


class Conv1D(nn.Module):
    """Has the name of Transformers' y = x W + b, and computes y = 3 x Wᵀ."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))

    def forward(self, x):
        return 3 * x @ self.weight.T


class LlamaRMSNorm(nn.Module):
    """Has the name of Transformers', and no norm."""

    def __init__(self, size):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(size)), 1e-6

    def forward(self, x):
        return x.abs() * self.weight


NAMESAKES = {
    "Conv1D": lambda: nn.Sequential(nn.Linear(6, 6), Conv1D(6, 6), nn.Linear(6, 3)),
    "LlamaRMSNorm": lambda: nn.Sequential(nn.Linear(6, 6), LlamaRMSNorm(6), nn.Linear(6, 3)),
}


@pytest.mark.parametrize("build", NAMESAKES.values(), ids=NAMESAKES)
def test_a_namesake_is_computed_as_it_is_written(build):
    torch.manual_seed(3)
    model, batch = build(), (torch.randn(5, 6), torch.randint(0, 3, (5,)))
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, [batch], 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, [batch]), expected) < SUM_TOLERANCE


class Scaled(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids) * 8**0.5


class WithoutPadding(Scaled):
    """Its padding row has a gradient like any other."""

    def forward(self, ids):
        return functional.embedding(ids, self.weight) * 2.0


class Normalised(Scaled):
    def forward(self, ids):
        return functional.normalize(super().forward(ids), dim=-1)


class Tied(nn.Module):
    def __init__(self, kind, tied=True, **options):
        super().__init__()
        self.tokens, self.head = kind(11, 5, **options), nn.Linear(5, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.tokens(ids))).transpose(1, 2)


SCALED = {
    "tied": lambda: Tied(Scaled), "tied_with_padding": lambda: Tied(Scaled, padding_idx=10), "without_padding": lambda: Tied(WithoutPadding, tied=False, padding_idx=3),
    "normalised": lambda: Tied(Normalised, tied=False),
}  # fmt: skip


@pytest.mark.parametrize("build", SCALED.values(), ids=SCALED)
def test_an_embedding_of_a_class_of_its_own(build):
    torch.manual_seed(3)
    model = build()
    batches = [(ids := torch.randint(0, 11, (units, 6)), ids) for units in (5, 2)]
    loss = lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1], reduction="none").mean(1)
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, batches, 0.3)
    assert oracle.worst_difference(Private(model, 0.3).step(loss, batches), expected) < SUM_TOLERANCE


def test_transformers_own_are_known():
    from ghostshard.ghost.rules import rule_for
    from ghostshard.ghost.rules.layers import conv1d_of_transformers, llama_rms_norm

    transformers = pytest.importorskip("transformers")
    assert rule_for(transformers.pytorch_utils.Conv1D(3, 3)) is conv1d_of_transformers
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    assert rule_for(modeling.LlamaRMSNorm(3)) is llama_rms_norm
    assert rule_for(Conv1D(3, 3)) is None


def with_forward_of_its_own():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    plain = model[0].forward
    model[0].forward = lambda x: 3 * plain(x)
    return model


def test_a_forward_on_the_instance_is_refused_if_it_trains():
    with pytest.raises(ValueError, match=r"0 \(Linear\) has a forward of its own"):
        Private(with_forward_of_its_own(), 1.0)
    torch.manual_seed(3)
    model, batch = with_forward_of_its_own(), (torch.randn(5, 6), torch.randint(0, 3, (5,)))
    model[0].requires_grad_(False)
    before = model(batch[0])
    private = Private(model, 0.5)
    torch.testing.assert_close(private.module(batch[0]), before)
    private.step(class_loss, [batch])
    private.module.engine.detach()
    torch.testing.assert_close(model(batch[0]), before)


def test_a_class_whose_forward_was_changed_is_refused(monkeypatch):
    plain = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 3 * plain(self, x))
    private = Private(nn.Sequential(nn.Linear(6, 3)), 1.0)
    with pytest.raises(RuntimeError, match="gives another output than the rule of its class"):
        private.module(torch.randn(5, 6))


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def of_another_class(monkeypatch, layer):
    layer.__class__ = Doubled


def of_a_class_that_changed(monkeypatch, layer):
    plain = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 3 * plain(self, x))


@pytest.mark.parametrize("change", [of_another_class, of_a_class_that_changed])
def test_a_layer_that_becomes_another_is_refused(monkeypatch, change):
    """After it was compared with its rule."""
    model, batch = nn.Sequential(nn.Linear(6, 3)), (torch.randn(5, 6), torch.randint(0, 3, (5,)))
    private = Private(model, 1.0)
    private.step(class_loss, [batch])
    change(monkeypatch, model[0])
    with pytest.raises(RuntimeError, match=r"0 became another .* after make_private\(\), .*what Linear did"):
        private.module(batch[0])


class Bounded(nn.Embedding):
    """A lookup times one number, at first."""

    def __init__(self):
        super().__init__(11, 6)
        self.scale, self.bounded, self.norm = 2.0, False, 0.0

    def forward(self, ids):
        found = super().forward(ids) * self.scale
        found = torch.tanh(found) if self.bounded else found
        return found / found.norm(dim=-1, keepdim=True) * self.norm if self.norm else found


class Blended(nn.Module):
    """A layer without a rule."""

    def __init__(self):
        super().__init__()
        self.weight, self.share = nn.Parameter(torch.randn(6)), 0.0

    def forward(self, x):
        return x * self.weight + self.share * x.mean(0)


def texts(layer):
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)), (torch.randint(0, 11, (5, 4)), torch.randint(0, 3, (5,)))


def vectors(*layers):
    return nn.Sequential(*layers), (torch.randn(5, 6), torch.randint(0, 3, (5,)))


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.RNN(6, 3, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0][:, -1]


@pytest.mark.parametrize("setting", [{"bounded": True}, {"norm": 0.5}])
def test_a_lookup_that_becomes_another_layer_is_refused(setting):
    model, batch = texts(Bounded())
    private = Private(model, 1.0)
    private.step(class_loss, [batch])
    vars(model[0]).update(setting)
    with pytest.raises(RuntimeError, match="gives another output than the rule of its class"):
        private.module(batch[0])


def test_a_layer_without_a_rule_that_mixes_once_a_number_changes_is_refused():
    model, batch = vectors(Blended(), nn.Linear(6, 3))
    private = Private(model, 1.0, attribution_check=False)
    private.step(class_loss, [batch])
    model[0].share = 0.5
    with pytest.raises(RuntimeError, match="gives an example alone another output than in its batch"):
        private.step(class_loss, [batch])


def annealed(model):
    model[0].scale = 3.0


def of_another_mode(model):
    model[0].inner.mode = "RNN_RELU"


def of_a_name_that_it_does_not_read(model):
    model[0].inner.nonlinearity = "relu"


def frozen_of_another_class(model):
    model[0].__class__ = Doubled


def frozen_below():
    model, batch = vectors(nn.Linear(6, 6), nn.Linear(6, 3))
    model[0].requires_grad_(False)
    return model, batch


LATER = [
    (lambda: texts(Bounded()), annealed), (frozen_below, frozen_of_another_class),
    *((lambda: (nn.Sequential(Last()), (torch.randn(5, 4, 6), torch.randint(0, 3, (5,)))), each) for each in (of_another_mode, of_a_name_that_it_does_not_read)),
]  # fmt: skip


@pytest.mark.parametrize("build,change", LATER)
def test_a_layer_that_is_set_otherwise_is_followed(build, change):
    torch.manual_seed(2)
    model, batch = build()
    private = Private(model, 0.5)
    private.step(class_loss, [batch])
    private.optimizer.zero_grad()
    change(model)
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, [batch], 0.5)
    assert oracle.worst_difference(private.step(class_loss, [batch]), expected) < SUM_TOLERANCE
    with torch.no_grad():
        assert torch.equal(model(batch[0]), copy.deepcopy(model)(batch[0]))
