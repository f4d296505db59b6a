"""max_batch_size: no step takes more examples, each is charged as truncated Poisson sampling, and the report says so."""

import json
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine
from ghostshard.accountants import ContourAccountant, RDPAccountant, epsilon_of_events, get_noise_multiplier, privacy_curve
from ghostshard.loaders.plan import coin_rate

N, BATCH, CAP, DELTA = 40, 8, 10, 1e-5
EVENT = {"type": "truncated_poisson_gaussian", "units": N, "sampling_rate": coin_rate(0.2), "cap": CAP, "noise_multiplier": 1.0}


class Run:
    def __init__(self, *, accountant="contour", ledger=None, **options):
        torch.manual_seed(5)
        data = TensorDataset(torch.randn(N, 6), torch.randint(0, 3, (N,)))
        self.engine = PrivacyEngine(accountant=accountant)
        if ledger is not None:
            self.engine.attach_ledger(ledger)
        self.model = nn.Linear(6, 3)
        self.arguments = {
            "module": self.model, "optimizer": torch.optim.SGD(self.model.parameters(), lr=0.1), "noise_multiplier": 1.0,
            "data_loader": DataLoader(data, batch_size=BATCH), "max_grad_norm": 0.1, "grad_sample_mode": "ghost",
        } | {"max_batch_size": CAP} | options  # fmt: skip

    def begin(self):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="no ledger")
            self.module, self.optimizer, self.criterion, self.loader = self.engine.make_private(**self.arguments)
        return self

    def train(self, passes=1) -> list[int]:
        sizes = []
        for x, y in (batch for _ in range(passes) for batch in self.loader):
            self.optimizer.zero_grad()
            self.criterion(self.module(x), y).backward()
            self.optimizer.step()
            sizes.append(len(x))
        return sizes

    def save(self, path) -> None:
        self.engine.save_checkpoint(path=path, module=self.module, optimizer=self.optimizer)

    def load(self, path) -> None:
        self.engine.load_checkpoint(path=path, module=self.module, optimizer=self.optimizer)


def charged(steps: int, *adjacencies: str) -> float:
    """By default the worse of both: the report is of zero-out, Opacus' neighbours are of add-or-remove."""
    every = adjacencies or ("zero-out", "add-or-remove")
    return max(epsilon_of_events([(EVENT, steps)], delta=DELTA, adjacency=each).upper for each in every)


@pytest.mark.parametrize(("units", "cap", "rate", "worse"), [(60000, 300, 256 / 60000, "add-or-remove"), (N, CAP, 0.2, "add-or-remove")])
def test_a_curve_has_the_worse_adjacency_as_the_report_has(units, cap, rate, worse):
    accountant = ContourAccountant()
    accountant.truncate((units, cap))
    for _ in range(20):
        accountant.step(noise_multiplier=1.1, sample_rate=coin_rate(rate))
    of = {each: privacy_curve(accountant, deltas=[DELTA], adjacency=each)[0].upper for each in ("zero-out", "add-or-remove")}
    assert max(of, key=of.get) == worse
    assert privacy_curve(accountant, deltas=[DELTA])[0].upper == accountant.get_epsilon(DELTA) == of[worse]


def test_steps_are_charged_as_what_they_are(tmp_path):
    run = Run(ledger=tmp_path / "ledger.jsonl").begin()
    sizes = run.train(passes=4)
    assert len(sizes) == 20 and max(sizes) <= CAP
    assert run.engine.get_epsilon(DELTA) == charged(20)
    assert run.engine.accountant.delta_bound(charged(20)).upper == pytest.approx(DELTA, rel=1e-4)
    assert privacy_curve(run.engine.accountant, deltas=[DELTA], adjacency="add-or-remove")[0].upper == charged(20, "add-or-remove")
    header, *lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert header["maximum_batch"] == CAP and header["sampling_rate"] == EVENT["sampling_rate"]
    assert [line["event"] for line in lines] == [EVENT] * 20
    run.engine.report(tmp_path)
    report = json.loads((tmp_path / "privacy_report.json").read_text())
    assert report["sampler"]["assumed"] == report["sampler"]["executed"] == "truncated-poisson"
    assert report["sampler"]["executed_is_assumed"] is True and report["guarantee"]["applies"] is True
    assert report["population_and_steps"]["maximum_batch"] == CAP
    at = report["guarantee"]["delta"]
    expected = epsilon_of_events([(EVENT, 20)], delta=at, adjacency="zero-out").upper
    assert report["guarantee"]["epsilon"]["upper"] == expected


def test_noise_for_a_target_pays_for_the_truncation():
    run = Run()
    del run.arguments["noise_multiplier"]
    run.arguments |= {"target_epsilon": 3.0, "target_delta": DELTA, "epochs": 2}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no ledger")
        run.module, run.optimizer, run.criterion, run.loader = run.engine.make_private_with_epsilon(**run.arguments)
    run.train(passes=2)
    assert 2.99 < run.engine.get_epsilon(DELTA) <= 3.0
    terms = {"target_epsilon": 3.0, "target_delta": DELTA, "sample_rate": 0.2, "steps": 10}
    assert run.optimizer.noise_multiplier > 1.01 * get_noise_multiplier(**terms)


