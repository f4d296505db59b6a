"""Runs that are saved, killed, continued and continued again: everything stays charged, no noise comes twice."""

import json
import os
import shutil
import warnings

import pytest
import torch
from launch import HERE, run_ranks
from private import hand_out
from torch import nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine

SCRIPT = HERE / "checkpoint_ranks_main.py"
Q = 0.2


# Sharded -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Two ranks: four steps, a checkpoint, two steps more, killed. Gone on with by four ranks, then by one."""
    folder = tmp_path_factory.mktemp("killed")
    for ranks, what in ((2, "save"), (4, "load"), (1, "load")):
        run_ranks(SCRIPT, ranks, str(folder), what)
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("save", "load4", "load1")}
    return folder, found


@pytest.mark.parametrize("name", ["load4", "load1"])
def test_weights_and_optimizer_state_come_back_on_another_number_of_ranks(killed, name):
    found = killed[1][name]
    assert found["weights"]
    assert found["state"] and all(found["state"].values()), found["state"]
    assert found["extra"] == {"epoch": 7}


def test_every_step_ever_taken_stays_charged(killed):
    _, found = killed
    assert found["save"]["history"] == [[1.0, Q, 6]]
    assert found["load4"]["before"]["history"] == [[1.0, Q, 6]]  # two after the checkpoint
    assert found["load4"]["after"]["history"] == [[1.0, Q, 9]]
    assert found["load1"]["before"]["history"] == [[1.0, Q, 9]]  # another future of the same checkpoint
    assert found["load1"]["after"]["history"] == [[1.0, Q, 12]]
    assert found["load4"]["before"]["epsilon"] >= found["save"]["epsilon"]
    assert any("ledger" in said and "counts 6 steps" in said and "accountant 4" in said for said in found["load4"]["warned"])


def test_no_noise_comes_twice(killed):
    _, found = killed
    noises = found["save"]["noises"] + found["load4"]["noises"] + found["load1"]["noises"]
    assert len(noises) == 11
    # A key that came again would repeat a whole step's; two of 594 float32 numbers are alike by chance once in hundreds of runs.
    assert len({value for noise in noises for value in noise}) >= sum(map(len, noises)) - 2


def test_the_ledger_tells_attempts_and_keys(killed):
    lines = [json.loads(line) for line in (killed[0] / "ledger.jsonl").read_text().splitlines()]
    charged = [(line["step"], line["attempt"]) for line in lines if line["type"] == "release"]
    assert charged == [*((step, 0) for step in range(6)), (4, 1), (5, 1), (6, 0), (4, 2), (5, 2), (6, 1)]
    keys = [line["run_id"] for line in lines if line["type"] in ("header", "epoch")]
    assert len(keys) == len(set(keys)) == 3


def test_half_a_batch_and_a_used_folder_are_refused(killed):
    folder, found = killed
    assert "between steps" in found["save"]["refused"]
    assert not (folder / "half").exists()
    assert "already and not empty" in found["save"]["twice"]


def test_torn_folders_are_named(killed, tmp_path):
    """Each of two ranks says the same; nothing hangs."""
    whole = killed[0] / "step4"
    shutil.copy(killed[0] / "ledger.jsonl", tmp_path)
    for name in ("torn_metadata", "torn_no_metadata", "torn_part", "torn_no_part"):
        shutil.copytree(whole, tmp_path / name)
    (tmp_path / "torn_metadata" / ".metadata").write_bytes((whole / ".metadata").read_bytes()[:40])
    (tmp_path / "torn_no_metadata" / ".metadata").unlink()
    with open(tmp_path / "torn_part" / "__0_0.distcp", "r+b") as file:
        file.truncate(100)
    (tmp_path / "torn_no_part" / "__1_0.distcp").unlink()
    run_ranks(SCRIPT, 2, str(tmp_path), "torn")
    said = json.loads((tmp_path / "torn.json").read_text())
    assert ".metadata, which is written last, is missing" in said["torn_no_metadata"]
    assert ".metadata cannot be read" in said["torn_metadata"]
    for part in ("torn_part", "torn_no_part"):
        assert "lacks a part, has a torn one" in said[part]


def test_the_engine_is_stateful(tmp_path):
    assert isinstance(PrivacyEngine(), Stateful)
    run_ranks(SCRIPT, 2, str(tmp_path), "stateful")
    found = json.loads((tmp_path / "stateful.json").read_text())
    assert found["weights"] and found["again"]
    assert found["history"] == [[1.0, Q, 1]]
    assert found["back"] == [[[1.0, Q, 4]]] * 2


