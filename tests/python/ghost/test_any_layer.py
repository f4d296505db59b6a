"""Layers without a rule of their own, in every shape of arguments and outputs that people write."""

import copy
from collections import namedtuple

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from models import class_loss
from private import Private
from torch import nn
from torch.nn.utils import prune

from ghostshard import per_example, register_rule
from ghostshard.ghost.rules.layer import _RULES

Pair = namedtuple("Pair", "first second")


class Layer(nn.Module):
    """tanh(x W), in a tree that `give` makes."""

    def __init__(self, give):
        super().__init__()
        self.weight, self.give = nn.Parameter(torch.randn(6, 6) * 0.5), give

    def forward(self, x, *args, **kwargs):
        return self.give(torch.tanh(x @ self.weight), x, *args, **kwargs)


class Model(nn.Module):
    """The layer between two others; `take` makes one tensor of what the layer gives, `call` calls it."""

    def __init__(self, give, take=lambda y: y, call=lambda layer, x: layer(x)):
        super().__init__()
        self.below, self.layer, self.out = nn.Linear(6, 6), Layer(give), nn.Linear(6, 3)
        self.take, self.call = take, call

    def forward(self, x):
        return self.out(self.take(self.call(self.layer, self.below(x))))


def model_output(y, x):
    outputs = pytest.importorskip("transformers.modeling_outputs")
    return outputs.BaseModelOutput(last_hidden_state=y, hidden_states=(x, y))


TABLE = torch.linspace(0.5, 1.5, 6)
CASES = {
    "tensor": (lambda: Model(lambda y, x: y)),
    "dict": (lambda: Model(lambda y, x: {"y": y, "n": 3, "none": None}, lambda found: found["y"] * found["n"])),
    "list": (lambda: Model(lambda y, x: [y, None], lambda found: found[0])),
    "tuple_of_both": (lambda: Model(lambda y, x: (y, x), lambda found: found[0] + found[1])),
    "named_tuple": (lambda: Model(lambda y, x: Pair(y, x * 2), lambda found: found.first * found.second)),
    "nested": (lambda: Model(lambda y, x: {"a": [y, (x, y * 2)]}, lambda found: found["a"][0] + found["a"][1][1])),
    "model_output": (lambda: Model(model_output, lambda found: found.last_hidden_state + found.hidden_states[0])),
    "one_of_two_is_used": (lambda: Model(lambda y, x: (y, y * 2), lambda found: found[1])),
    "with_integers": (lambda: Model(lambda y, x: (y, (y > 0).long()), lambda found: found[0] * (1 + found[1]))),
    "keyword_arguments": (
        lambda: Model(lambda y, x, *, scale, shift=None: y * scale + shift, call=lambda layer, x: layer(x, scale=2.0, shift=x))
    ),
    "x_by_keyword": (lambda: Model(lambda y, x, more: y + more, call=lambda layer, x: layer(x=x, more=x * 2))),
    "a_shared_table": (lambda: Model(lambda y, x, table: y * table[None], call=lambda layer, x: layer(x, TABLE))),
    "a_shared_row": (lambda: Model(lambda y, x, table: y * table, call=lambda layer, x: layer(x, TABLE[None]))),
    "a_list_of_tensors": (
        lambda: Model(lambda y, x, more: y + more[0] * more[1]["k"], call=lambda layer, x: layer(x, [x, {"k": 0.5}]))
    ),
    "plain_values": (
        lambda: Model(lambda y, x, on, dtype: y.to(dtype) if on else x, call=lambda layer, x: layer(x, True, x.dtype))
    ),
}  # fmt: skip


def batch(units: int = 5):
    return torch.randn(units, 6), torch.randint(0, 3, (units,))


@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_a_layer_of_any_shape_is_exact(build):
    """With everything below it: a gradient that stopped at the layer would be zero there."""
    torch.manual_seed(3)
    model, batches = build(), [batch(), batch(2)]
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches, 0.5)
    assert all(float(value.abs().max()) > 0 for value in expected.values())
    found = Private(model, 0.5).step(class_loss, batches)
    assert oracle.worst_difference(found, expected) < SUM_TOLERANCE


class Remembers(nn.Module):
    def forward(self, x):
        return x


