"""Loops, optimizers and loaders a little off the usual path: each is right, or is refused. (Models and losses: test_off_the_path.py.)"""

import copy

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.validators.errors import UnsupportedModuleError
from private_run import N, Run
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine


def passes(run):
    for x, y in run.loader:
        run.step(x, y)


# Optimizers and schedulers -----------------------------------------------------------------------------------------------


def test_two_steps_for_one_batch_are_refused():
    run = Run()
    x, y = next(iter(run.loader))
    run.step(x, y)
    with pytest.raises(RuntimeError, match="nothing can be released twice"):
        run.optimizer.step()
    assert run.charged == 1


@pytest.mark.parametrize("kind, sentence", [(torch.optim.LBFGS, "LBFGS asks for several gradients"), (torch.optim.SparseAdam, "noise in every row.*take torch.optim.Adam")])
def test_optimizers_that_ask_for_other_gradients_are_refused(kind, sentence):
    model = nn.Linear(6, 3)
    data = Run().data
    with pytest.raises(ValueError, match=sentence):
        PrivacyEngine(accountant="rdp").make_private(
            module=model, optimizer=kind(model.parameters()), data_loader=DataLoader(data, batch_size=8), noise_multiplier=1.0,
            max_grad_norm=1.0, grad_sample_mode="ghost",
        )  # fmt: skip


def test_sharpness_aware_steps_are_refused():
    """Two backwards over one batch, with the weights moved in between."""
    run = Run()
    x, y = next(iter(run.loader))
    run.backward(x, y)
    with torch.no_grad():
        for p in run.model.parameters():
            p.add_(0.01)
    with pytest.raises(RuntimeError, match="has gone backward already"):
        run.backward(x, y)


def test_a_closure_is_called_once():
    run = Run()
    for x, y in run.loader:

        def closure(x=x, y=y):
            run.optimizer.zero_grad()
            loss = run.criterion(run.module(x), y)
            loss.backward()
            return loss

        run.optimizer.step(closure)
    assert run.charged == 5


def test_parameters_are_edited_with_public_values_alone():
    run = Run()
    x, y = next(iter(run.loader))
    run.step(x, y)
    with torch.no_grad():
        for p in run.model.parameters():
            p.clamp_(-0.2, 0.2)  # test_held_weights.py has more
    held = {name: value.clone() for name, value in run.model.state_dict().items()}
    with pytest.raises(ValueError, match="written to a parameter"), torch.no_grad():
        run.model.bias.add_(x.mean())
    with pytest.raises(ValueError, match="written to a parameter"), torch.no_grad():
        run.model.weight.copy_(x[:3])
    run.model.load_state_dict(held)  # they were written all the same
    passes(run)
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)


def test_an_optimizer_without_a_learning_rate_is_taken():
    """Transformers' Adafactor has lr=None."""
    transformers = pytest.importorskip("transformers")
    model = nn.Linear(6, 3)
    module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=transformers.optimization.Adafactor(model.parameters()), data_loader=DataLoader(Run().data, batch_size=8),
        noise_multiplier=1.0, max_grad_norm=0.1, grad_sample_mode="ghost",
    )  # fmt: skip
    before = model.weight.clone()
    x, y = next(iter(loader))
    criterion(module(x), y).backward()
    optimizer.step()
    assert not torch.equal(before, model.weight)


# Loops -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clear", ["optimizer", "module"])
def test_gradients_are_cleared_between_loss_and_backward(clear):
    """As in PyTorch's first tutorials and in nanoGPT. The sum is that of the loop which clears them first."""
    released = []
    for between in (True, False):
        run = Run(noise=0.0)
        for x, y in run.loader:
            cleared = run.optimizer if clear == "optimizer" else run.module
            if not between:
                cleared.zero_grad()
            loss = run.criterion(run.module(x), y)
            if between:
                cleared.zero_grad(set_to_none=True)
            loss.backward()
            run.optimizer.step()
        assert run.charged == 5
        released.append(run.model.weight.detach().clone())
    assert torch.equal(*released)


def test_gradients_are_cleared_between_loss_and_backward_in_parts():
    run = Run(draws=(12, 0, 13))
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=5, optimizer=run.optimizer) as parts:
        for x, y in parts:
            loss = run.criterion(run.module(x), y)
            run.optimizer.zero_grad()
            loss.backward()
            run.optimizer.step()
    assert run.charged == 3
    run = Run(draws=(12, 7), accumulation_steps=2)
    for i, (x, y) in enumerate(run.loader):
        loss = run.criterion(run.module(x), y)
        if i % 2 == 0:
            run.optimizer.zero_grad()
        loss.backward()
        if i % 2:
            run.optimizer.step()
    assert run.charged == 2


def test_gradients_that_are_cleared_after_a_part_drop_the_draw_with_its_forwards():
    run = Run(draws=(12, 7), accumulation_steps=2)
    parts = iter(run.loader)
    run.backward(*next(parts))
    x, y = next(parts)
    loss = run.criterion(run.module(x), y)
    run.optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="zero_grad.. after a backward drops its draw"):
        loss.backward()
    assert run.charged == 1
    with pytest.raises(RuntimeError, match="dropped, and stays charged"):
        run.backward(x, y)



def test_outputs_of_the_batch_before_are_refused():
    run, last = Run(draws=(7, 7, 7)), None
    with pytest.raises(ValueError, match="another batch of the loader|whose rows the loader did not hand out|neither"):
        for x, y in run.loader:
            run.optimizer.zero_grad()
            out = run.module(x)
            run.criterion(out if last is None else 0.5 * out + 0.5 * last, y).backward()
            run.optimizer.step()
            last = out.detach()
    assert run.charged == 1


