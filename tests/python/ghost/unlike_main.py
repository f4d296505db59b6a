"""Two ranks whose make_private() differs, or whose terms come apart later: writes each rank's errors. See test_unlike_private_ranks.py.

    torchrun --nproc_per_node 2 unlike_main.py results.json folder
"""

from __future__ import annotations

import random
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from leaving import report_and_leave
from private import hand_out
from together_main import said_by_each
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ghostshard import FSDP2Wrapper, PrivacyEngine


def tensors(seed: int = 1, count: int = 40) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator))


class Augmented(Dataset):
    """Its items differ from call to call, by torch's generator or by one of its own (seeded by rank)."""

    def __init__(self, own: bool):
        self.generator = random.Random(dist.get_rank()) if own else None

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict:
        move = torch.rand(()).item() if self.generator is None else self.generator.random()
        return {"x": torch.full((6,), index + move), "y": index % 3}


def begin(rank_1: dict, *, ledger: Path | None = None, layers=(6, 8, 3), data=None, batch=8, **options):
    """A private run on both ranks; rank 1 has `rank_1` otherwise."""
    given = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "criterion": nn.CrossEntropyLoss(), "layers": layers,
             "data": data or tensors(), "batch": batch, **options}  # fmt: skip
    given |= rank_1 if dist.get_rank() == 1 else {}
    torch.manual_seed(3)
    sizes = given.pop("layers")
    model = FSDP2Wrapper(nn.Sequential(*(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))))
    seed = given.pop("seed", None)
    loader = DataLoader(given.pop("data"), batch_size=given.pop("batch"), generator=seed and torch.Generator().manual_seed(seed))
    engine = PrivacyEngine(accountant=given.pop("accountant", "rdp"))
    for _ in range(given.pop("spent", 0)):
        engine.accountant.step(noise_multiplier=1.0, sample_rate=0.2)
    if ledger:
        engine.attach_ledger(ledger)
    betas = given.pop("betas", None)
    if register := given.pop("register", None):
        engine.attach_register(register, data=__file__, limit=8.0)
    parameters = list(model.parameters())[:: given.pop("order", 1)]
    optimizer = torch.optim.Adam(parameters, betas=betas) if betas else torch.optim.SGD(parameters, lr=0.1)
    return engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, grad_sample_mode="ghost_fsdp", **given
    )  # fmt: skip


def step(run: tuple) -> None:
    module, optimizer, criterion, loader = run
    hand_out(loader, 2)
    optimizer.zero_grad()
    criterion(module(torch.ones(2, 6)), torch.zeros(2, dtype=torch.long)).backward()
    optimizer.step()


UNLIKE = {
    "noise": lambda: {"noise_multiplier": 0.001},
    "clip_norm": lambda: {"max_grad_norm": 100.0},
    "clipping": lambda: {"clipping": "per_layer"},
    "clip_quantile": lambda: {"clipping": "adaptive", "unclipped_num_std": 3.0},
    "reduction": lambda: {"loss_reduction": "sum", "criterion": nn.CrossEntropyLoss(reduction="sum")},
    "criterion": lambda: {"criterion": nn.CrossEntropyLoss(label_smoothing=0.1)},
    "accumulation": lambda: {"accumulation_steps": 2},
    "own_batches": lambda: {"own_batches": True},
    "accountant": lambda: {"accountant": "contour"},
    "spent_before": lambda: {"spent": 5},
    "a_seed": lambda: {"seed": 5},
    "order": lambda: {"order": -1},
    "fewer_parameters": lambda: {"order": 2},
    "batch_size": lambda: {"batch": 10},
    "other_data": lambda: {"data": tensors(seed=2)},
    "fewer_items": lambda: {"data": tensors(count=39)},
    "a_mistake": lambda: {"loss_reduction": "sum"},
}


def terms_come_apart() -> None:
    run = begin({})
    step(run)
    if dist.get_rank() == 1:
        run[1].noise_multiplier = 0.001
    step(run)


def terms_change_alike() -> None:
    run = begin({})
    for noise_multiplier in (1.0, 2.0):
        run[1].noise_multiplier = noise_multiplier
        step(run)


def the_ledger_is_there(folder: Path) -> None:
    file = folder / "there.jsonl"
    if dist.get_rank() == 0:
        file.write_text("")
    step(begin({}, ledger=file))


def generators_stay() -> None:
    """make_private() looks at items of the data, whose random numbers are nobody's."""
    torch.manual_seed(7)
    begin({}, data=Augmented(own=False))
    drawn = torch.rand(3).tolist()
    torch.manual_seed(3)
    nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    assert drawn == torch.rand(3).tolist(), drawn


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    folder = Path(sys.argv[2])
    found = {name: said_by_each(lambda: begin(make())) for name, make in UNLIKE.items()}
    found["layers"] = said_by_each(lambda: begin({"layers": (6, 9, 3)}))
    found["register"] = said_by_each(lambda: begin({"register": folder / "budgets.jsonl"}, ledger=folder / "registered.jsonl"))
    found["betas"] = said_by_each(lambda: begin({"betas": (0.5, 0.999)}, betas=(0.9, 0.999)))
    found["terms_come_apart"] = said_by_each(terms_come_apart)
    found["terms_change_alike"] = said_by_each(terms_change_alike)
    found["the_ledger_is_there"] = said_by_each(lambda: the_ledger_is_there(folder))
    found["generators_stay"] = said_by_each(generators_stay)
    found["own_generator"] = said_by_each(lambda: begin({}, data=Augmented(own=True)))
    report_and_leave(sys.argv[1], found)


if __name__ == "__main__":
    main()
