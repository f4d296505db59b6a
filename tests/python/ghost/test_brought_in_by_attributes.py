"""Tensors and numbers of a batch that go past the arguments: by an attribute of the model, a criterion's closure, an object or a number that a forward returns."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import short_loop
import torch
from private_run import Run
from torch import nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

REFUSED = "not known to be of the batch"
IN_A_FORWARD, IN_A_CRITERION = "came into the model's forward by another way", "came into the criterion by another way"


class Model(nn.Module):
    """output(model, x) of a linear layer `l` and an attribute `held`, or of a parameter `weight` of its own."""

    def __init__(self, output, held=None):
        super().__init__()
        self.l, self.output, self.held = nn.Linear(6, 3), output, held

    def forward(self, x):
        return self.output(self, x)


class Layer(nn.Module):
    """Has no rule."""

    def __init__(self):
        super().__init__()
        self.weight, self.held = nn.Parameter(torch.randn(6, 3)), None

    def forward(self, x):
        return (x / self.held) @ self.weight


def own_losses(outputs, y):
    return F.cross_entropy(outputs, y, reduction="none")


def steps_of(run, loss, *, before=lambda run, x, y: None, passes=8):
    done = 0
    for _ in range(passes):
        for x, y in run.loader:
            run.optimizer.zero_grad()
            before(run, x, y)
            loss(run, x, y).backward()
            run.optimizer.step()
            done += 1
    return done


def usual(run, x, y):
    return run.criterion(run.module(x), y)


def setting(held):
    return lambda run, x, y: setattr(run.model, "held", held(x, y))


# Attributes of the model --------------------------------------------------------------------------------------------------

ATTRIBUTES = {
    "mean of the batch": (lambda m, x: m.l(x - m.held), lambda x, y: x.mean(0)),
    "spread behind a layer": (lambda m, x: m.l(x) / m.held, lambda x, y: x.std()),
    "a number that was read": (lambda m, x: m.l(x / m.held), lambda x, y: x.std().item()),
    "others' rows": (lambda m, x: m.l(x) * m.held, lambda x, y: (x.flip(0)[:, :1] > 0).float()),
    "others' rows in a layer": (lambda m, x: m.l(x) + m.l(m.held), lambda x, y: x.flip(0)),
    "rows in another dimension": (lambda m, x: m.l(x) + (m.l(x)[:, :1] * m.held).sum(1, keepdim=True), lambda x, y: x[:, 0]),
    "in an object": (lambda m, x: SimpleNamespace(logits=m.l(x) / m.held).logits, lambda x, y: x.std()),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_brings_no_values_of_other_examples(name):
    output, held = ATTRIBUTES[name]
    with pytest.raises(ValueError, match=IN_A_FORWARD):
        steps_of(Run(model=Model(output)), usual, before=setting(held))


def test_an_attribute_of_a_layer_without_a_rule_brings_none():
    run = Run(model=nn.Sequential(Layer()))
    with pytest.raises(ValueError, match=REFUSED):
        steps_of(run, usual, before=lambda run, x, y: setattr(run.model[0], "held", x.std()))


@pytest.mark.parametrize("held, refused", [
    pytest.param(lambda x, y: torch.tensor(0.5), False, id="public", marks=pytest.mark.long), pytest.param(lambda x, y: x.std(), True, id="spread"),
])  # fmt: skip
def test_attributes_of_a_compiled_model_are_asked_before_it_runs(held, refused):
    run = Run(model=Model(lambda m, x: m.l(x) * m.held, torch.ones(())))
    run.module = torch.compile(run.module, backend="eager")
    if not refused:
        assert steps_of(run, usual, before=setting(held)) == 40
        return
    with pytest.raises(ValueError, match=IN_A_FORWARD):
        steps_of(run, usual, before=setting(held))


def test_a_queue_of_outputs_is_of_earlier_draws():
    run = Run(model=Model(lambda m, x: m.l(x) - m.held.mean(0), torch.zeros(8, 3)), noise=0.0)

    def loss(run, x, y):
        outputs = run.module(x)
        run.model.held = torch.cat([outputs.detach(), run.model.held])[:8]
        return run.criterion(outputs, y)

    with pytest.raises(ValueError, match=IN_A_FORWARD):
        steps_of(run, loss)
    assert run.charged == 1


def test_outputs_in_an_object_are_asked_too():
    @dataclass
    class Output:
        logits: torch.Tensor

    run = Run(model=Model(lambda m, x: Output(m.l(x) / m.held)))
    with pytest.raises(ValueError, match=IN_A_FORWARD):
        steps_of(run, lambda run, x, y: run.criterion(run.module(x).logits, y), before=setting(lambda x, y: x.std()))


HONEST = {
    "a mask of each row": (lambda m, x: m.l(x) * m.held, lambda x, y: (x[:, :1] > 0).float()),
    "a mask on the input": (lambda m, x: m.l(x * m.held), lambda x, y: (x > 0).float()),
    "places to fill": (lambda m, x: m.l(x).masked_fill(m.held, 0.0), lambda x, y: x[:, :1] > 0),
    "rows for a layer": (lambda m, x: m.l(x) + m.l(m.held), lambda x, y: x.flip(1)),
    "a table": (lambda m, x: m.l(x * m.held), lambda x, y: torch.arange(6.0)),
    "what nothing is made of": (lambda m, x: m.l(x), lambda x, y: x.mean(0)),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_attribute_may_have_the_forwards_own_rows(name):
    output, held = HONEST[name]
    assert steps_of(Run(model=Model(output)), usual, before=setting(held)) == 40


# What a criterion closes over ---------------------------------------------------------------------------------------------

CLOSURES = {
    "spread of the batch": (lambda x, y: x.std(), lambda losses, held: losses * held),
    "others' weights": (lambda x, y: (y.flip(0) == 0).float(), lambda losses, held: losses * held),
    "a number that was read": (lambda x, y: x.std().item(), lambda losses, held: losses * held),
}


@pytest.mark.parametrize("name", CLOSURES)
def test_a_closure_brings_no_values_of_other_examples(name):
    held, formed = CLOSURES[name]
    kept = {}
    run = Run(criterion=lambda outputs, y: formed(own_losses(outputs, y), kept["held"]))
    with pytest.raises(ValueError, match=IN_A_CRITERION):
        steps_of(run, usual, before=lambda run, x, y: kept.update(held=held(x, y)))
    assert run.charged == 0


def test_a_criterions_queue_is_of_earlier_draws():
    queue = []
    run = Run(criterion=lambda o, y: own_losses(o, y) + ((o @ torch.cat(queue).T).logsumexp(1) if queue else 0))

    def loss(run, x, y):
        outputs = run.module(x)
        found = run.criterion(outputs, y)
        queue.append(outputs.detach())
        return found

    with pytest.raises(ValueError, match=IN_A_CRITERION):
        steps_of(run, loss)


def test_a_closure_may_have_weights_of_each_row_and_public_ones():
    kept = {"classes": torch.tensor([1.0, 2.0, 3.0])}
    run = Run(criterion=lambda o, y: own_losses(o, y) * kept["classes"][y] * kept["rows"])
    assert steps_of(run, usual, before=lambda run, x, y: kept.update(rows=(y == 0).float() + 0.5)) == 40


LABELS = {
    "cross_entropy": lambda o, y: F.cross_entropy(o, y, reduction="none"), "nll_loss": lambda o, y: F.nll_loss(o.log_softmax(1), y, reduction="none"),
    "gather": lambda o, y: -o.log_softmax(1).gather(1, y[:, None])[:, 0], "mse_loss": lambda o, y: F.mse_loss(o, F.one_hot(y, 3).float(), reduction="none").mean(1),
}  # fmt: skip


@pytest.mark.parametrize("name", LABELS)
def test_a_closure_may_have_the_labels_in_their_order(name):
    kept = {}
    loss = lambda run, x, y: run.criterion(run.module(x))
    make = lambda: Run(criterion=lambda o: LABELS[name](o, kept["y"]))
    assert steps_of(make(), loss, before=lambda run, x, y: kept.update(y=y)) == 40
    with pytest.raises(ValueError, match=IN_A_CRITERION):
        steps_of(make(), loss, before=lambda run, x, y: kept.update(y=y.flip(0)))


def test_a_closure_may_have_outputs_of_another_forward_of_the_draw():
    kept = {}
    run = Run(criterion=lambda o, y: own_losses(o, y) + (o - kept["other"]).square().sum(1))
    assert steps_of(run, usual, before=lambda run, x, y: kept.update(other=run.module(x + 0.1 * torch.randn_like(x)))) == 40


# The loss of a model's own ------------------------------------------------------------------------------------------------


def language_model():
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=16, bos_token_id=1, eos_token_id=1)
    return GPT2LMHeadModel(config)


def by_a_hook(model, kept):
    model.transformer.wte.register_forward_hook(lambda module, given, output: output * kept["scale"])


def by_the_loss(model, kept):
    model.loss_function = lambda logits, labels, **_: F.cross_entropy(logits[:, :-1].reshape(-1, 50), labels[:, 1:].reshape(-1)) * kept["scale"]


@pytest.mark.parametrize("way", [by_a_hook, by_the_loss])
@pytest.mark.parametrize("public", [True, False], ids=["public", "of_the_batch"])
def test_a_models_own_loss_has_no_values_of_others_by_a_closure(way, public):
    kept, model = {}, language_model()
    way(model, kept)
    data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 50, (240, 8))]

    def loss(module, criterion, batch):
        kept["scale"] = torch.tensor(0.5) if public else batch["input_ids"].float().std()
        return module(**batch).loss

    train = lambda: short_loop.steps_of(loss, model, None, data, None, 40)
    if public:
        assert train() == 40
        return
    with pytest.raises(ValueError, match=REFUSED):
        train()


# What a forward returns beside its tensors ----------------------------------------------------------------------------------


def scaled(run, x, y):
    outputs = run.module(x)
    return run.criterion(outputs["logits"] / outputs["scale"], y)


@pytest.mark.parametrize("scale", [lambda x: float(x.std()), lambda x: int(100 * x.std()) + 1, lambda x: x.std().numpy()[()]], ids=["float", "int", "numpy"])
def test_a_number_that_a_forward_read_is_no_constant(scale):
    run = Run(model=Model(lambda m, x: {"logits": m.l(x), "scale": scale(x)}))
    with pytest.raises(ValueError, match="returned beside its outputs"):
        steps_of(run, scaled)
    assert run.charged == 1


def test_constants_and_extents_may_stand_beside_outputs():
    run = Run(model=Model(lambda m, x: {"logits": m.l(x), "scale": 2.0, "rows": len(x), "places": x.shape[1], "read": float(x.std()), "first": x.dim() == 2}))
    shown = []

    def loss(run, x, y):
        outputs = run.module(x)
        shown.append(f"{outputs['read']:.3f} {outputs['rows']}")
        assert type(outputs["rows"]) is int and outputs["first"] is True
        return run.criterion(outputs["logits"] / outputs["scale"] * outputs["places"], y) * outputs["scale"]

    assert steps_of(run, loss) == 40 and len(set(shown)) > 3


@dataclass
class Output:
    logits: torch.Tensor
    scale: float = 2.0


def test_outputs_in_an_object_are_followed():
    run = Run(model=Model(lambda m, x: Output(m.l(x))))
    with pytest.raises(ValueError, match="mean joined its examples"):
        steps_of(run, lambda run, x, y: (lambda o: run.criterion(o.logits - o.logits.detach().mean(0), y))(run.module(x)))


def test_outputs_in_an_object_train():
    run = Run(model=Model(lambda m, x: Output(m.l(x))))
    assert steps_of(run, lambda run, x, y: (lambda o: run.criterion(o.logits / o.scale, y))(run.module(x))) == 40


def test_a_distribution_samples_itself():
    run = Run(model=Model(lambda m, x: torch.distributions.Normal(m.l(x), 1.0)))
    assert steps_of(run, lambda run, x, y: run.criterion(run.module(x).rsample(), y)) == 40