def test_a_copy_of_the_model_as_a_teacher_is_followed():
    run = Run(attribution_check=False)
    teacher = copy.deepcopy(run.model)
    x, y = next(iter(run.loader))
    targets = teacher(x).softmax(1).detach()
    run.criterion(run.module(x), targets).backward()  # a layer of its own, which keeps rows apart
    run.optimizer.step()
    assert run.charged == 1


def test_persistent_workers_are_taken():
    run = Run(workers=0)
    model = nn.Linear(6, 3)
    loader = DataLoader(run.data, batch_size=8, num_workers=1, persistent_workers=True)
    module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader, noise_multiplier=1.0, max_grad_norm=0.1,
        grad_sample_mode="ghost",
    )  # fmt: skip
    steps = 0
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()
            steps += 1
    assert steps == 2 * N // 8


def test_batches_drawn_within_the_model_are_refused():
    """A model that draws other examples by itself, at places that follow from the batch."""

    class Retrieving(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            nearest = torch.cdist(x, x).fill_diagonal_(1e9).argmin(1)
            return self.layer(x + 0.1 * x[nearest].detach())

    run = Run(model=Retrieving())
    with pytest.raises(RuntimeError, match="must not depend on other examples"):
        passes(run)
    assert run.charged <= 1


def test_one_example_after_another_in_a_loop():
    run = Run()
    for x, y in run.loader:
        run.optimizer.zero_grad()
        with pytest.raises((RuntimeError, ValueError)):
            for i in range(len(x)):
                run.criterion(run.module(x[i : i + 1]), y[i : i + 1]).backward()
    assert run.charged == 5  # passed over


def test_forwards_in_parts_are_joined_before_the_criterion():
    """Either right or refused: the model runs on two halves of the batch."""
    run = Run()
    x, y = next(iter(run.loader))
    with pytest.raises((RuntimeError, ValueError)):
        half = len(x) // 2
        run.criterion(torch.cat([run.module(x[:half]), run.module(x[half:])]), y).backward()
    assert run.charged == 0


def test_hooks_of_the_optimizer_are_those_of_the_one_that_steps():
    run, seen = Run(), []
    hooks = [
        run.optimizer.register_step_pre_hook(lambda optimizer, *_: seen.append(("before", run.model.weight.grad is not None))),
        run.optimizer.register_step_post_hook(lambda optimizer, *_: seen.append(("after", optimizer is run.optimizer.original_optimizer))),
    ]
    run.step(*next(iter(run.loader)))
    for hook in hooks:
        hook.remove()
    run.step(*next(iter(run.loader)))
    assert seen == [("before", True), ("after", True)]


def test_constants_come_in_batches_of_any_size():
    """Rows that are all alike are one constant, of one example or of many; and nothing of an empty batch is one."""
    run = Run(draws=(0, 8, 1, 5, 1))
    for x, y in run.loader:
        run.optimizer.zero_grad()
        seen = y.tolist()
        x = x[:, :5] - torch.linspace(0, 1, 5).repeat(len(x), 1) + torch.zeros(len(x), 5)
        out = run.module(F.pad(x, (0, 1))) * torch.zeros(len(seen), 3).scatter_(1, y[:, None], 1.0)
        run.criterion(out, torch.tensor(y.tolist(), dtype=torch.int64)).backward()
        run.optimizer.step()
    assert run.charged == 5


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_taken():
    run = Run(model=torch.compile(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)), backend="eager"))
    passes(run)
    assert run.charged == 5


@pytest.mark.parametrize("scripted", [torch.jit.script, lambda m: torch.jit.trace(m, torch.zeros(2, 6))], ids=["script", "trace"])
@pytest.mark.filterwarnings("ignore")
def test_torchscript_is_refused_with_a_sentence(scripted):
    with pytest.raises(UnsupportedModuleError, match="TorchScript"):
        Run(model=nn.Sequential(scripted(nn.Linear(6, 6)), nn.Linear(6, 3)))


def test_layers_called_by_methods_over_other_rows_are_refused_with_a_sentence():
    run = Run(own_batches=True, model=nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 3)}))
    x = torch.randn(4, 5, 6)
    out = run.model["b"](run.model["a"](x.flatten(0, 1)).view(4, 5, 6).mean(1))
    with pytest.raises(RuntimeError, match="a layer called on its own with another number of rows"):
        run.criterion(out, torch.zeros(4, dtype=torch.long)).backward()
    assert run.charged == 0


@pytest.mark.parametrize("name, value", [("sample_rate", 0.9), ("num_samples", 20), ("max_batch_size", 5)])
def test_a_sampler_that_is_changed_is_refused(name, value):
    """Its draws would not be those that are charged."""
    run = Run(draws=None)
    run.step(*next(iter(run.loader)))
    setattr(run.loader.batch_sampler, name, value)
    with pytest.raises((RuntimeError, ValueError), match="sampler was changed"):
        passes(run)
    assert run.charged <= 2


def test_a_running_sum_of_losses_is_for_people():
    run, total, values = Run(draws=(8, 7, 7, 3)), 0.0, []
    for x, y in run.loader:
        run.optimizer.zero_grad()
        loss = run.criterion(run.module(x), y)
        loss.backward()
        run.optimizer.step()
        total += loss
        values.append(loss.item())
    assert abs(float(total) - sum(values)) < 1e-5