REFUSED = {
    "an_object_of_ones_own": (
        lambda: Model(lambda y, x, cache: y, call=lambda layer, x: layer(x, Remembers())), "need tensors and plain values.*Remembers"
    ),
    "a_shared_tensor_with_a_gradient": (
        lambda: Model(lambda y, x, table: y * table, call=lambda layer, x: layer(x, x.mean(0, keepdim=True))), "must be that of the 5 units"
    ),
    "one_output_of_all_examples": (
        lambda: Model(lambda y, x: (y, y.square().sum()), lambda found: found[0] + found[1]), "an example alone another output"
    ),
    "a_table_of_the_units_extent": (
        lambda: Model(lambda y, x, table: y * table[:, None].sum(), call=lambda layer, x: layer(x, torch.arange(5.0))),
        "an example alone another output|mixes examples|must not depend",
    ),
    "dropout_by_hand": (
        lambda: Model(lambda y, x: y * (torch.arange(len(y))[:, None] % 2)), "gives an example alone another output"
    ),
}  # fmt: skip


@pytest.mark.parametrize("build, sentence", REFUSED.values(), ids=REFUSED)
def test_what_has_no_per_example_gradient_is_refused(build, sentence):
    torch.manual_seed(3)
    model = build()
    with pytest.raises((RuntimeError, ValueError), match=sentence):
        Private(model, 0.5).step(class_loss, [batch()])
    assert all(p.grad is None for p in model.parameters())


class NanoGpt(nn.Module):
    """Positions are looked up once, without a batch: [T]."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places, self.out = nn.Embedding(11, 6), nn.Embedding(8, 6), nn.Linear(6, 3)

    def forward(self, ids):
        return self.out(torch.tanh(self.tokens(ids) + self.places(torch.arange(ids.shape[1]))).mean(1))


def test_places_that_all_examples_share():
    """Also for a batch of as many examples as there are places, which then have one id for each."""
    torch.manual_seed(3)
    model = NanoGpt()
    batches = [(torch.randint(0, 11, (units, 5)), torch.randint(0, 3, (units,))) for units in (3, 5, 1)]
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches, 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, batches), expected) < SUM_TOLERANCE
    model = NanoGpt()
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches[1:2], 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, batches[1:2]), expected) < SUM_TOLERANCE
    model, few = NanoGpt(), [(torch.randint(0, 11, (3, 3)), torch.randint(0, 3, (3,)))]
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, few, 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, few), expected) < SUM_TOLERANCE


# Layers that reach their children in other ways ----------------------------------------------------------------------


class InAList(nn.Module):
    """As Opacus' recurrent layers keep their cells."""

    def __init__(self, reach):
        super().__init__()
        self.inner, self.gain = nn.Linear(6, 6), nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.reach = reach
        self.kept, self.named = [self.inner], {"inner": (self.inner,)}

    def forward(self, x):
        return self.reach(self)(x) * self.gain


REACHED = {
    "in_a_list": lambda layer: layer.kept[0],
    "in_a_dict": lambda layer: layer.named["inner"][0],
    "as_an_attribute": lambda layer: layer.inner,
}


@pytest.mark.parametrize("reach", REACHED.values(), ids=REACHED)
def test_children_that_stand_in_lists_and_dicts(reach):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 6), InAList(reach), nn.Linear(6, 3))
    batches = [batch()]
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches, 0.5)
    assert all(float(value.abs().max()) > 0 for value in expected.values())
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, batches), expected) < SUM_TOLERANCE


def test_children_that_cannot_be_followed_are_refused():
    layer = InAList(None)
    inner = layer.inner
    layer.reach = lambda _: inner
    with pytest.raises(RuntimeError, match="calls its children by another way"):
        Private(nn.Sequential(layer, nn.Linear(6, 3)), 0.5).step(class_loss, [batch()])
    assert "forward" not in vars(inner)
    layer = InAList(lambda layer: layer.inner)
    layer.kept = [layer.gain]
    with pytest.raises(ValueError, match="keeps parameters in a list"):
        Private(nn.Sequential(layer, nn.Linear(6, 3)), 0.5).step(class_loss, [batch()])


def doubled(layer: InAList) -> InAList:
    layer.inner.register_forward_hook(lambda _module, _args, output: 2 * output)
    return layer


