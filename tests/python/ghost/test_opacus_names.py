"""Names of Opacus' private objects that ours do not have say why, and what to take; what a loop does with a scalar loss beside them."""

import pytest
import torch
from private_run import Run
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore:no ledger")

OF_A_MODULE = {
    "get_norm_sample": "norms of single examples are private.*clipping=.adaptive", "per_sample_gradient_norms": "norms of single examples are private",
    "max_grad_norm": "optimizer.max_grad_norm", "validate": "PrivacyEngine", "is_supported": "without a rule", "add_hooks": "enable_hooks",
    "autograd_grad_sample_hooks": "without hooks of autograd",
}  # fmt: skip


@pytest.mark.parametrize("wrap_model", [True, False])
@pytest.mark.parametrize("name", OF_A_MODULE)
def test_of_a_module(name, wrap_model):
    run = Run(wrap_model=wrap_model)
    with pytest.raises(AttributeError, match=f"has no attribute '{name}': .*{OF_A_MODULE[name]}"):
        getattr(run.module, name)


@pytest.mark.parametrize("wrap_model", [True, False])
def test_whether_hooks_are_enabled(wrap_model):
    run = Run(wrap_model=wrap_model)
    found = [run.module.hooks_enabled]
    run.module.disable_hooks()
    found.append(run.module.hooks_enabled)
    run.module.enable_hooks()
    found.append(run.module.hooks_enabled)
    run.module.cleanup()
    assert [*found, run.module.hooks_enabled] == [True, False, True, False]


def test_a_model_that_has_such_a_name_keeps_it():
    model = nn.Linear(6, 3)
    model.validate = lambda: 7
    with pytest.raises(AttributeError, match="'validate' is of the model"):
        Run(model=model).module.validate()


@pytest.mark.parametrize("part", ["accumulate", "add_noise", "scale_grad"])
def test_parts_of_a_step(part):
    """scale_grad() between pre_step() and the step of the optimizer beneath divided what was divided already."""
    run = Run()
    x, y = next(iter(run.loader))
    run.backward(x, y)
    run.optimizer.clip_and_accumulate()  # does nothing in Opacus' ghost modes too
    with pytest.raises(RuntimeError, match=rf"{part}\(\) is a part of Opacus' pre_step\(\).*call step\(\), or pre_step"):
        getattr(run.optimizer, part)()
    run.optimizer.step()


def test_a_virtual_step_of_opacus_before_its_first_version():
    with pytest.raises(AttributeError, match="accumulation_steps=k.*BatchMemoryManager"):
        Run().optimizer.virtual_step()


def stepped(backward) -> torch.Tensor:
    run = Run(noise=0.0, draws=(4,))
    for x, y in run.loader:
        out = run.module(x)
        backward(run.criterion(out, y), run.criterion(out, 2 - y))
        run.optimizer.step()
    return run.model.weight.detach()


def test_a_backward_by_torch_autograd():
    one, both = stepped(lambda one, other: one.backward()), stepped(lambda one, other: (one + other).backward())
    assert torch.equal(stepped(lambda one, other: torch.autograd.backward(one)), one) and not torch.equal(one, both)
    assert torch.equal(stepped(lambda one, other: torch.autograd.backward([one, other], retain_graph=True)), both)
    with pytest.raises(ValueError, match="a private step has one backward"):
        stepped(lambda one, other: torch.autograd.backward(one, torch.ones(())))
    with pytest.raises(TypeError, match="takes private losses alone"):
        stepped(lambda one, other: torch.autograd.backward([one, other.detach()]))


def test_numbers_for_people():
    run = Run(draws=(4,))
    x, y = next(iter(run.loader))
    loss = run.criterion(run.module(x), y)
    value = loss.item()
    assert round(loss, 2) == round(value, 2) and int(loss) == int(value) and loss.tolist() == value and loss.squeeze() is loss
    with pytest.raises(TypeError, match=r"abs\(\) of a private loss"):
        abs(loss)


def test_reductions_of_criterions():
    for criterion, reduction, sentence in (
        (nn.CrossEntropyLoss(reduction="none"), "mean", "got 'none'. Leave it at 'mean'.*loss_per_sample"),
        (nn.CrossEntropyLoss(reduction="sum"), "mean", "loss_reduction='sum'"),
        (nn.CrossEntropyLoss(), "sum", "leave loss_reduction out"),
    ):
        with pytest.raises(ValueError, match=f"the criterion's reduction must be loss_reduction .*{sentence}"):
            Run(criterion=criterion, loss_reduction=reduction)


def test_a_function_as_criterion():
    run = Run(criterion=functional.cross_entropy, draws=(4,))
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match=r"cross_entropy must give one loss per example .*functools.partial\(F.cross_entropy, reduction='none'\)"):
        run.backward(x, y)
