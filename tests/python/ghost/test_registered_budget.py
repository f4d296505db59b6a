"""attach_register: engines that train on the same data add up, and none goes beyond the limit."""

import json
from itertools import islice

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine
from ghostshard._native import load
from ghostshard.accountants import ContourAccountant

DELTA = 1e-5
RATE = 0.2


def epsilon_of(steps: int) -> float:
    accountant = ContourAccountant()
    for _ in range(steps):
        accountant.step(noise_multiplier=1.0, sample_rate=RATE)
    return accountant.get_epsilon(DELTA)


class Run:
    """limit_steps: how many steps of all runs the limit has room for."""

    def __init__(self, folder, name: str, *, limit_steps: int | None, steps: int | None = None, data: bytes = b"data", **options):
        (folder / "data").write_bytes(data)
        self.engine = PrivacyEngine(accountant="contour")
        self.engine.attach_ledger(folder / f"{name}.jsonl")
        limit = None if limit_steps is None else epsilon_of(limit_steps) * (1 + 1e-9)
        self.engine.attach_register(folder / "budgets.jsonl", data=folder / "data", limit=limit, delta=DELTA, steps=steps)
        self.model = nn.Linear(4, 2)
        self.path = folder / f"{name}.pt"
        loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.randint(2, (20,))), batch_size=4)
        terms = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "grad_sample_mode": "ghost", **options}
        self.module, self.optimizer, self.criterion, self.loader = self.engine.make_private(
            module=self.model, optimizer=torch.optim.SGD(self.model.parameters(), lr=0.1), data_loader=loader,
            criterion=nn.CrossEntropyLoss(), **terms,
        )  # fmt: skip

    def train(self, steps: int = 5) -> None:
        for x, y in islice(self.loader, steps):
            self.optimizer.zero_grad()
            self.criterion(self.module(x), y).backward()
            self.optimizer.step()

    def save(self) -> None:
        """As the last thing that the process does: it lets go of the ledger."""
        self.engine.save_checkpoint(path=self.path, module=self.module, optimizer=self.optimizer)
        self.engine._ghost.let_go_of_ledger()

    def load(self) -> None:
        self.engine.load_checkpoint(path=self.path, module=self.module, optimizer=self.optimizer)


def releases(folder, name: str) -> int:
    return sum('"type":"release"' in line for line in (folder / f"{name}.jsonl").read_text().splitlines())


def lines(folder, kind: str) -> list[dict]:
    every = map(json.loads, (folder / "budgets.jsonl").read_text().splitlines())
    return [line for line in every if line["type"] == kind]


def test_engines_add_up_and_the_step_beyond_the_limit_is_not_taken(tmp_path):
    Run(tmp_path, "one", limit_steps=8).train(5)
    run = Run(tmp_path, "two", limit_steps=8)
    with pytest.raises(ValueError, match="with this run it would be"):
        run.train(5)
    assert releases(tmp_path, "two") == 3
    before = [p.detach().clone() for p in run.model.parameters()]
    with pytest.raises(ValueError, match="with this run it would be"):
        run.train(1)
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))
    assert releases(tmp_path, "two") == 3


def test_a_run_whose_plan_does_not_fit_does_not_begin(tmp_path):
    with pytest.raises(ValueError, match="0 run"):
        Run(tmp_path, "one", limit_steps=4, steps=5)
    assert not (tmp_path / "one.jsonl").exists()
    Run(tmp_path, "one", limit_steps=4, steps=4).train(4)


def test_a_run_goes_on_as_itself(tmp_path):
    run = Run(tmp_path, "one", limit_steps=5, steps=5)
    run.train(2)
    run.save()
    again = Run(tmp_path, "one", limit_steps=5, steps=5)  # the first process is gone; the limit has no room for another run
    again.load()
    again.train(3)
    assert len({line["run"] for line in lines(tmp_path, "session")}) == 1
    assert releases(tmp_path, "one") == 5


def test_a_run_that_goes_on_must_be_known(tmp_path):
    run = Run(tmp_path, "one", limit_steps=9)
    run.train(2)
    run.save()
    for name in ("budgets.jsonl", "budgets.jsonl.key"):
        (tmp_path / name).unlink()
    again = Run(tmp_path, "one", limit_steps=9)
    again.load()
    with pytest.raises(ValueError, match="does not know the run"):
        again.train(1)


