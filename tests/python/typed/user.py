"""What a user of the package writes, for mypy --strict (test_stubs.py). Never run."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine
from ghostshard.accountants import ContourAccountant, CurvePoint, PrivacyBound, PRVAccountant, RDPAccountant, default_delta, get_noise_multiplier, privacy_curve, register  # fmt: skip
from ghostshard.optim import SOAP, AdamW, AdamW8bit, Muon, Shampoo, matrix_groups


def accounted() -> float:
    register(replace=False)
    accountant = ContourAccountant()
    accountant.step(noise_multiplier=1.1, sample_rate=256 / 60000)
    again = ContourAccountant()
    again.load_state_dict(accountant.state_dict())
    bound: PrivacyBound = accountant.epsilon_bound(default_delta(60000))
    lower: float = bound.lower
    epsilon: float = accountant.get_epsilon(delta=1e-5)
    others: list[float] = [PRVAccountant().get_epsilon(delta=1e-5), RDPAccountant().get_epsilon(1e-5, alphas=[2.0])]
    curve: list[CurvePoint] = privacy_curve(accountant, deltas=[1e-5, 1e-6], accountant="prv")
    by_hand: list[CurvePoint] = privacy_curve([(1.1, 0.01, 1000)])
    sigma: float = get_noise_multiplier(target_epsilon=3, target_delta=1e-5, sample_rate=0.01, steps=1000)
    return lower + epsilon + again.get_delta(epsilon) + sum(others) + curve[0].upper + by_hand[0].upper + sigma


def optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    small = AdamW8bit(model.parameters(), lr=1e-3, betas=(0.9, 0.99), least_coded=0)
    state: int = small.state_bytes()
    groups = matrix_groups(model, adamw=lambda name, p: p.numel() < state, pieces=lambda name, p: (0, 3) if "qkv" in name else None)
    return [small, AdamW(model.parameters(), second_moment_floor=0.5), Muon(groups, 1e-3, momentum=0.9),
            Shampoo(groups, side=64), SOAP(groups, refresh_every=10)]  # fmt: skip


def trained(folder: str) -> str:
    model = torch.nn.Linear(4, 2)
    data = DataLoader(TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)), batch_size=4)
    engine = PrivacyEngine(accountant="contour")
    engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=data,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost_fsdp",
    )
    engine.attach_ledger(f"{folder}/ledger.jsonl")
    return engine.report(folder, delta=1e-5)
