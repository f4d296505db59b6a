"""Every parameter that trains is clipped and noised: one that appears after make_private() is refused by name."""

import pytest
import torch
from private import Private, hand_out
from private_run import prescribe
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def new_head(model, optimizer):
    model.head = nn.Linear(6, 3)
    optimizer.add_param_group({"params": model.head.parameters()})


def new_head_without_the_optimizer(model, _):
    model.head = nn.Linear(6, 3)


def new_layer_beside(model, _):
    model.body = nn.Sequential(model.body, nn.Linear(6, 6))


def new_parameter(model, optimizer):
    model.body.temperature = nn.Parameter(torch.ones(()))
    optimizer.add_param_group({"params": [model.body.temperature]})


def temperature_outside_of_the_model(_, optimizer):
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(7))]})


def weights_replaced(model, _):
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


def parametrized(model, _):
    torch.nn.utils.parametrizations.weight_norm(model.head)


APPEARS = {
    new_head: "'head.weight' was not in the model",
    new_head_without_the_optimizer: "'head.weight' was not in the model",
    new_layer_beside: "'body.1.weight' was not in the model",
    new_parameter: "'body.temperature' was not in the model",
    temperature_outside_of_the_model: r"shape \(7,\) that was not in the model",
    weights_replaced: "'body.weight' was not in the model|in the place of parameter 'body.weight'",
    parametrized: "'head.parametrizations.weight.original0' was not in the model|in the place of parameter 'head.weight'",
}


def private(model, **options):
    data = TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,)))
    engine = PrivacyEngine(accountant="rdp")
    return engine, *engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=1000.0, max_grad_norm=1e-3, grad_sample_mode="ghost", **options,
    )  # fmt: skip


@pytest.mark.parametrize("when", ["before_backward", "before_step"])
@pytest.mark.parametrize("change", APPEARS, ids=lambda change: change.__name__)
def test_a_parameter_that_appears_later_is_refused_by_name(change, when):
    torch.manual_seed(3)
    model = Model()
    engine, module, optimizer, criterion, loader = private(model)
    hand_out(loader, 4)
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    if when == "before_step":
        criterion(module(x), y).backward()
    change(model, optimizer)
    weights = [p.detach().clone() for p in model.parameters()]
    with pytest.raises((ValueError, RuntimeError), match=APPEARS[change]):
        if when == "before_backward":
            criterion(module(x), y).backward()
        optimizer.step()
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), weights))


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, dtype=torch.cfloat))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=x.shape[-1])


def test_a_complex_parameter_is_refused_by_name():
    """Its imaginary part would get no noise."""
    with pytest.raises(ValueError, match=r"'0\.weight' is complex.*view_as_complex"):
        private(nn.Sequential(Spectral(), nn.Linear(6, 3)))
    model = nn.Sequential(Spectral(), nn.Linear(6, 3))
    model[0].weight.requires_grad_(False)
    engine, module, optimizer, criterion, loader = private(model)
    hand_out(loader, 4)
    model[0].weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"'0\.weight' is complex"):
        criterion(module(torch.randn(4, 6)), torch.zeros(4, dtype=torch.long)).backward()


def test_frozen_ones_may_appear():
    model = Model()
    engine, module, optimizer, criterion, loader = private(model)
    model.extra = nn.Linear(2, 2).requires_grad_(False)
    hand_out(loader, 4)
    criterion(module(torch.randn(4, 6)), torch.zeros(4, dtype=torch.long)).backward()
    optimizer.step()


def test_a_late_adapter_is_refused():
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=29, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_key_value_heads=1
    )
    lora = lambda target: peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=[target], init_lora_weights=False)
    model = peft.get_peft_model(transformers.LlamaForCausalLM(config), lora("q_proj"))
    engine, hooks, optimizer, criterion, loader = private(model, wrap_model=False)
    model.add_adapter("late", lora("o_proj"))
    model.base_model.set_adapter(["default", "late"])
    hand_out(loader, 4)
    ids = torch.randint(0, 29, (4, 6))
    with pytest.raises(ValueError, match=r"o_proj\.lora_A\.late\.weight' was not in the model"):
        model(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is None for p in model.parameters())


def test_a_gradient_of_another_phase_moves_nothing():
    """A frozen layer still has the raw gradient of a phase on public data."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.randn(4, 6)).sum().backward()
    model.body.requires_grad_(False)
    before = model.body.weight.clone()
    run = Private(model, 1.0)
    run.optimizer.original_optimizer = optimizer
    run.backward(lambda m, batch: nn.functional.cross_entropy(m(batch[0]), batch[1], reduction="none"),
                 (torch.randn(4, 6), torch.zeros(4, dtype=torch.long)))  # fmt: skip
    run.optimizer.step()
    assert torch.equal(model.body.weight, before)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_gradients_that_a_private_step_would_not_call_are_refused(kind, when):
    """A mask on a weight's gradient, an optimizer that steps within backward."""
    model = Model()
    hook = lambda: getattr(model.body.weight, kind)(lambda _: None)
    if when == "before":
        hook()
    engine, module, optimizer, criterion, loader = private(model)
    if when == "after":
        hook()
    hand_out(loader, 4)
    with pytest.raises(ValueError, match="parameter 'body.weight' has a hook on its gradient"):
        criterion(module(torch.randn(4, 6)), torch.zeros(4, dtype=torch.long)).backward()
    assert all(p.grad is None for p in model.parameters())


