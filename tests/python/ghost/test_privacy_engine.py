"""The interface: an Opacus user's program, with one import changed."""

import json
import warnings

import opacus
import pytest
import torch
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from private import hand_out
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ghostshard
from ghostshard import PrivacyEngine

N = 40


def task(batch_size: int = 8):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    data = TensorDataset(torch.randn(N, 6), torch.randint(0, 3, (N,)))
    return model, torch.optim.SGD(model.parameters(), lr=0.5), DataLoader(data, batch_size=batch_size)


def private(engine=None, batch_size=8, **options):
    model, optimizer, loader = task(batch_size)
    arguments = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "grad_sample_mode": "ghost"} | options
    engine = engine or PrivacyEngine()
    return engine, model, engine.make_private(module=model, optimizer=optimizer, data_loader=loader, **arguments)


def epoch(parts) -> int:
    module, optimizer, criterion, loader = parts
    steps = 0
    for x, y in loader:
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()
        steps += 1
    return steps


def test_it_is_opacus_engine_and_returns_what_that_returns():
    engine, model, (module, optimizer, criterion, loader) = private()
    assert isinstance(engine, opacus.PrivacyEngine)
    assert isinstance(module, opacus.grad_sample.AbstractGradSampleModule)
    assert isinstance(optimizer, opacus.optimizers.DPOptimizer)
    assert isinstance(criterion, opacus.utils.fast_gradient_clipping_utils.DPLossFastGradientClipping)
    assert isinstance(loader, opacus.data_loader.DPDataLoader)
    assert optimizer.expected_batch_size == 8


@pytest.mark.parametrize("accountant", ["prv", "rdp", "contour"])
def test_epsilon_follows_the_steps(accountant):
    engine, _, parts = private(PrivacyEngine(accountant=accountant))
    assert engine.get_epsilon(1e-5) == 0
    assert epoch(parts) == 5
    assert engine.accountant.history == [(1.0, 0.2, 5)]
    first = engine.get_epsilon(1e-5)
    epoch(parts)
    assert 0 < first < engine.get_epsilon(1e-5)


def test_with_epsilon_counts_all_steps_and_keeps_the_target():
    model, optimizer, loader = task()
    engine = PrivacyEngine()
    parts = engine.make_private_with_epsilon(
        module=model, optimizer=optimizer, data_loader=loader, target_epsilon=3.0, target_delta=1e-5, epochs=4,
        max_grad_norm=1.0, grad_sample_mode="ghost",
    )  # fmt: skip
    for _ in range(4):
        epoch(parts)
    assert 2.99 < engine.get_epsilon(1e-5) <= 3.0


def test_without_clipping_and_noise_it_trains_like_plain_sgd():
    model, optimizer, loader = task()
    twin, plain, _ = task()
    module, private_optimizer, criterion, _ = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=0.0, max_grad_norm=1e6,
        poisson_sampling=False, grad_sample_mode="ghost",
    )  # fmt: skip
    for x, y in loader:
        private_optimizer.zero_grad()
        loss = criterion(module(x), y)
        loss.backward()
        private_optimizer.step()
        plain.zero_grad()
        expected = nn.functional.cross_entropy(twin(x), y)
        expected.backward()
        plain.step()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_other_modes_stay_opacus(mode):
    with pytest.warns(UserWarning, match=f"grad_sample_mode='{mode}' runs the engine of Opacus.*pass grad_sample_mode=\"ghost\""):
        _, _, parts = private(grad_sample_mode=mode)
    assert len(parts) == 3
    assert type(parts[0]).__module__.startswith("opacus")


def test_generator_decides_the_noise_and_no_seed_of_torch_does():
    def weights(seed, generator_seed):
        torch.manual_seed(seed)
        generator = None if generator_seed is None else torch.Generator().manual_seed(generator_seed)
        _, model, (module, optimizer, criterion, _) = private(poisson_sampling=False, noise_generator=generator)
        x, y = torch.ones(8, 6), torch.zeros(8, dtype=torch.long)
        for _ in range(2):
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()
        return model[0].weight.detach().clone()

    assert torch.equal(weights(0, 3), weights(1, 3))
    assert not torch.equal(weights(0, 3), weights(0, 4))
    assert not torch.equal(weights(0, None), weights(0, None))


