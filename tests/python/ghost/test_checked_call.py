"""Arguments of make_private() that no step could begin with, or that would be left out without a word, are refused by it, by name."""

from collections import OrderedDict

import numpy as np
import opacus
import pytest
import torch
from private_run import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine

pytestmark = pytest.mark.filterwarnings("ignore:no ledger")


def begin(engine=None, **options):
    model = nn.Linear(6, 3)
    given = {"module": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_grad_norm": 1.0, "noise_multiplier": 1.0, "grad_sample_mode": "ghost",
             "data_loader": DataLoader(TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,))), batch_size=8)}  # fmt: skip
    return (engine or PrivacyEngine()).make_private(**given | options)


STEPS = ("_prepare_model", "_prepare_optimizer", "_prepare_data_loader", "_prepare_criterion")


@pytest.mark.parametrize("step", STEPS)
def test_a_subclass_with_a_step_of_its_own_is_not_trained_without_it(step):
    called = []
    mine = type("Mine", (PrivacyEngine,), {step: lambda self, *args, **kwargs: called.append(step)})
    with pytest.raises(ValueError, match=rf"Mine has a {step}\(\) of its own, which modes 'ghost', 'ghost_fsdp' never call"):
        begin(mine())
    assert not called


def test_a_subclass_that_adds_to_make_private_is_taken():
    class Louder(PrivacyEngine):
        def make_private(self, **arguments):
            return super().make_private(**arguments | {"max_grad_norm": 0.5})

    assert begin(Louder())[1].max_grad_norm == 0.5


def test_opacus_still_has_the_steps():
    assert all(hasattr(opacus.PrivacyEngine, step) for step in STEPS)


WRONG = {
    "max_grad_norm": [-1.0, 0, float("nan"), float("inf"), "1", True, 1e31, None], "noise_multiplier": [-1.0, float("nan"), float("inf"), "1.0", None, True],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_terms_with_which_no_step_could_begin(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a finite number"):
        begin(**{name: value})


@pytest.mark.parametrize("value", [1, np.float32(1), np.array(1.0), torch.tensor(1.0)])
def test_numbers_of_torch_and_numpy_are_terms(value):
    run = Run(noise=value, max_grad_norm=value, draws=(3,))
    for x, y in run.loader:
        run.step(x, y)
    assert run.charged == 1


KINDS = {
    "module": (None, "module must be the model, an nn.Module, got None"),
    "optimizer": ([1, 2], "optimizer must be one optimizer, got a list of 2: a private step is released once"),
    "data_loader": ([1, 2], r"data_loader must be a torch.utils.data.DataLoader, .* got \[1, 2\] \(list\)"),
    "criterion": (nn.CrossEntropyLoss, r"criterion must be made first: CrossEntropyLoss\(\), got the class"),
}


@pytest.mark.parametrize("name", KINDS)
def test_arguments_of_another_kind(name):
    value, sentence = KINDS[name]
    with pytest.raises(TypeError, match=sentence):
        begin(**{name: value})
    other = {"optimizer": None, "criterion": "ce"}
    if name in other:
        with pytest.raises(TypeError, match=f"{name} must be a"):
            begin(**{name: other[name]})


def test_an_optimizer_that_is_none_inside():
    """As Lookahead of several libraries."""

    class Around(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer, self.param_groups, self.state = optimizer, optimizer.param_groups, optimizer.state
            self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks, self.defaults = OrderedDict(), OrderedDict(), optimizer.defaults

    model = nn.Linear(6, 3)
    with pytest.raises(TypeError, match="a subclass that calls its constructor, got Around: make_private.. comes before"):
        begin(module=model, optimizer=Around(torch.optim.SGD(model.parameters(), lr=0.1)))


@pytest.mark.parametrize("mode", ["ghost_tp", "Ghost", "flat", None])
def test_a_mode_that_there_is_not(mode):
    with pytest.raises(ValueError, match="grad_sample_mode must be one of 'ghost', 'ghost_fsdp', or of Opacus' own 'hooks'.*got"):
        begin(grad_sample_mode=mode)


def test_a_target_of_epsilon():
    given = {"max_grad_norm": 1.0, "target_delta": 1e-5, "epochs": 1, "grad_sample_mode": "ghost", "module": None, "optimizer": None}
    loader = DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=8)
    for wrong, sentence in (
        ({"target_epsilon": "3"}, r"target_epsilon must be a number, got '3' \(str\)"),
        ({"noise_multiplier": 1.0}, "finds the noise multiplier for target_epsilon itself"),
        ({"data_loader": [1]}, "data_loader must be a torch.utils.data.DataLoader"),
    ):
        with pytest.raises(TypeError, match=sentence):
            PrivacyEngine().make_private_with_epsilon(**{"data_loader": loader, "target_epsilon": 3.0} | given | wrong)


def test_an_accountant_is_named():
    with pytest.raises(ValueError, match="accountant must be one of 'contour', 'prv', 'rdp', 'gdp', got 'rpd'; did you mean rdp[?]"):
        PrivacyEngine(accountant="rpd")
    with pytest.raises(ValueError, match="got 'PRV'; did you mean prv[?]"):
        PrivacyEngine(accountant="PRV")
    with pytest.raises(TypeError, match="accountant must be a name.*load_state_dict"):
        PrivacyEngine(accountant=opacus.accountants.RDPAccountant())


def test_an_accountant_that_was_registered_with_opacus_is_known(monkeypatch):
    class Mine(opacus.accountants.RDPAccountant):
        @classmethod
        def mechanism(cls):
            return "mine"

    monkeypatch.setitem(opacus.accountants.registry._ACCOUNTANTS, "mine", Mine)
    with pytest.warns(UserWarning, match="no upper bound"):
        assert isinstance(PrivacyEngine(accountant="mine").accountant, Mine)


def test_what_make_private_returned_is_handed_in_again_by_the_next_run():
    """`for run in range(runs): model = …; model, optimizer, criterion, loader = make_private(…)`, as Opacus' examples have it."""
    loader, criterion, engine = DataLoader(TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,))), batch_size=8), nn.CrossEntropyLoss(), PrivacyEngine()
    for _ in range(3):
        model = nn.Linear(6, 3)
        module, optimizer, criterion, loader = begin(
            engine, module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), criterion=criterion, data_loader=loader
        )
        for x, y in loader:
            criterion(module(x), y).backward()
            optimizer.step()
        assert type(criterion.criterion) is nn.CrossEntropyLoss
    assert [steps for *_, steps in engine.accountant.history] == [15]
