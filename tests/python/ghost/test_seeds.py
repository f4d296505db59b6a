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


def both_of(engine):
    """Two runs of one engine, each with generators of its own."""
    return [begun(engine, coins=seeded(number), noise=seeded(10 + number)) for number in range(2)]


def unlike(earlier, later):
    """None of the draws, and none of the noise, came before."""
    noise_of = lambda runs: {tuple(each.tolist()) for _, noise in runs for each in noise}
    assert all(before[0] != now[0] for before, now in zip(earlier, later, strict=True))
    assert not noise_of(earlier) & noise_of(later)


@pytest.mark.parametrize("load", ["load_checkpoint", "load_state_dict"])
@pytest.mark.filterwarnings("ignore:no ledger|this PrivacyEngine has accounted")
def test_a_run_that_goes_on_repeats_no_key_of_any_model_of_its_engine(tmp_path, load):
    """Weights are those of a later step then, so two releases of one noise differ by gradients without noise."""
    engine = PrivacyEngine()
    runs = both_of(engine)
    (module, optimizer, _, _), saved = runs[0], engine.state_dict()
    engine.save_checkpoint(path=tmp_path / "first.pt", module=module, optimizer=optimizer)
    before = [passed(run, passes=1) for run in runs]
    later = PrivacyEngine()
    again = both_of(later)
    if load == "load_checkpoint":
        later.load_checkpoint(path=tmp_path / "first.pt", module=again[0][0], optimizer=again[0][1])
    else:
        later.load_state_dict(saved)
    unlike(before, [passed(run, passes=1) for run in again])


def test_a_model_that_is_made_private_after_a_checkpoint_was_loaded_has_keys_of_its_own():
    engine = PrivacyEngine()
    begun(engine)
    saved = engine.state_dict()
    before = [passed(begun(engine, coins=seeded(), noise=seeded(1)), passes=1)]
    later = PrivacyEngine()
    begun(later)
    later.load_state_dict(saved)
    unlike(before, [passed(begun(later, coins=seeded(), noise=seeded(1)), passes=1)])


@pytest.mark.parametrize("first", ["accountant", "optimizer"])
def test_an_optimizers_state_of_another_process_goes_on_with_other_keys(first):
    engine = PrivacyEngine()
    run = begun(engine, coins=seeded(), noise=seeded(1))
    before = [passed(run, passes=1)]
    loads = {"accountant": (PrivacyEngine(), engine.accountant.state_dict()), "optimizer": run[1].state_dict()}
    later, history = loads["accountant"]
    again = begun(later, coins=seeded(), noise=seeded(1))
    for each in (first, "accountant", "optimizer"):
        if each == "accountant":
            later.accountant.load_state_dict(history)
        else:
            again[1].load_state_dict(loads["optimizer"])
    unlike(before, [passed(again, passes=1)])


def test_a_state_that_an_optimizer_gave_in_this_process_changes_no_key():
    one, two = (begun(PrivacyEngine(), coins=seeded(), noise=seeded(1)) for _ in range(2))
    for run in (one, two):
        passed(run, passes=1)
    two[1].load_state_dict(two[1].state_dict())
    one, two = passed(one, passes=1), passed(two, passes=1)
    assert one[0] == two[0]


@pytest.mark.parametrize("given, said", [({"coins": seeded()}, "the data loader's generator"), ({"noise": seeded()}, "noise_generator")], ids=["coins", "noise"])
def test_a_register_adds_up_no_runs_of_a_seed(tmp_path, given, said):
    torch.save(data().tensors, tmp_path / "data.pt")
    engine = PrivacyEngine()
    engine.attach_ledger(tmp_path / "ledger.jsonl")
    engine.attach_register(tmp_path / "budgets.jsonl", data=tmp_path / "data.pt", limit=50.0, delta=1e-5)
    with pytest.raises(ValueError, match=f"those of one seed are not: leave out {said}"):
        begun(engine, **given)
    begun(engine)  # the call can be repeated