class Outside:
    """Things that a loop trains beside the model."""

    def __init__(self):
        self.temperature, self.prompt, self.head, self.plain = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(6)), nn.Linear(3, 3), torch.zeros(6)
        self.body = nn.Linear(6, 6)
        # Of as many rows as the batch has examples, by chance.
        self.table, self.columns, self.scales = torch.zeros(4, 6), torch.zeros(1, 4), torch.ones(4)
        for each in (self.plain, self.table, self.columns, self.scales):
            each.requires_grad_(True)


STRANGERS = {
    "in the criterion": lambda o, m, c, x, y: c(m(x) * o.temperature, y), "times a loss": lambda o, m, c, x, y: c(m(x), y) * o.temperature,
    "a head": lambda o, m, c, x, y: c(o.head(m(x)), y), "a body": lambda o, m, c, x, y: c(m(torch.tanh(o.body(x))), y),
    "a prompt": lambda o, m, c, x, y: c(m(x + o.prompt), y), "a plain leaf": lambda o, m, c, x, y: c(m(x + o.plain), y),
    "a table": lambda o, m, c, x, y: c(m(x + o.table), y), "columns": lambda o, m, c, x, y: c(m(x + o.columns.sum()), y),
    "scales": lambda o, m, c, x, y: c(m(x) * o.scales[:, None], y),
    "a table beside outputs": lambda o, m, c, x, y: c(m(x) + o.table[:, :3], y),
}  # fmt: skip


def batch_of_four(loader, options):
    if options:
        return torch.randn(4, 6), torch.randint(0, 3, (4,))
    prescribe(loader, (4,))
    return next(iter(loader))


@pytest.mark.parametrize("options", [{}, {"own_batches": True}], ids=["followed", "own batches"])
@pytest.mark.parametrize("loss", STRANGERS.values(), ids=STRANGERS)
def test_what_trains_beside_the_model_gets_no_gradient(loss, options):
    """It would have no noise."""
    torch.manual_seed(3)
    outside = Outside()
    engine, module, optimizer, criterion, loader = private(Model(), **options)
    x, y = batch_of_four(loader, options)
    with pytest.raises(ValueError, match="a gradient to a tensor of shape .* outside of the model|is not known to be of the batch|one number with a gradient"):
        loss(outside, module, criterion, x, y).backward()
    mine = [outside.temperature, outside.prompt, outside.plain, outside.table, outside.columns, outside.scales, *outside.head.parameters(), *outside.body.parameters()]
    assert all(each.grad is None for each in mine) and not engine.accountant.history


class Keeps(nn.Module):
    """A tensor that is no Parameter, but trains."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.kept = nn.Linear(6, 6), nn.Linear(6, 3), torch.zeros(4, 6, requires_grad=True)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)) + self.body(self.kept))


@pytest.mark.parametrize("options", [{}, {"own_batches": True}], ids=["followed", "own batches"])
def test_a_tensor_of_the_models_own_that_is_a_layers_input_gets_no_gradient(options):
    model = Keeps()
    engine, module, optimizer, criterion, loader = private(model, attribution_check=False, **options)
    x, y = batch_of_four(loader, options)
    with pytest.raises(ValueError, match="a gradient to a tensor of shape .* outside of the model"):
        criterion(module(x), y).backward()
    assert model.kept.grad is None and not engine.accountant.history


def test_a_plain_tensor_beside_packed_rows_gets_no_gradient():
    engine, module, optimizer, criterion, loader = private(Model(), own_batches=True)
    table = torch.zeros(4, 6, requires_grad=True)
    x, y = torch.randn(4, 6), torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match="a gradient to a tensor of shape"):
        criterion(module(x + table, units=torch.tensor([0, 0, 1, 1])), y).backward()
    assert table.grad is None


def test_inputs_of_the_examples_own_may_get_a_gradient():
    engine, module, optimizer, criterion, loader = private(Model(), own_batches=True, allow_vouched=True)
    x = torch.randn(4, 6, requires_grad=True)
    with torch.no_grad():
        teacher = nn.Linear(6, 6)(x)
    criterion(module(x), torch.zeros(4, dtype=torch.long)).backward()
    assert x.grad is not None and teacher.grad is None


class Table(nn.Module):
    """Whose rows are arguments."""

    def __init__(self, rows):
        super().__init__()
        self.body, self.head, self.rows = nn.Linear(6, 6), nn.Linear(6, 3), rows

    def forward(self, table, numbers):
        return self.head(torch.tanh(self.body(self.rows(table, numbers))))


@pytest.mark.parametrize("rows", [lambda table, numbers: table, lambda table, numbers: table[numbers], lambda table, numbers: nn.functional.embedding(numbers, table)],
                         ids=["itself", "indexed", "embedding"])  # fmt: skip
def test_a_table_that_is_an_argument_gets_no_gradient(rows):
    """It has as many rows as the batch, and each example takes its own in the first batch: no check tells it from a batch."""
    engine, module, optimizer, criterion, loader = private(Table(rows), own_batches=True)
    table = torch.randn(4, 6, requires_grad=True)
    with pytest.raises(ValueError, match="looks like a table that trains"):
        criterion(module(table, torch.arange(4)), torch.zeros(4, dtype=torch.long)).backward()
    assert table.grad is None and not engine.accountant.history


@pytest.mark.parametrize("form", [lambda x: x, torch.tanh, lambda x: x.view(4, 2, 3).flatten(1)], ids=["itself", "a function", "a view"])
def test_drawn_inputs_may_get_a_gradient(form):
    engine, module, optimizer, criterion, loader = private(Model())
    x, y = batch_of_four(loader, {})
    x.requires_grad_()
    criterion(module(form(x)), y).backward()
    optimizer.step()
    assert x.grad is not None and engine.accountant.history
