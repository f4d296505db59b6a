"""sampling="balls_in_bins": a pass over the loader is one charge, before its first step; whatever ends a pass, the next one is charged.

An audit stands beside every loop: it sees which examples were in which released step, and adds up what that costs.
"""

import functools
import json
import warnings
from itertools import islice

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ghostshard import PrivacyEngine
from ghostshard.accountants import ContourAccountant, PRVAccountant, epsilon_of_events, get_noise_multiplier, privacy_curve
from ghostshard.loaders import GhostDataLoader

N, BINS, DELTA = 40, 5, 1e-5
EVENT = {"type": "balls_in_bins_gaussian", "steps": BINS, "noise_multiplier": 1.0}


class Numbered(Dataset):
    """Example i begins with the number i."""

    def __init__(self):
        torch.manual_seed(5)
        self.x, self.y = torch.randn(N, 6), torch.randint(0, 3, (N,))
        self.x[:, 0] = torch.arange(N) / N

    def __len__(self):
        return N

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Run:
    """N examples in passes of BINS steps. released: the examples of every step that was released."""

    def __init__(self, *, accountant="contour", ledger=None, register=None, workers=0, **options):
        self.engine = PrivacyEngine(accountant=accountant)
        if ledger is not None:
            self.engine.attach_ledger(ledger)
        if register is not None:
            self.engine.attach_register(**register)
        torch.manual_seed(6)
        self.model = nn.Linear(6, 3)
        self.released, self.under_way = [], []
        self.arguments = {
            "module": self.model, "optimizer": torch.optim.SGD(self.model.parameters(), lr=0.1), "noise_multiplier": 1.0,
            "data_loader": DataLoader(Numbered(), batch_size=N // BINS, num_workers=workers), "max_grad_norm": 0.1,
            "grad_sample_mode": "ghost", "sampling": "balls_in_bins",
        } | options  # fmt: skip

    def begin(self):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="no ledger")
            make = self.engine.make_private_with_epsilon if "target_epsilon" in self.arguments else self.engine.make_private
            self.module, self.optimizer, self.criterion, self.loader = make(**self.arguments)
        return self

    def backward(self, x, y) -> None:
        self.criterion(self.module(x), y).backward()
        self.under_way += [round(float(each)) for each in x.detach().as_subclass(torch.Tensor)[:, 0] * N]

    def step(self, x, y) -> None:
        self.optimizer.zero_grad()
        self.under_way = []
        self.backward(x, y)
        self.optimizer.step()
        self.released.append(self.under_way)

    def train(self, passes=1, steps=None):
        for _ in range(passes):
            for x, y in islice(self.loader, steps):
                self.step(x, y)
        return self

    @property
    def charged(self) -> int:
        return sum(passes for _, _, passes in self.engine.accountant.history)

    def save(self, path) -> None:
        self.engine.save_checkpoint(path=path, module=self.module, optimizer=self.optimizer)

    def load(self, path) -> None:
        self.engine.load_checkpoint(path=path, module=self.module, optimizer=self.optimizer)


@functools.cache
def epsilon_of(passes: int, *adjacencies: str) -> float:
    every = adjacencies or ("zero-out", "add-or-remove")
    return max(epsilon_of_events([(EVENT, passes)], delta=DELTA, adjacency=each).upper for each in every)


def lines_of(ledger) -> list[dict]:
    return [line for line in map(json.loads, ledger.read_text().splitlines()) if line["type"] == "release"]


def test_a_pass_is_charged_whole_before_its_first_step(tmp_path):
    run = Run(ledger=tmp_path / "ledger.jsonl").begin()
    assert run.engine.get_epsilon(DELTA) == 0
    for i, (x, y) in enumerate(batch for _ in range(2) for batch in run.loader):
        run.optimizer.zero_grad()
        run.backward(x, y)
        assert run.charged == len(lines_of(tmp_path / "ledger.jsonl")) == 1 + i // BINS
        if i in (0, BINS):
            assert run.engine.get_epsilon(DELTA) == epsilon_of(run.charged), "the whole pass counts, before its gradient is there"
        run.optimizer.step()
    assert [(line["step"], line["attempt"], line["event"]) for line in lines_of(tmp_path / "ledger.jsonl")] == [(0, 0, EVENT), (BINS, 0, EVENT)]
    assert len(run.engine.accountant) == 1 and run.charged == 2


def test_each_example_is_in_one_step_of_each_pass():
    run = Run().begin().train(passes=3)
    for first in range(0, 3 * BINS, BINS):
        assert sorted(sum(run.released[first : first + BINS], [])) == list(range(N))


