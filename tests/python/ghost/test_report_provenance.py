"""What a report says of where the run comes from: code, day, and the weights it began and ended with."""

import json
import subprocess
from datetime import UTC, datetime

import pytest
import torch
from launch import HERE, run_ranks
from private_run import Run
from torch import nn

from ghostshard import digest_of_weights
from ghostshard.code_id import code_commit, code_id
from ghostshard.commit import commit_of
from ghostshard.run_header import OF_THE_PROGRAM


def read(folder) -> dict:
    return json.loads((folder / "privacy_report.json").read_text())["provenance"]


def train(run: Run) -> None:
    for x, y in run.loader:
        run.step(x, y)


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def test_a_report_names_code_day_and_weights(tmp_path, binary):
    run = Run(ledger=tmp_path / "ledger.jsonl", model=model(1))
    run.model.load_state_dict(model(2).state_dict())  # after make_private(): the run begins with its first step
    train(run)
    run.engine.report(tmp_path, delta=1e-5)
    found = read(tmp_path)
    assert found["weights_before"] == digest_of_weights(model(2)) != digest_of_weights(model(1))
    torch.save(run.model.state_dict(), tmp_path / "model.pt")
    released = model(3)
    released.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert found["weights_after"] == digest_of_weights(released) != found["weights_before"]
    assert found["code"] == found["code_of_report"] == code_id() and found["code_commit"] == code_commit()
    assert found["begun_on"] == datetime.now(UTC).date().isoformat()
    assert (found["ranks"], found["mesh"]) == (1, "1x1x1") and found["config_hash"].startswith("sha256:")
    assert found["data_fingerprint"].startswith("none")
    account = binary.with_name("ghostshard-account")
    words = [account, "verify", "--ledger", tmp_path / "ledger.jsonl", "--report", tmp_path / "privacy_report.json"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    (stated,) = (line for line in done.stdout.splitlines() if "provenance" in line and "stated after the run" in line)
    assert "weights_after" in stated and "weights_before" not in stated
    report = json.loads((tmp_path / "privacy_report.json").read_text())
    report["provenance"]["weights_before"] = digest_of_weights(model(1))
    (tmp_path / "privacy_report.json").write_text(json.dumps(report))
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    assert done.returncode == 1 and "provenance.weights_before" in done.stdout


KINDS = {
    "poisson": {}, "the caller's own batches": {"own_batches": True}, "the caller's word": {"allow_vouched": True}, "groups": {"noise_bands": 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_report_names_what_the_program_is_trusted_with(tmp_path, kind):
    """What leaves torch, and what was computed outside of the loop, is seen by no engine."""
    run = Run(ledger=tmp_path / "ledger.jsonl", **KINDS[kind])
    train(run)
    run.engine.report(tmp_path, delta=1e-5)
    report = json.loads((tmp_path / "privacy_report.json").read_text())
    (found,) = (each for each in report["assumptions"] if OF_THE_PROGRAM in json.dumps(each, ensure_ascii=False))
    assert "holds" not in found or found["holds"] is None
    for word in ("NumPy", "losses that were read", "inputs are scaled by", "another model", "when the training ended", "one example alone"):
        assert word in OF_THE_PROGRAM


def test_a_run_that_goes_on_keeps_the_weights_that_it_began_with(tmp_path):
    first = Run(ledger=tmp_path / "ledger.jsonl", model=model(1))
    train(first)
    first.engine.save_checkpoint(path=tmp_path / "checkpoint", module=first.module, optimizer=first.optimizer)
    first.engine._ghost.let_go_of_ledger()
    again = Run(ledger=tmp_path / "ledger.jsonl", model=model(2))
    again.engine.load_checkpoint(path=tmp_path / "checkpoint", module=again.module, optimizer=again.optimizer)
    train(again)
    again.engine.report(tmp_path, delta=1e-5)
    found = read(tmp_path)
    assert found["weights_before"] == digest_of_weights(model(1))
    assert found["weights_after"] == digest_of_weights(again.model)


CHANGES = {
    "a value": lambda m: m[0].weight.data[0, 0].add_(1e-6),
    "a type": lambda m: m.double(),
    "a name": lambda m: m.register_module("3", m._modules.pop("2")),
    "a shape": lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach().view(6, 5))),
    "the order of rows": lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach().flip(0))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_digest_tells_models_apart(name):
    other = model(1)
    CHANGES[name](other)
    assert digest_of_weights(other) != digest_of_weights(model(1))


def test_a_digest_knows_wrappers_types_and_empty_parameters():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    assert digest_of_weights(Wrapper(Wrapper(model(1)))) == digest_of_weights(model(1))
    assert digest_of_weights(torch.compile(model(1))) == digest_of_weights(model(1))
    odd = nn.ParameterDict({"none": torch.empty(0, 3), "scalar": torch.tensor(1.0), "bf16": torch.ones(3, dtype=torch.bfloat16)})
    assert digest_of_weights(odd) == digest_of_weights(odd)


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    run_ranks(HERE / "weights_ranks_main.py", 2, str(folder / "results.json"), str(folder))
    return folder, json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("mesh", ["1x2", "2x1"])
def test_ranks_gather_the_whole_model(on_ranks, mesh):
    folder, found = on_ranks
    plain = nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3, bias=False))
    plain.load_state_dict(torch.load(folder / f"{mesh}.pt"))
    every = read(folder / f"{mesh}_every")
    assert every["weights_after"] == found[mesh]["after"] == digest_of_weights(plain)
    torch.manual_seed(3)
    assert every["weights_before"] == found[mesh]["before"] == digest_of_weights(nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3, bias=False)))
    assert (every["ranks"], every["mesh"]) == (2, f"{mesh}x1")
    one, two = found[mesh]["summaries"]
    assert one == two and "epsilon" in one


def test_one_rank_alone_does_not_know_the_weights_of_a_sharded_model(on_ranks):
    assert read(on_ranks[0] / "1x2_one")["weights_after"].startswith("not known: the model is sharded")


def test_replicas_that_differ_are_refused_on_all_ranks(on_ranks):
    folder, found = on_ranks
    assert all("the model's starting weights on rank 1" in said for said in found["unlike replicas"]), found["unlike replicas"]
    assert not list(folder.glob("2x1_1*.jsonl"))


def git(tree, *words) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", "-C", str(tree), *identity, *words], check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_says_whether_files_of_the_library_are_changed(tmp_path):
    assert commit_of(tmp_path) is None
    (tmp_path / "dp").mkdir()
    for file in (tmp_path / "dp" / "code.cpp", tmp_path / "notes"):
        file.write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit_of(tmp_path) == head
    (tmp_path / "notes").write_text("2")
    assert commit_of(tmp_path) == head
    (tmp_path / "dp" / "code.cpp").write_text("2")
    assert commit_of(tmp_path) == f"{head} with changes"


def test_without_git_the_commit_is_not_known(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    assert commit_of(tmp_path) is None  # no history
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(tmp_path) is None


def test_a_report_names_the_optimizer_that_stepped_last(tmp_path):
    """Another one may take its place beneath."""
    run = Run(ledger=tmp_path / "ledger.jsonl")
    train(run)
    run.optimizer.original_optimizer = torch.optim.Adam(run.model.parameters(), lr=0.25)
    train(run)
    run.engine.report(tmp_path, delta=1e-5)
    found = json.loads((tmp_path / "privacy_report.json").read_text())["further_facts"]["hyper_parameters"]
    assert (found["optimizer"], found["lr"]) == ("Adam", 0.25)
