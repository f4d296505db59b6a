"""A generator of the program's own decides coins or noise: the report says so, a register refuses it, and no key comes twice in an engine."""

import json
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine

N = 40


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def data():
    return TensorDataset(torch.arange(6.0 * N).reshape(N, 6), torch.arange(N) % 3)


def begun(engine, *, coins=None, noise=None, **options):
    torch.manual_seed(5)
    model = nn.Linear(6, 3)
    return engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data(), batch_size=8, generator=coins),
        noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost", noise_generator=noise, **options,
    )  # fmt: skip


def passed(run, passes=2, before=lambda: None):
    """The examples of each draw, and what each step of sums that are 0 released: noise alone."""
    module, optimizer, criterion, loader = run
    drawn, noise = [], []
    for _ in range(passes):
        before()
        for x, y in loader:
            drawn.append((x[:, 0] / 6).long().tolist())
            optimizer.zero_grad()
            (criterion(module(x), y) * 0.0).backward()
            optimizer.step()
            noise.append(module.engine.model.weight.grad.flatten())
    return drawn, noise


def warned_of_seeds(**keywords):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        begun(PrivacyEngine(), **keywords)
    return [str(each.message) for each in said if "seed" in str(each.message)]


def test_a_seed_is_told_when_the_run_begins():
    assert warned_of_seeds() == warned_of_seeds(coins=seeded(), own_batches=True) == []
    (coins,), (noise,), (both,) = (warned_of_seeds(coins=seeded()), warned_of_seeds(noise=seeded()), warned_of_seeds(coins=seeded(), noise=seeded()))
    assert "the data loader's generator decides which examples are drawn: epsilon does not hold" in coins
    assert "noise_generator decides the noise: epsilon does not hold" in noise
    assert "the data loader's generator and noise_generator decide which examples are drawn and the noise" in both


@pytest.mark.parametrize("given, said", [
    ({}, None), ({"coins": seeded(), "own_batches": True}, None), ({"coins": seeded()}, "decides which examples are drawn."), ({"noise": seeded()}, "decides the noise."),
    ({"coins": seeded(), "noise": seeded()}, "decides which examples are drawn and the noise."),
], ids=["none", "own_batches", "coins", "noise", "both"])  # fmt: skip
def test_the_report_assumes_that_the_seed_is_secret(tmp_path, given, said):
    engine = PrivacyEngine()
    engine.attach_ledger(tmp_path / "ledger.jsonl")
    passed(begun(engine, **given), passes=1)
    engine.report(tmp_path, delta=1e-5)
    report = json.loads((tmp_path / "privacy_report.json").read_text())
    found = [json.dumps(each) for each in report["assumptions"] if "seed" in json.dumps(each)]
    assert len(found) == (said is not None)
    if said:
        assert said in found[0]


def test_a_run_of_a_seed_can_be_repeated():
    one, two = (passed(begun(PrivacyEngine(), coins=seeded(), noise=seeded(1))) for _ in range(2))
    assert one[0] == two[0]
    torch.testing.assert_close(one[1], two[1], rtol=0, atol=0)


def test_two_runs_of_one_engine_toss_their_own_coins():
    engine = PrivacyEngine()
    one, two = (passed(begun(engine, coins=seeded())) for _ in range(2))
    assert one[0] != two[0]


def test_two_runs_of_one_engine_have_noise_of_their_own():
    engine = PrivacyEngine()
    one, two = (passed(begun(engine, noise=seeded())) for _ in range(2))
    assert not any(torch.equal(a, b) for a, b in zip(one[1], two[1], strict=True))


def test_a_generator_that_is_seeded_again_does_not_repeat_noise():
    noise = seeded()
    run = begun(PrivacyEngine(), noise=noise)
    _, released = passed(run, passes=2, before=lambda: noise.manual_seed(0))
    assert len({tuple(each.tolist()) for each in released}) == len(released)


@pytest.mark.parametrize("given, said", [({"coins": seeded()}, "the data loader's generator"), ({"noise": seeded()}, "noise_generator")], ids=["coins", "noise"])
def test_a_register_adds_up_no_runs_of_a_seed(tmp_path, given, said):
    torch.save(data().tensors, tmp_path / "data.pt")
    engine = PrivacyEngine()
    engine.attach_ledger(tmp_path / "ledger.jsonl")
    engine.attach_register(tmp_path / "budgets.jsonl", data=tmp_path / "data.pt", limit=50.0, delta=1e-5)
    with pytest.raises(ValueError, match=f"those of one seed are not: leave out {said}"):
        begun(engine, **given)
    begun(engine)  # the call can be repeated