COMPUTED = {
    "spectral_norm": lambda: nn.utils.spectral_norm(nn.Linear(6, 6)),
    "weight_norm": lambda: nn.utils.weight_norm(nn.Linear(6, 6)),
    "prune": lambda: prune.random_unstructured(nn.Linear(6, 6), "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", COMPUTED.values(), ids=COMPUTED)
def test_weights_that_a_hook_computes_are_refused(build):
    with pytest.raises(ValueError, match="torch.nn.utils.parametrizations"):
        Private(nn.Sequential(build(), nn.Linear(6, 3)), 0.5)


def test_a_hook_inside_of_a_layer_is_not_left_out_in_silence():
    with pytest.raises(RuntimeError, match="gives another output than its own forward"):
        model = nn.Sequential(doubled(InAList(lambda layer: layer.inner)), nn.Linear(6, 3))
        Private(model, 0.5).step(class_loss, [batch()])


class Borrows(nn.Module):
    """A layer of its own, with what it takes from another one besides."""

    def __init__(self, other, borrowed):
        super().__init__()
        self.weight, self.others, self.borrowed = nn.Parameter(torch.randn(6, 6) * 0.5), [other], borrowed

    def forward(self, x):
        return torch.tanh(x @ (self.weight + self.borrowed(self.others[0])))


class OfAnother(nn.Module):
    """A parametrization that takes another layer's weight: tied, but torch does not know it."""

    def __init__(self, other):
        super().__init__()
        self.others = [other]

    def forward(self, weight):
        return weight + self.others[0].weight


def of_another(other):
    layer = nn.Linear(6, 6)
    nn.utils.parametrize.register_parametrization(layer, "weight", OfAnother(other))
    return layer


BORROWED = {
    "weight": lambda other: Borrows(other, lambda o: o.weight), "parametrization": of_another,
    "once in a while": lambda other: Borrows(other, lambda o: o.weight * float(torch.rand(()) > -1)),
}  # fmt: skip


@pytest.mark.parametrize("name", BORROWED)
def test_what_is_another_layers_is_not_left_out_of_the_gradient(name):
    """torch.func gives gradients of the layer's own parameters alone."""
    torch.manual_seed(2)
    below = nn.Linear(6, 6)
    model = nn.Sequential(below, BORROWED[name](below), nn.Linear(6, 3))
    with pytest.raises(RuntimeError, match="uses a parameter or an output of another layer that is neither its own nor an argument"):
        Private(model, 1.0).backward(class_loss, (torch.randn(4, 6), torch.randint(0, 3, (4,))))


def test_what_is_frozen_may_be_borrowed():
    torch.manual_seed(2)
    batch = (torch.randn(4, 6), torch.randint(0, 3, (4,)))
    below = nn.Linear(6, 6).requires_grad_(False)
    model = nn.Sequential(below, Borrows(below, lambda other: other.weight), nn.Linear(6, 3))
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, [batch], 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, [batch]), expected) < SUM_TOLERANCE


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(6))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * self.gain


def test_a_layer_is_called_once_for_its_buffers():
    model = nn.Sequential(Counts(), nn.Linear(6, 3))
    private = Private(model, 0.5, attribution_check=False)
    for calls in (1, 2):
        private.module(torch.randn(5, 6))
        assert float(model[0].calls) == calls


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.out = kind(6, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.layer(x)[0][:, -1])


@pytest.mark.parametrize("name", ["DPLSTM", "DPGRU", "DPRNN"])
def test_recurrent_layers_of_opacus(name):
    import opacus.layers

    torch.manual_seed(3)
    model, batches = Recurrent(getattr(opacus.layers, name)), [(torch.randn(5, 4, 6), torch.randint(0, 3, (5,)))]
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches, 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, batches), expected) < SUM_TOLERANCE


@pytest.mark.parametrize("use", ["compared", "later"])
def test_under_activation_checkpointing(use):
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(3)
    model = Model(lambda y, x: y, call=lambda layer, x: checkpoint(layer, x, use_reentrant=False))
    batch = (torch.randn(5, 6), torch.randint(0, 3, (5,)))
    batches = [batch] * (1 if use == "compared" else 3)
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, batches, 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(class_loss, batches), expected) < SUM_TOLERANCE


@pytest.mark.parametrize("options", [{"mode": "sum", "sparse": True}, {"mode": "max"}, {"scale_grad_by_freq": True}], ids=str)
def test_a_bag_of_words(options):
    """Counts by which a gradient is divided are the example's own; sparse gradients are added up like others."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.EmbeddingBag(11, 6, **options), nn.Linear(6, 3))
    batch = torch.randint(0, 11, (4, 5)), torch.randint(0, 3, (4,))
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, [batch], 0.3)
    assert oracle.worst_difference(Private(model, 0.3).step(class_loss, [batch]), expected) < SUM_TOLERANCE


def test_bags_that_lie_end_to_end_are_refused_with_a_way_out_that_is_right():
    """Padding is left out of each example's mean, as offsets would leave it out."""

    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag, self.head = nn.EmbeddingBag(11, 6, padding_idx=0), nn.Linear(6, 3)

        def forward(self, ids, offsets=None):
            return self.head(self.bag(ids, offsets))

    torch.manual_seed(3)
    model, ids, labels = Bags(), torch.tensor([[1, 2, 3], [4, 5, 0], [6, 0, 0], [7, 8, 9]]), torch.randint(0, 3, (4,))
    private, expected = Private(model, 0.3), oracle.clipped_sum(copy.deepcopy(model), class_loss, [(ids, labels)], 0.3)
    with pytest.raises(ValueError, match=r"bag \(EmbeddingBag\): ids that lie end to end, with offsets, .* padding_idx"):
        private.step(lambda module, given: nn.functional.cross_entropy(module(ids[ids > 0], torch.tensor([0, 3, 5, 6])), given[1], reduction="none"), [(ids, labels)])
    assert oracle.worst_difference(private.step(class_loss, [(ids, labels)]), expected) < SUM_TOLERANCE