def test_schedulers_move_clip_norm_and_noise_together():
    """Fault P2: a clip scheduler must move the clip norm, not only the noise."""
    _, _, (module, optimizer, criterion, loader) = private(noise_multiplier=0.0, loss_reduction="sum",
                                                      criterion=nn.CrossEntropyLoss(reduction="sum"), max_grad_norm=1e-2)
    scheduler = ExponentialGradClip(optimizer, gamma=0.5)
    assert isinstance(ExponentialNoise(optimizer, gamma=1.0), ExponentialNoise)
    x, y = torch.randn(1, 6), torch.zeros(1, dtype=torch.long)
    norms = []
    for _ in range(3):
        optimizer.zero_grad()
        hand_out(loader, 1)
        criterion(module(x), y).backward()
        optimizer.step()
        norms.append(torch.sqrt(sum(p.grad.square().sum() for p in module.parameters())).item())
        scheduler.step()
    assert norms == pytest.approx([1e-2, 5e-3, 2.5e-3], rel=1e-4)


@pytest.mark.parametrize("loss", [nn.MSELoss, nn.L1Loss, nn.BCEWithLogitsLoss], ids=lambda loss: loss.__name__)
def test_losses_of_shape_b_1(loss):
    """Fault P1: [B, 1] losses must not be broadcast against [B] factors."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 1))
    loader = DataLoader(TensorDataset(torch.randn(N, 6), torch.rand(N, 1)), batch_size=8)
    module, optimizer, criterion, _ = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), data_loader=loader, criterion=loss(),
        noise_multiplier=0.0, max_grad_norm=1e-3, poisson_sampling=False, grad_sample_mode="ghost",
    )  # fmt: skip
    x, y = next(iter(loader))
    optimizer.zero_grad()
    criterion(module(10 * x), y).backward()
    optimizer.step()
    moved = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters())).item()
    assert 0 < moved <= 1e-3 * (1 + 1e-6)


def test_several_backwards_before_a_step_add_up():
    """Fault H4."""
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))

    def weights(*pieces):
        _, model, (module, optimizer, criterion, _) = private(
            noise_multiplier=0.0, own_batches=True, accumulation_steps=len(pieces)
        )
        optimizer.zero_grad()
        for piece in pieces:
            criterion(module(x[piece]), y[piece]).backward()
        optimizer.step()
        return model[0].weight.detach().clone()

    torch.testing.assert_close(weights(slice(0, 3), slice(3, 8)), weights(slice(0, 8)), rtol=1e-5, atol=1e-7)


def test_opacus_batch_memory_manager_splits_batches():
    engine, model, (module, optimizer, criterion, loader) = private(batch_size=20)
    physical = 0
    before = [p.detach().clone() for p in model.parameters()]
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as batches:
        for x, y in batches:
            assert len(x) <= 4
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()
            physical += 1
    assert physical > 2
    assert engine.accountant.history == [(1.0, 0.5, 2)]
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before))


def test_a_memory_manager_left_early_leaves_nothing_for_the_next_step():
    """Fault H5; and no example may be in a sum twice. The lost step is said, and stays charged."""
    engine, model, (module, optimizer, criterion, loader) = private(noise_multiplier=0.0, batch_size=20)

    def backward(x, y):
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()

    before = [p.detach().clone() for p in model.parameters()]
    with pytest.warns(UserWarning, match="left within a logical batch"):
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as batches:
            backward(*next(iter(batches)))
    assert engine.accountant.history == [(0.0, 0.5, 1)]
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before))
    x, y = torch.randn(3, 6), torch.randint(0, 3, (3,))
    hand_out(loader, 3)
    backward(x, y)
    moved = [p.detach() - q for p, q in zip(model.parameters(), before)]
    _, twin, (other_module, other_optimizer, other_criterion, other) = private(noise_multiplier=0.0, batch_size=20)
    hand_out(other, 3)
    other_criterion(other_module(x), y).backward()
    other_optimizer.step()
    for p, q, m in zip(twin.parameters(), before, moved):
        torch.testing.assert_close(p.detach() - q, m, rtol=1e-5, atol=1e-7)


def test_a_hook_beside_the_model_leaves_it_the_users_own():
    _, model, (hooks, optimizer, criterion, loader) = private(wrap_model=False)
    assert not isinstance(hooks, nn.Module)
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    hand_out(loader, 8)
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    keys = list(model.state_dict())
    hooks.cleanup()
    assert keys == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert "forward" not in model[0].__dict__


def test_checkpoints_bring_back_weights_optimizer_and_accountant(tmp_path):
    engine, model, parts = private()
    epoch(parts)
    engine.save_checkpoint(path=tmp_path / "checkpoint", module=parts[0], optimizer=parts[1])
    other, twin, fresh = private(PrivacyEngine())
    other.load_checkpoint(path=tmp_path / "checkpoint", module=fresh[0], optimizer=fresh[1])
    assert other.accountant.history == engine.accountant.history
    for p, q in zip(model.parameters(), twin.parameters()):
        assert torch.equal(p, q)


def test_ledger_and_report(tmp_path):
    engine = PrivacyEngine(accountant="contour")
    engine.attach_ledger(tmp_path / "ledger.jsonl")
    engine, _, parts = private(engine)
    epoch(parts)
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [line["type"] for line in lines] == ["header"] + ["release"] * 5
    summary = engine.report(tmp_path / "report", delta=1e-5)
    report = json.loads((tmp_path / "report" / "privacy_report.json").read_text())
    assert report["guarantee"]["epsilon"]["upper"] == pytest.approx(engine.get_epsilon(1e-5), rel=1e-9)
    assert report["guarantee"]["applies"]
    assert "epsilon" in summary
    assert (tmp_path / "report" / "privacy_report.html").stat().st_size > 10_000


def test_the_ledger_goes_on_where_parameters_thaw(tmp_path):
    """Another set of parameters is another session under another key; steps and attempts are counted through."""
    engine = PrivacyEngine(accountant="rdp")
    engine.attach_ledger(tmp_path / "ledger.jsonl")
    engine, model, (module, optimizer, criterion, loader) = private(engine)

    def backward():
        hand_out(loader, 4)
        criterion(module(torch.randn(4, 6)), torch.zeros(4, dtype=torch.long)).backward()

    model[0].requires_grad_(False)
    backward()
    optimizer.step()
    backward()
    optimizer.zero_grad()  # dropped: it stays charged
    model[0].requires_grad_(True)
    backward()
    optimizer.step()
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    charged = [(line["type"], line.get("step"), line.get("attempt")) for line in lines[1:]]
    assert charged == [("release", 0, 0), ("release", 1, 0), ("epoch", 1, None), ("release", 1, 1)]


@pytest.mark.parametrize("options", [{"poisson_sampling": False}, {"own_batches": True}], ids=lambda options: next(iter(options)))
def test_batches_of_ones_own_are_charged_as_if_they_held_everybody(options, tmp_path):
    engine = PrivacyEngine(accountant="contour")
    engine.attach_ledger(tmp_path / "ledger.jsonl")
    with pytest.warns(UserWarning, match="as if it held every example"):
        _, _, parts = private(engine, **options)
    epoch(parts)
    assert engine.accountant.history == [(1.0, 1.0, 5)]
    engine.report(tmp_path / "report", delta=1e-5)
    report = json.loads((tmp_path / "report" / "privacy_report.json").read_text())
    assert report["guarantee"]["applies"]
    assert report["guarantee"]["epsilon"]["upper"] == pytest.approx(engine.get_epsilon(1e-5), rel=1e-9)
    assert report["sampler"]["executed"].startswith("batches of the caller's own")
    assert report["sampler"]["assumed"] == "none (every unit in every step)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clipping": "quantile"}, "one of 'flat', 'per_layer', 'automatic', 'adaptive'"),
        ({"max_grad_norm": [1.0, 2.0]}, "one number"),
        ({"grad_sample_mode": "ghost_fsdp"}, "under FSDP2"),
        ({"rand_on_empty": True}, "twice the clip norm"),
        ({"loss_reduction": "median"}, "'mean' or 'sum'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refusals_name_the_rule(options, message):
    with pytest.raises(ValueError, match=message):
        private(**options)


def test_foreign_parameters_and_seeds_in_secure_mode_are_refused():
    model, _, loader = task()
    other = nn.Linear(2, 2)
    arguments = {"data_loader": loader, "noise_multiplier": 1.0, "max_grad_norm": 1.0, "grad_sample_mode": "ghost"}
    with pytest.raises(ValueError, match="Module parameters are different than optimizer Parameters"):
        PrivacyEngine().make_private(module=model, optimizer=torch.optim.SGD(other.parameters()), **arguments)
    with pytest.raises(ValueError, match="Passing seed is prohibited"):
        private(PrivacyEngine(secure_mode=True), noise_generator=torch.Generator())
    private(PrivacyEngine(secure_mode=True))


def test_without_a_ledger_the_report_is_missed_before_the_run_and_not_after(tmp_path):
    with pytest.warns(UserWarning, match="no ledger: there will be no privacy report.*call attach_ledger"):
        private(PrivacyEngine())
    engine = PrivacyEngine()
    engine.attach_ledger(tmp_path / "ledger.jsonl")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="no ledger")
        private(engine)


def test_importing_the_package_loads_nothing_heavy():
    assert {"PrivacyEngine", "FSDP2Wrapper", "register_rule"} <= set(dir(ghostshard))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivacyEngine()
