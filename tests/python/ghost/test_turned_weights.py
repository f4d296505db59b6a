"""Optimizers that evaluate other weights than those that they train (schedule-free ones), by train() and eval() of their own."""

import json

import pytest
import torch
from private_run import Run


class Turning(torch.optim.SGD):
    """Evaluated is the mean of all steps' weights."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.5)
        self.count, self.trains = 0, True

    @torch.no_grad()
    def step(self, closure=None):
        assert self.trains
        super().step()
        self.count += 1
        for p in self.param_groups[0]["params"]:
            mean = self.state[p].setdefault("mean", p.detach().clone())
            mean.lerp_(p, 1 / self.count)

    @torch.no_grad()
    def _exchange(self, trains):
        for p in self.param_groups[0]["params"] if self.trains is not trains and self.count else ():
            trained, mean = p.clone(), self.state[p]["mean"]
            p.copy_(mean)
            mean.copy_(trained)
        self.trains = trains

    def train(self):
        self._exchange(True)

    def eval(self):
        self._exchange(False)


def run_of(**options):
    run = Run(**options)
    run.optimizer.original_optimizer = Turning(run.model.parameters())
    return run


def test_weights_are_turned_for_an_evaluation_a_checkpoint_and_a_report(tmp_path):
    run = run_of(ledger=tmp_path / "ledger.jsonl")
    run.optimizer.train()
    for _ in range(2):
        for number, (x, y) in enumerate(run.loader):
            run.step(x, y)
            if number % 2:
                trained = run.model.weight.detach().clone()
                run.optimizer.eval()
                assert not torch.equal(run.model.weight, trained) or number == 0
                run.module(torch.randn(3, 6))
                run.optimizer.train()
                assert torch.equal(run.model.weight, trained)
    run.optimizer.eval()
    run.engine.save_checkpoint(path=tmp_path / "saved.pt", module=run.module, optimizer=run.optimizer)
    run.engine.report(tmp_path / "report", delta=1e-5)
    said = json.loads((tmp_path / "report" / "privacy_report.json").read_text())["provenance"]["weights_after"]
    assert said.startswith("sha256:") and run.charged == 10


@pytest.mark.parametrize("name", ["train", "eval"])
def test_weights_that_others_changed_are_not_turned_into_the_runs(name):
    run = run_of()
    batches = iter(run.loader)
    run.step(*next(batches))
    with torch.no_grad():
        run.model.weight.add_(torch.randn(3, 6))
    with pytest.raises(RuntimeError, match="is not what the last step of the private optimizer made of it"):
        getattr(run.optimizer, name)()
    with pytest.raises(RuntimeError, match="is not what the last step of the private optimizer made of it"):
        run.step(*next(batches))


def test_other_optimizers_have_none():
    run = Run()
    assert not hasattr(run.optimizer, "train") and not hasattr(run.optimizer, "eval")
