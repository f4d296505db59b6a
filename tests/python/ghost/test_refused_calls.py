"""A make_private() that is refused leaves nothing behind: the call can be mended, as its sentence says, and repeated."""

import warnings

import pytest
import torch
from private_run import prescribe
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine

pytestmark = pytest.mark.filterwarnings("ignore:no ledger")


class Task:
    """Model, optimizer and loader stay the same over all calls of make_private()."""

    def __init__(self, folder, accountant="contour"):
        torch.manual_seed(5)
        self.folder, self.engine, self.model = folder, PrivacyEngine(accountant=accountant), nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.data = TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,)))
        (folder / "data").write_bytes(b"data")

    def ledger(self) -> None:
        self.engine.attach_ledger(self.folder / "ledger.jsonl")

    def register(self, *, limit: float | None = 3.0, steps: int | None = None) -> None:
        self.engine.attach_register(self.folder / "budgets.jsonl", data=self.folder / "data", limit=limit, delta=1e-5, steps=steps)

    def arguments(self, options: dict) -> dict:
        loader = DataLoader(self.data, batch_size=8)
        return {"module": self.model, "optimizer": self.optimizer, "data_loader": loader, "max_grad_norm": 1.0, "grad_sample_mode": "ghost"} | options

    def begin(self, **options) -> tuple:
        return self.engine.make_private(**self.arguments({"noise_multiplier": 1.0} | options))

    def begin_within(self, epsilon: float, epochs: int, **options) -> tuple:
        return self.engine.make_private_with_epsilon(target_epsilon=epsilon, target_delta=1e-5, epochs=epochs, **self.arguments(options))

    def train(self, parts: tuple) -> int:
        module, optimizer, criterion, loader = parts
        for x, y in loader:
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()
        return sum(steps for *_, steps in self.engine.accountant.history)


def test_a_register_without_a_ledger_gets_one(tmp_path):
    task = Task(tmp_path)
    task.register(limit=30.0)
    with pytest.raises(ValueError, match="call attach_ledger"):
        task.begin()
    task.ledger()
    assert task.train(task.begin()) == 5
    assert (tmp_path / "ledger.jsonl").exists()


def test_a_plan_beyond_the_limit_becomes_a_smaller_one(tmp_path):
    task = Task(tmp_path)
    task.ledger()
    task.register(limit=1.0, steps=1000)
    with pytest.raises(ValueError, match="with this run it would be"):
        task.begin()
    assert not (tmp_path / "ledger.jsonl").exists()
    task.register(limit=1.0, steps=5)
    assert task.train(task.begin(noise_multiplier=20.0)) == 5


def test_planned_epochs_beyond_the_limit_become_fewer(tmp_path):
    task = Task(tmp_path)
    task.ledger()
    task.register(limit=1.0)
    with pytest.raises(ValueError, match="with this run it would be"):
        task.begin_within(2.0, epochs=1000)
    assert task.train(task.begin_within(0.99, epochs=1)) == 5
    assert task.engine._budget._steps == 5


def test_another_kind_of_steps_and_other_data_come_after_a_refusal(tmp_path):
    task = Task(tmp_path)
    with pytest.raises(ValueError, match="unclipped"):
        task.begin(max_batch_size=20, target_unclipped_quantile=0.5)
    assert task.engine.accountant.truncation is None and task.engine.dataset is None
    task.data = TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,)))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="this PrivacyEngine has accounted for another data set")
        assert task.train(task.begin()) == 5
    assert task.engine.accountant.truncation is None


def test_a_second_call_that_is_refused_leaves_the_first_run(tmp_path):
    task = Task(tmp_path)
    parts = task.begin()
    assert task.train(parts) == 5
    ghost, other = task.engine._ghost, Task(tmp_path)
    with pytest.raises(TypeError, match="own_batch; did you mean own_batches"):
        task.begin(module=other.model, optimizer=other.optimizer, own_batch=True)
    assert task.engine._ghost is ghost and task.engine._optimizer is parts[1]
    assert task.train(parts) == 10
    task.engine.save_checkpoint(path=tmp_path / "file", module=parts[0], optimizer=parts[1])


UNKNOWN = {
    "own_batch": (True, "own_batch; did you mean own_batches?"), "poison_sampling": (False, "poison_sampling; did you mean poisson_sampling?"),
    "target_unclipped_quantil": (0.5, "target_unclipped_quantil; did you mean target_unclipped_quantile?"), "zzz": (1, "zzz$"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_keyword_is_refused_by_name(name, tmp_path):
    value, named = UNKNOWN[name]
    with pytest.raises(TypeError, match="unknown keyword " + named.replace("?", "[?]")):
        Task(tmp_path).begin(**{name: value})


OURS = {"own_batches": True, "accumulation_steps": 2, "allow_vouched": True, "memory_budget": "1.05x", "accumulate": True,
        "attribution_check": False, "max_batch_size": 9, "sampling": "balls_in_bins"}  # fmt: skip


@pytest.mark.parametrize("name", OURS)
def test_opacus_modes_do_not_drop_our_keywords(name, tmp_path):
    with pytest.raises(ValueError, match=f"{name} is of our modes alone"):
        Task(tmp_path).begin(grad_sample_mode="hooks", **{name: OURS[name]})


@pytest.mark.filterwarnings("ignore:grad_sample_mode")
def test_what_asks_for_nothing_goes_through_to_opacus_modes(tmp_path):
    assert len(Task(tmp_path).begin(grad_sample_mode="hooks", own_batches=False, accumulation_steps=1, max_batch_size=None)) == 3


@pytest.mark.parametrize("attach", [Task.ledger, Task.register], ids=["ledger", "register"])
def test_opacus_modes_are_refused_where_a_ledger_or_a_register_would_stay_empty(attach, tmp_path):
    task = Task(tmp_path)
    attach(task)
    with pytest.raises(ValueError, match="a ledger or a register was attached, and grad_sample_mode='hooks' is Opacus' engine"):
        task.begin(grad_sample_mode="hooks")


def test_a_wrapped_optimizer_is_refused_by_name(tmp_path):
    class Wrapped(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer = optimizer

        param_groups = property(lambda self: self.optimizer.param_groups)
        defaults = property(lambda self: self.optimizer.defaults)
        state = property(lambda self: self.optimizer.state)

    task = Task(tmp_path)
    with pytest.raises(TypeError, match="got Wrapped: make_private.. comes before accelerator.prepare"):
        task.begin(optimizer=Wrapped(task.optimizer))


def test_a_ledgers_folder_is_made(tmp_path):
    task = Task(tmp_path)
    task.engine.attach_ledger(tmp_path / "runs" / "one" / "ledger.jsonl")
    module, optimizer, criterion, loader = task.begin()
    prescribe(loader, (5,))
    x, y = next(iter(loader))
    criterion(module(x), y).backward()
    optimizer.step()
    assert (tmp_path / "runs" / "one" / "ledger.jsonl").read_text().count("\n") >= 2


def test_a_loss_past_the_engine_is_named(tmp_path):
    task = Task(tmp_path)
    module, optimizer, _, loader = task.begin()
    prescribe(loader, (5,))
    x, y = next(iter(loader))
    torch.nn.functional.cross_entropy(module(x), y).backward()
    with pytest.raises(RuntimeError, match="another loss, as of torch.nn.functional, goes backward past it"):
        optimizer.step()


def test_a_criterion_of_single_losses_is_shown_the_way(tmp_path):
    with pytest.raises(ValueError, match="got 'none'. Leave it at 'mean': each example's own loss is formed anyway"):
        Task(tmp_path).begin(criterion=nn.CrossEntropyLoss(reduction="none"))