def test_the_report_knows_passes(tmp_path):
    run = Run(ledger=tmp_path / "ledger.jsonl").begin().train(passes=2)
    run.engine.report(tmp_path, delta=DELTA)
    report = json.loads((tmp_path / "privacy_report.json").read_text())
    assert report["sampler"]["assumed"] == report["sampler"]["executed"] == "balls-in-bins"
    assert report["sampler"]["executed_is_assumed"] is True and report["guarantee"]["applies"] is True
    assert report["guarantee"]["epsilon"]["upper"] == epsilon_of(2, "zero-out") <= run.engine.get_epsilon(DELTA)
    assert not [each for each in report["assumptions"] if "violated" in json.dumps(each).lower()]


# What ends a pass ----------------------------------------------------------------------------------------------------


def test_a_loop_that_breaks_ends_its_pass(tmp_path):
    run = Run(ledger=tmp_path / "ledger.jsonl").begin()
    run.train(steps=2).train(steps=1).train()
    assert run.charged == 3
    assert [line["step"] for line in lines_of(tmp_path / "ledger.jsonl")] == [0, 2, 3]


def test_an_exception_ends_a_pass():
    run = Run().begin()
    with pytest.raises(ZeroDivisionError):
        for x, y in run.loader:
            run.step(x, y)
            raise ZeroDivisionError
    run.train()
    assert run.charged == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_of_two_iterators_the_later_one_goes_on_alone(workers):
    run = Run(workers=workers).begin()
    first, second = iter(run.loader), iter(run.loader)
    run.step(*next(first))
    run.step(*next(second))
    with pytest.raises(RuntimeError, match="ended when the next iteration over the loader began"):
        run.step(*next(first))
    for x, y in second:
        run.step(x, y)
    assert run.charged == 2
    assert sorted(sum(run.released[1:], [])) == list(range(N))


def test_iterators_that_share_workers_do_not_mix_passes():
    """The later iterator takes over the workers; the earlier one would hand out its batches, as of a pass that is paid for."""
    data = DataLoader(Numbered(), batch_size=N // BINS, num_workers=1, persistent_workers=True)
    run = Run(data_loader=data).begin()
    first = iter(run.loader)
    run.step(*next(first))
    second = iter(run.loader)
    with pytest.raises(RuntimeError, match="with persistent_workers=True they share their workers"):
        next(first)
    for x, y in second:
        run.step(x, y)
    assert run.charged == 2
    assert sorted(sum(run.released[1:], [])) == list(range(N))


@pytest.mark.filterwarnings("ignore:a batch of the private loader was passed over")
def test_two_passes_at_once_are_refused():
    run = Run().begin()
    with pytest.raises(ValueError, match="another batch of the loader than the one at hand|examples: each example must be one unit"):
        for pair in zip(run.loader, run.loader, strict=True):
            for x, y in pair:
                run.step(x, y)
    assert not run.released


def test_a_batch_of_an_ended_pass_is_refused():
    run = Run().begin()
    old = next(iter(run.loader))
    run.step(*next(iter(run.loader)))
    with pytest.raises(RuntimeError, match="once: the last draw has had its step"):
        run.step(*old)


def test_other_parameters_to_train_end_a_pass(tmp_path):
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    run = Run(ledger=tmp_path / "ledger.jsonl", module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)).begin()
    batches = iter(run.loader)
    run.step(*next(batches))
    model[0].weight.requires_grad_(False)
    model[0].bias.requires_grad_(False)
    with pytest.raises(RuntimeError, match="begin another iteration over the loader"):
        run.step(*next(batches))
    run.train()
    assert run.charged == 2
    assert [line["step"] for line in lines_of(tmp_path / "ledger.jsonl")] == [0, 1]


# What is passed over, dropped or cut ---------------------------------------------------------------------------------


def test_draws_that_are_passed_over_cost_their_pass_once(tmp_path):
    run = Run(ledger=tmp_path / "ledger.jsonl").begin()
    with pytest.warns(UserWarning, match="passed over"):
        for i, (x, y) in enumerate(run.loader):
            if i in (0, 1, 3):
                continue
            run.step(x, y)
    assert run.charged == 1
    for _ in run.loader:
        pass
    assert run.charged == 2, "whether a step was made may depend on the data"
    run.train()
    assert run.charged == 3
    assert [line["step"] for line in lines_of(tmp_path / "ledger.jsonl")] == [0, 3, 4]
    run.engine.report(tmp_path, delta=DELTA)
    report = json.loads((tmp_path / "privacy_report.json").read_text())
    assert report["guarantee"]["epsilon"]["upper"] == epsilon_of(3, "zero-out")