@pytest.mark.parametrize("options", [{}, {"sampling": "balls_in_bins"}], ids=["draws", "passes"])
def test_a_register_that_was_put_back_is_not_gone_on_with(tmp_path, options):
    """All runs would be said to have spent less than this one alone."""
    register = tmp_path / "budgets.jsonl"
    run = Run(tmp_path, "one", limit_steps=30, **options)
    run.train(2)
    run.save()
    whole = register.read_bytes()
    every = whole.splitlines(keepends=True)
    register.write_bytes(b"".join(every[: next(number for number, line in enumerate(every) if b'"charge"' in line)]))
    again = Run(tmp_path, "one", limit_steps=30, **options)
    again.load()
    with pytest.raises(ValueError, match="it was put back to an earlier state"):
        again.train(1)
    again.engine._ghost.let_go_of_ledger()
    register.write_bytes(whole)
    again = Run(tmp_path, "one", limit_steps=30, **options)
    again.load()
    again.train(2)


def test_a_register_that_is_put_back_under_way_is_seen(tmp_path):
    register = tmp_path / "budgets.jsonl"
    run = Run(tmp_path, "one", limit_steps=9)
    run.train(1)
    before = register.read_bytes()
    Run(tmp_path, "two", limit_steps=9).train(2)
    run.train(1)
    whole = register.read_bytes()
    register.write_bytes(before)
    with pytest.raises(ValueError, match="it was put back to an earlier state"):
        run.train(1)
    with pytest.raises(ValueError, match="it was put back to an earlier state"):
        run.engine.report(tmp_path / "report", delta=DELTA)
    register.write_bytes(whole)
    run.train(1)
    assert "2 on this data in the register" in run.engine.report(tmp_path / "report", delta=DELTA)


def test_the_report_names_all_runs(tmp_path):
    Run(tmp_path, "one", limit_steps=9).train(3)
    run = Run(tmp_path, "two", limit_steps=9)
    run.train(2)
    said = run.engine.report(tmp_path / "report", delta=DELTA)
    assert "2 on this data in the register" in said
    made = json.loads((tmp_path / "report" / "privacy_report.json").read_text())
    assert made["tuning"]["budget_register"]["epsilon_of_all_runs_at_most"] == pytest.approx(epsilon_of(5), rel=1e-9)
    settings = made["further_facts"]["hyper_parameters"]
    assert settings["optimizer"] == "SGD" and settings["lr"] == 0.1 and "torch" in made["provenance"]["code"]
    assert made["provenance"]["data_fingerprint"] == lines(tmp_path, "session")[0]["data"]


def test_what_was_not_used_is_given_back(tmp_path):
    run = Run(tmp_path, "one", limit_steps=900, steps=500)  # a block of five
    run.train(3)
    assert [line["count"] for line in lines(tmp_path, "charge")] == [5]
    run.engine._budget._session = None  # as at the end of the process
    assert [charge["count"] for charge in lines(tmp_path, "end")[0]["charges"]] == [3]


def test_the_data_is_its_content(tmp_path):
    Run(tmp_path, "one", limit_steps=3).train(3)
    with pytest.raises(ValueError, match="its first run must give a limit"):
        Run(tmp_path, "two", limit_steps=None, data=b"other data")
    Run(tmp_path, "two", limit_steps=3, data=b"other data").train(3)
    assert len({line["data"] for line in lines(tmp_path, "session")}) == 2


def test_a_folder_is_its_files(tmp_path):
    from ghostshard.registered_budget import digest_of_data

    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    with pytest.raises(ValueError, match="a folder with files"):
        digest_of_data(folder)
    (folder / "deep" / "a").write_bytes(b"1")
    first = digest_of_data(folder)
    (folder / "deep" / "a").rename(folder / "a")
    assert digest_of_data(folder) != first, "names count"
    (folder / "a").rename(folder / "deep" / "a")
    assert digest_of_data(folder.rename(tmp_path / "moved")) == first, "the folder's own place does not"
    file = tmp_path / "moved" / "deep" / "a"
    assert digest_of_data(file) == load("engine").digest_of_file(str(file))


def test_what_a_register_needs(tmp_path):
    with pytest.raises(ValueError, match="noise_multiplier must be > 0"):
        Run(tmp_path, "one", limit_steps=3, noise_multiplier=0.0)
    run = Run(tmp_path, "two", limit_steps=3)
    with pytest.raises(ValueError, match="comes before make_private"):
        run.engine.attach_register(tmp_path / "budgets.jsonl", data=tmp_path / "data")
    engine = PrivacyEngine()
    engine.attach_register(tmp_path / "budgets.jsonl", data=tmp_path / "data")
    model = nn.Linear(4, 2)
    with pytest.raises(ValueError, match="attach_ledger"), pytest.warns(UserWarning):
        engine.make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
            data_loader=DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4), grad_sample_mode="ghost",
        )  # fmt: skip