def test_an_error_of_one_rank_is_heard_by_all(tmp_path):
    """Of whatever kind: two ranks that call alike never wait for each other."""
    run_ranks(SCRIPT, 2, str(tmp_path), "raises")
    said = json.loads((tmp_path / "raises.json").read_text())
    assert {name: said[name] for name in ("ValueError", "TypeError", "RuntimeError", "KeyError", "OSError")} == {
        "ValueError": ["ValueError: v"] * 2, "TypeError": ["TypeError: t", "ValueError: t"], "RuntimeError": ["RuntimeError: r"] * 2,
        "KeyError": ["KeyError: 'k'", "RuntimeError: KeyError: 'k'"], "OSError": ["OSError: o", "RuntimeError: OSError: o"],
    }  # fmt: skip
    assert said["path"][0].startswith("TypeError: ") and said["path"][1].startswith("ValueError: ")
    assert "the checkpoint is of accountant 'rdp'" in said["accountant"][1] and "rank 1 refused this" in said["accountant"][0]
    assert said["device"][1].startswith("AttributeError: ") and said["device"][0].startswith("ValueError: rank 1: ")


# One process: the same state within Opacus' file ---------------------------------------------------------------------


class Run:
    def __init__(self, ledger=None, n=20, seed=None, **options):
        torch.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
        data = TensorDataset(torch.randn(n, 6), torch.randint(0, 3, (n,)))
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        self.engine = PrivacyEngine(accountant="rdp")
        if ledger:
            self.engine.attach_ledger(ledger)
        arguments = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "grad_sample_mode": "ghost"} | options
        self.module, self.optimizer, self.criterion, self.loader = self.engine.make_private(
            module=self.model, optimizer=torch.optim.SGD(self.model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=n // 5, generator=generator), noise_generator=generator, **arguments,
        )  # fmt: skip

    def steps(self, count: int) -> torch.Tensor:
        for _ in range(count):
            self.optimizer.zero_grad()
            hand_out(self.loader, 0)
            self.criterion(self.module(torch.zeros(0, 6)), torch.zeros(0, dtype=torch.long)).backward()
            self.optimizer.step()
        return self.model[0].weight.grad.clone()

    def save(self, path) -> None:
        self.engine.save_checkpoint(path=path, module=self.module, optimizer=self.optimizer)

    def load(self, path) -> None:
        self.engine.load_checkpoint(path=path, module=self.module, optimizer=self.optimizer)

    @property
    def counted(self) -> int:
        return sum(steps for _, _, steps in self.engine.accountant.history)


pytestmark = pytest.mark.filterwarnings("ignore:no ledger")


def test_going_back_forgets_nothing(tmp_path):
    run = Run()
    run.steps(3)
    run.save(tmp_path / "at3")
    run.steps(4)
    run.load(tmp_path / "at3")
    assert run.counted == 7
    run.steps(1)
    run.load(tmp_path / "at3")
    run.load(tmp_path / "at3")
    assert run.counted == 8


def test_two_futures_of_a_checkpoint_add_up(tmp_path):
    first, second = Run(), Run()
    first.steps(3)
    first.save(tmp_path / "at3")
    second.load(tmp_path / "at3")
    second.steps(5)
    second.save(tmp_path / "second")
    first.steps(2)
    first.load(tmp_path / "second")
    assert first.counted == 3 + 2 + 5
    first.save(tmp_path / "both")
    third = Run()
    third.steps(1)  # of its own, on the same data
    third.load(tmp_path / "both")
    third.load(tmp_path / "second")
    assert third.counted == 11


def test_a_generator_of_the_same_seed_repeats_neither_noise_nor_coins_of_the_run_before(tmp_path):
    def drawn(run):
        return [tuple(batch) for batch in run.loader.batch_sampler]

    run = Run(seed=3)
    run.save(tmp_path / "at0")
    noise, coins = run.steps(1), drawn(run)
    again = Run(seed=3)
    assert torch.equal(again.steps(1), noise) and drawn(again) == coins  # the purpose of a generator
    futures = [Run(seed=3) for _ in range(2)]
    for future in futures:
        future.load(tmp_path / "at0")
    noises = [noise, *(future.steps(1) for future in futures)]
    masks = [coins, *(drawn(future) for future in futures)]
    assert not any(torch.equal(noises[i], noises[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert masks[0] != masks[1] != masks[2] != masks[0]


def test_going_back_with_a_ledger_makes_new_attempts(tmp_path):
    run = Run(tmp_path / "ledger.jsonl")
    run.save(tmp_path / "at0")
    run.steps(2)
    run.save(tmp_path / "at2")
    run.steps(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.load(tmp_path / "at2")  # ledger and accountant agree: this process took those steps itself
    run.steps(3)
    run.load(tmp_path / "at0")
    run.steps(1)
    assert run.counted == 8
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    charged = [(line["step"], line["attempt"]) for line in lines if line["type"] == "release"]
    assert charged == [(0, 0), (1, 0), (2, 0), (3, 0), (2, 1), (3, 1), (4, 0), (0, 1)]


def test_the_larger_count_wins_where_accountant_and_ledger_disagree(tmp_path):
    run = Run(tmp_path / "ledger.jsonl")
    run.steps(2)
    run.engine.accountant.step(noise_multiplier=1.0, sample_rate=Q)  # by hand: the ledger does not have it
    run.save(tmp_path / "at2")
    del run
    other = Run(tmp_path / "ledger.jsonl")
    with pytest.warns(UserWarning, match="counts 2 steps, the checkpoint's accountant 3: 3 are counted"):
        other.load(tmp_path / "at2")
    assert other.counted == 3


def refused(run: Run, path, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run.load(path)
    with pytest.raises(RuntimeError, match="checkpoint could"):
        run.steps(1)


def test_ledgers_that_prove_nothing_are_refused(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    run = Run(ledger)
    run.steps(2)
    run.save(tmp_path / "at2")
    run.engine._ghost.detach()
    lines = ledger.read_text().splitlines(keepends=True)

    refused(Run(), tmp_path / "at2", "keeps a ledger .* attach_ledger")
    refused(Run(tmp_path / "other.jsonl"), tmp_path / "at2", "other.jsonl")
    assert not os.path.exists(tmp_path / "other.jsonl")
    (tmp_path / "cut.jsonl").write_text("".join(lines[:2]))
    refused(Run(tmp_path / "cut.jsonl"), tmp_path / "at2", "what was spent cannot be proven")
    (tmp_path / "edited.jsonl").write_text("".join([lines[0], lines[2]]))
    refused(Run(tmp_path / "edited.jsonl"), tmp_path / "at2", "taken out")
    refused(Run(ledger, n=25), tmp_path / "at2", "with units 20, this one has 25")
    with pytest.warns(UserWarning, match="as if it held every example"):
        other_sampler = Run(ledger, poisson_sampling=False)
    refused(other_sampler, tmp_path / "at2", "with facts")

    without = Run()
    without.steps(1)
    without.save(tmp_path / "without")
    refused(Run(tmp_path / "new.jsonl"), tmp_path / "without", "kept no ledger")


def test_states_of_something_else_are_refused(tmp_path):
    run = Run()
    run.steps(1)
    state = json.loads(run.engine.state_dict()["state"])
    for change in ({"schema": "x/2"}, {"branches": {"a": {"history": [[1.0, 0.1, -3]], "ledger": None}}}, {"step": -1}):
        with pytest.raises(ValueError, match="not one that this version wrote"):
            run.engine.load_state_dict({"state": json.dumps(state | change)})
    with pytest.raises(ValueError, match="not one that this version wrote"):
        run.engine.load_state_dict({})
    with pytest.raises(RuntimeError, match="checkpoint could"):
        run.steps(1)
    run.engine.load_state_dict({"state": json.dumps(state)})
    run.steps(1)
    with pytest.raises(ValueError, match=r"make_private"):
        PrivacyEngine().state_dict()


def test_saving_and_loading_within_a_logical_batch_are_refused(tmp_path):
    run = Run()
    run.save(tmp_path / "at0")
    hand_out(run.loader, 2)
    run.criterion(run.module(torch.ones(2, 6)), torch.zeros(2, dtype=torch.long)).backward()
    for call in (run.save, run.load):
        with pytest.raises(RuntimeError, match="between steps"):
            call(tmp_path / "at0")
    run.optimizer.step()
    assert run.counted == 1


def test_other_terms_are_said(tmp_path):
    run = Run()
    run.steps(1)
    run.save(tmp_path / "at1")
    with pytest.warns(UserWarning, match=r"noise_multiplier 1\.0 there, 2\.0 here"):
        Run(noise_multiplier=2.0).load(tmp_path / "at1")