def test_a_logical_batch_that_is_dropped_is_its_passes_step(tmp_path):
    run = Run(ledger=tmp_path / "ledger.jsonl").begin()
    for i, (x, y) in enumerate(batch for _ in range(2) for batch in run.loader):
        if i in (0, 3, BINS):
            run.backward(x, y)
            run.optimizer.zero_grad()
            continue
        run.step(x, y)
    assert run.charged == 2
    assert [(line["step"], line["attempt"]) for line in lines_of(tmp_path / "ledger.jsonl")] == [(0, 0), (BINS, 0)]


@pytest.mark.filterwarnings("ignore:a batch of the private loader was passed over")
def test_a_look_at_the_first_batch_is_a_pass():
    run = Run().begin()
    next(iter(run.loader))
    run.train()
    assert run.charged == 2


@pytest.mark.parametrize("options", [{"accumulation_steps": 2}, {"memory_budget": 0}, {"accumulate": True}], ids=str)
def test_a_draw_may_come_in_pieces(options, tmp_path):
    run = Run(ledger=tmp_path / "ledger.jsonl", **options).begin()
    pieces = options.get("accumulation_steps", 1)
    for _ in range(2):
        for i, (x, y) in enumerate(run.loader):
            run.backward(x, y)
            if (i + 1) % pieces == 0:
                run.optimizer.step()
                run.optimizer.zero_grad()
    assert run.charged == 2 == len(lines_of(tmp_path / "ledger.jsonl"))
    assert sorted(run.under_way) == sorted(2 * list(range(N)))


def test_a_batch_memory_manager_cuts_draws_of_a_pass():
    run = Run().begin()
    for _ in range(2):
        with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=3, optimizer=run.optimizer) as physical:
            for x, y in physical:
                run.optimizer.zero_grad()
                run.backward(x, y)
                run.optimizer.step()
    assert run.charged == 2
    assert sorted(run.under_way) == sorted(2 * list(range(N)))


# Terms ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["noise_multiplier", "max_grad_norm"])
@pytest.mark.filterwarnings("ignore:a batch of the private loader was passed over")
def test_terms_change_between_passes_alone(name):
    run = Run().begin()
    batches = iter(run.loader)
    run.step(*next(batches))
    setattr(run.optimizer, name, 0.5)
    with pytest.raises(ValueError, match="not within one"):
        run.step(*next(batches))
    run.train()
    assert run.charged == 2
    batches = iter(run.loader)
    next(batches)
    x, y = next(batches)  # the first one was passed over, and the pass charged
    setattr(run.optimizer, name, 1.0)
    with pytest.raises(ValueError, match="not within one"):
        run.step(x, y)


def test_noise_that_no_pass_is_bounded_with_is_refused():
    with pytest.raises(ValueError, match=r"from 0.05 to 1000, got 0.01"):
        Run(noise_multiplier=0.01).begin().train()
    run = Run(noise_multiplier=0.0).begin().train()
    assert run.engine.get_epsilon(DELTA) == float("inf")


def test_noise_for_a_target_pays_for_passes():
    run = Run(target_epsilon=3.0, target_delta=DELTA, epochs=2)
    del run.arguments["noise_multiplier"]
    run.begin().train(passes=2)
    assert 2.99 < run.engine.get_epsilon(DELTA) <= 3.0
    terms = {"target_epsilon": 3.0, "target_delta": DELTA, "sample_rate": 1 / BINS}
    assert run.optimizer.noise_multiplier == get_noise_multiplier(**terms, steps=2, bins=BINS)
    assert run.optimizer.noise_multiplier < get_noise_multiplier(**terms, steps=2 * BINS), "less than Poisson sampling needs"


# Checkpoints, registers, accountants ---------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [2, BINS])
def test_a_run_that_goes_on_begins_a_pass(steps, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    run = Run(ledger=ledger).begin().train(steps=steps)
    run.save(tmp_path / "saved")
    run.train(steps=1)  # and is lost
    run.engine._ghost.let_go_of_ledger()
    again = Run(ledger=ledger).begin()
    with pytest.warns(UserWarning, match="the ledger .* counts 2 steps"):
        again.load(tmp_path / "saved")
    assert again.engine.get_epsilon(DELTA) == epsilon_of(2)
    again.train(passes=2)
    assert again.engine.get_epsilon(DELTA) == epsilon_of(4)
    expected = [(0, 0), (steps, 0), (steps, 1), (steps + BINS, 0)]
    assert [(line["step"], line["attempt"]) for line in lines_of(ledger)] == expected
    again.engine.report(tmp_path, delta=DELTA)
    report = json.loads((tmp_path / "privacy_report.json").read_text())
    assert report["guarantee"]["epsilon"]["upper"] == epsilon_of(4, "zero-out")


def test_loading_within_a_pass_ends_it(tmp_path):
    run = Run(ledger=tmp_path / "ledger.jsonl").begin()
    batches = iter(run.loader)
    run.step(*next(batches))
    run.save(tmp_path / "saved")
    run.load(tmp_path / "saved")
    with pytest.raises(RuntimeError, match="begin another iteration over the loader"):
        run.step(*next(batches))
    run.train()
    assert run.charged == 2


@pytest.mark.parametrize("other", [{"sampling": None}, {"data_loader": DataLoader(Numbered(), batch_size=10)}], ids=["poisson", "bins"])
def test_a_checkpoint_is_of_its_sampling(other, tmp_path):
    Run().begin().train().save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"number of bins|passes with"):
        Run(**other).begin().load(tmp_path / "saved")