@pytest.mark.parametrize("whole", [False, True])
def test_attention_of_opacus_with_a_bias_of_keys_is_computed_as_one_layer(whole, monkeypatch):
    """Its SequenceBias gets time first, whatever batch_first says."""
    from opacus.layers import DPMultiheadAttention

    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = DPMultiheadAttention(6, 2, batch_first=True, add_bias_kv=True), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.attention(x, x, x)[0].mean(1))

    monkeypatch.setattr("ghostshard.ghost.rules.layer._RULES", dict(_RULES))
    if whole:
        register_rule(DPMultiheadAttention)(per_example)
    torch.manual_seed(3)
    model, given = Attends(), (torch.randn(4, 5, 6), torch.randint(0, 3, (4,)))
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, [given], 0.3)
    if whole:
        assert oracle.worst_difference(Private(model, 0.3).step(class_loss, [given]), expected) < SUM_TOLERANCE
        return
    with pytest.raises(ValueError, match=r"register_rule\(DPMultiheadAttention\)\(ghostshard.per_example\)"):
        Private(model, 0.3).step(class_loss, [given])


class BesideNone(nn.Module):
    """As the last projection of nn.AdaptiveLogSoftmaxWithLoss in a narrow model."""

    def __init__(self):
        super().__init__()
        self.layer, self.none, self.bias = nn.Linear(6, 3), nn.Parameter(torch.zeros(0, 6)), nn.Parameter(torch.randn(3))

    def forward(self, x):
        return self.layer(x) + self.bias + nn.functional.linear(x, self.none).sum(1, keepdim=True)


class NoFeatures(nn.Module):
    """A norm of nothing beside a layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 3), nn.LayerNorm(0)

    def forward(self, x):
        return self.layer(x) + self.norm(x[:, :0]).sum(1, keepdim=True)


WITHOUT_ELEMENTS = {"a parameter": BesideNone, "linear layers": lambda: nn.Sequential(nn.Linear(6, 0), nn.Linear(0, 3)), "a norm": NoFeatures}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("build", WITHOUT_ELEMENTS.values(), ids=WITHOUT_ELEMENTS)
def test_a_parameter_without_elements_has_no_gradient(build):
    torch.manual_seed(1)
    model, batch = build(), (torch.randn(4, 6), torch.randint(0, 3, (4,)))
    loss = lambda module, given: nn.functional.cross_entropy(module(given[0]), given[1], reduction="none")
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, [batch], 0.5)
    private = Private(model, 0.5)
    private.backward(loss, batch)
    private.engine.release()
    found = {name: p.grad for name, p in model.named_parameters() if p.numel()}
    assert oracle.worst_difference(found, {name: expected[name] for name in found}) < SUM_TOLERANCE


def test_a_layer_that_needs_the_hooks_of_its_children_is_refused_with_a_sentence():
    class ByHook(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.child = nn.Parameter(torch.ones(3)), nn.Linear(6, 3)
            self.child.register_forward_hook(lambda _module, _args, output: {"features": output})

        def forward(self, x):
            features = self.child(x)
            return (features["features"] if isinstance(features, dict) else None) * self.own

    private = Private(nn.Sequential(ByHook(), nn.Linear(3, 3)), 1.0)
    with pytest.raises(RuntimeError, match="without the hooks of its children, and cannot be .TypeError"):
        private.module(torch.randn(4, 6))


def test_a_buffer_that_the_graph_holds_is_not_written_to():
    """As in Gemma 3n, whose methods use a layer's buffer beside its forward."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = nn.Parameter(torch.randn(6))
            self.register_buffer("scale", torch.tensor(0.5))

        def before(self, x):
            return x * self.scale

        def forward(self, x):
            return x * self.own

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.scaled, self.last = nn.Linear(6, 6), Scaled(), nn.Linear(6, 3)

        def forward(self, x):
            return self.last(self.scaled(self.scaled.before(self.first(x))))

    torch.manual_seed(2)
    model, batch = Around(), (torch.randn(4, 6), torch.randint(0, 3, (4,)))
    loss = lambda module, given: nn.functional.cross_entropy(module(given[0]), given[1], reduction="none")
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, [batch], 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(loss, [batch]), expected) < SUM_TOLERANCE