def test_a_checkpoint_goes_on_with_the_same_largest_batch(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    run = Run(ledger=ledger).begin()
    run.train()
    run.save(tmp_path / "saved")
    run.engine._ghost.let_go_of_ledger()
    again = Run(ledger=ledger).begin()
    again.load(tmp_path / "saved")
    again.train()
    assert again.engine.get_epsilon(DELTA) == charged(10)
    again.engine._ghost.let_go_of_ledger()
    for other in (None, CAP + 1):
        with pytest.raises(ValueError, match=r"truncation \(units, cap\)|largest batch"):
            Run(ledger=ledger, max_batch_size=other).begin().load(tmp_path / "saved")


@pytest.mark.parametrize("other", [None, (N, CAP + 1)])
def test_an_accountant_counts_one_kind(other):
    accountant = ContourAccountant()
    accountant.truncate((N, CAP))
    accountant.step(noise_multiplier=1.0, sample_rate=0.2)
    with pytest.raises(ValueError, match="counts one kind"):
        accountant.truncate(other)
    fresh = ContourAccountant()
    fresh.truncate(other)
    with pytest.raises(ValueError, match=r"truncation \(units, cap\) \(40, 10\)"):
        fresh.load_state_dict(accountant.state_dict())
    fresh.truncate((N, CAP))
    fresh.load_state_dict(accountant.state_dict())
    assert fresh.get_epsilon(DELTA) == accountant.get_epsilon(DELTA)


@pytest.mark.parametrize(("units", "q", "cap", "worse"), [(40, 0.2, 10, "add-or-remove"), (60_000, 256 / 60_000, 300, "add-or-remove")])
def test_the_worse_adjacency_counts(units, q, cap, worse):
    accountant = ContourAccountant()
    accountant.truncate((units, cap))
    for _ in range(20):
        accountant.step(noise_multiplier=1.0, sample_rate=q)
    event = {**EVENT, "units": units, "sampling_rate": q, "cap": cap}
    found = {each: epsilon_of_events([(event, 20)], delta=DELTA, adjacency=each).upper for each in ("zero-out", "add-or-remove")}
    assert accountant.get_epsilon(DELTA) == found[worse] > min(found.values())
    terms = {"target_epsilon": found[worse], "target_delta": DELTA, "sample_rate": q, "steps": 20}
    assert get_noise_multiplier(**terms, truncation=(units, cap)) == pytest.approx(1.0, rel=1e-5)


def test_opacus_orders_say_nothing_of_truncated_batches():
    accountant = RDPAccountant()
    accountant.truncate((N, CAP))
    accountant.step(noise_multiplier=1.0, sample_rate=0.2)
    assert accountant.get_epsilon(DELTA) > 0
    with pytest.raises(ValueError, match="leave alphas out"):
        accountant.get_epsilon(DELTA, alphas=[2.0])
    with pytest.raises(ValueError, match="leave alphas out"):
        accountant.get_privacy_spent(delta=DELTA)


REFUSED = {
    "opacus_mode": ({"grad_sample_mode": "hooks"}, {}, "of our modes alone"),
    "own_batches": ({"own_batches": True}, {}, "batches of your own"),
    "adaptive": ({"clipping": "adaptive"}, {}, "clip norm that adapts"),
    "gdp": ({}, {"accountant": "gdp"}, "cannot bound truncated batches"),
    "too_small": ({"max_batch_size": BATCH - 1}, {}, "from the expected batch"),
}


@pytest.mark.filterwarnings("ignore:accountant 'gdp'", "ignore:grad_sample_mode")
@pytest.mark.parametrize(("options", "engine", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_derived_is_refused(options, engine, message):
    with pytest.raises(ValueError, match=message):
        Run(**engine, **options).begin()


def test_a_register_counts_other_steps(tmp_path):
    (tmp_path / "data").write_bytes(b"data")
    run = Run(ledger=tmp_path / "ledger.jsonl")
    run.engine.attach_register(tmp_path / "budgets.jsonl", data=tmp_path / "data", limit=9.0)
    with pytest.raises(ValueError, match="budget register counts steps without a largest batch"):
        run.begin()


def test_a_call_that_was_refused_leaves_nothing_behind():
    run = Run()
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    run.arguments |= {"module": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    with pytest.raises(ValueError, match="BatchNorm"):
        run.begin()
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    run.arguments |= {"module": run.model, "optimizer": optimizer, "max_batch_size": None}
    run.begin().train()
    assert run.engine.accountant.truncation is None


def test_the_loose_accountant_says_so():
    with pytest.warns(UserWarning, match='"prv" bounds truncated batches loosely'):
        Run(accountant="prv").begin()


def test_the_loose_accountant_says_so_of_a_target_that_it_does_not_reach():
    terms = {"target_epsilon": 3.0, "target_delta": 1e-3, "sample_rate": 1 / 6, "steps": 18, "truncation": (50, 12)}
    with pytest.raises(ValueError, match="epsilon is still inf.*'prv' bounds truncated batches loosely.* take 'contour'"):
        get_noise_multiplier(**terms, accountant="prv")
    assert get_noise_multiplier(**terms, accountant="contour") > 0