def test_a_register_counts_passes(tmp_path):
    (tmp_path / "data").write_bytes(b"data")
    register = {"path": tmp_path / "budgets.jsonl", "data": tmp_path / "data", "delta": DELTA}
    limit = epsilon_of(3, "zero-out") * (1 + 1e-9)
    Run(ledger=tmp_path / "one.jsonl", register=register | {"limit": limit}).begin().train(passes=2)
    run = Run(ledger=tmp_path / "two.jsonl", register=register).begin().train(steps=3)
    with pytest.raises(ValueError, match="with this run it would be"):
        run.train()
    assert len(lines_of(tmp_path / "two.jsonl")) == 1
    with pytest.raises(ValueError, match="would be"):
        Run(ledger=tmp_path / "three.jsonl", register=register | {"steps": 1}).begin()


@pytest.mark.parametrize("kind", [ContourAccountant, PRVAccountant])
def test_an_accountant_counts_passes(kind):
    accountant = kind()
    accountant.deal(BINS)
    for _ in range(3):
        accountant.step(noise_multiplier=1.0, sample_rate=1 / BINS)
    assert accountant.history == [(1.0, 1 / BINS, 3)]
    lower = max(epsilon_of_events([(EVENT, 3)], delta=DELTA, adjacency=each).lower for each in ("zero-out", "add-or-remove"))
    assert lower <= accountant.get_epsilon(DELTA) <= 1.01 * lower
    assert privacy_curve(accountant, deltas=[DELTA])[0].upper == accountant.get_epsilon(DELTA)
    with pytest.raises(ValueError, match="sample_rate must be 1/5"):
        accountant.step(noise_multiplier=1.0, sample_rate=0.25)
    with pytest.raises(ValueError, match="counts one kind"):
        accountant.deal(None)
    fresh = kind()
    with pytest.raises(ValueError, match="passes with the number of bins 5"):
        fresh.load_state_dict(accountant.state_dict())
    fresh.deal(BINS)
    fresh.load_state_dict(accountant.state_dict())
    assert fresh.get_epsilon(DELTA) == accountant.get_epsilon(DELTA)


REFUSED = {
    "opacus_mode": ({"grad_sample_mode": "hooks"}, {}, "sampling is of our modes alone"),
    "own_batches": ({"own_batches": True}, {}, "batches of your own"),
    "not_sampled": ({"poisson_sampling": False}, {}, "batches of your own"),
    "largest_batch": ({"max_batch_size": 12}, {}, "cannot be combined with max_batch_size"),
    "adaptive": ({"clipping": "adaptive"}, {}, "cannot be combined with clipping='adaptive'"),
    "rdp": ({}, {"accountant": "rdp"}, "'rdp' has no bound of balls-in-bins sampling"),
    "gdp": ({}, {"accountant": "gdp"}, "'gdp' has no bound of balls-in-bins sampling"),
    "one_bin": ({"data_loader": DataLoader(Numbered(), batch_size=N)}, {}, "needs from 2 to"),
    "unknown": ({"sampling": "bins"}, {}, "sampling must be one of"),
}


@pytest.mark.filterwarnings("ignore:accountant 'gdp'", "ignore:grad_sample_mode")
@pytest.mark.parametrize(("options", "engine", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_derived_is_refused(options, engine, message):
    with pytest.raises(ValueError, match=message):
        Run(**engine, **options).begin()


def test_a_sampler_that_is_changed_is_refused():
    run = Run().begin()
    run.loader.batch_sampler.bins = 3
    with pytest.raises(RuntimeError, match="sampler was changed"):
        run.train()
    assert run.charged == 0


def test_a_loader_that_deals_goes_on_dealing():
    loader = GhostDataLoader.from_data_loader(DataLoader(Numbered(), batch_size=N // BINS), sampling="balls_in_bins")
    run = Run(data_loader=loader, sampling=None).begin().train()
    assert run.charged == 1 and run.engine.accountant.bins == BINS
