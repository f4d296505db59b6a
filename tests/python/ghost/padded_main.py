"""Two ranks whose batches are padded: started by torchrun, writes each rank's errors. See test_padded_ranks.py.

    torchrun --nproc_per_node 2 padded_main.py results.json
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
import torch
import torch.distributed as dist
from leaving import report_and_leave
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from padded_texts import Texts, classes, left, right, steps
from together_main import said_by_each
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ghostshard import FSDP2Wrapper, PrivacyEngine

SEVERAL, ALIKE = [0, 1, 2, 3, 4, 5], [6, 13, 20, 27]  # lengths 3 to 8; 9 alone


class Model(nn.Module):
    def __init__(self, masked):
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=0)
        self.head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.masked = masked[dist.get_rank() % len(masked)]

    def forward(self, x, mask):
        h = self.embedding(x)
        return self.head((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True) if self.masked else h.mean(1))


class Picky(Model):
    """Takes no other extents than 8."""

    def forward(self, x, mask):
        if x.shape[1] != 8 and dist.get_rank() == 1:
            raise ValueError("cut")
        return super().forward(x, mask)


class InFives(Model):
    """Sums of five places each: an example of five has no padding among its own, one of three has, of which it has none alone."""

    def forward(self, x, mask):
        h, own = self.embedding(x) + (mask[..., None] if self.masked else 1), mask
        h, own = (F.pad(each, (0, 0) * (each.dim() - 2) + (0, -x.shape[1] % 5)).unflatten(1, (-1, 5)) for each in (h, own))
        own = own.any(2)
        return self.head((torch.tanh(h.sum(2)) * own[..., None]).sum(1) / own.sum(1, keepdim=True))


class Run:
    def __init__(self, model, drawn, *, sharded, collate):
        torch.manual_seed(3)
        model = FSDP2Wrapper(model) if sharded else DifferentiallyPrivateDistributedDataParallel(model)
        *run, loader = PrivacyEngine(accountant="rdp").make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
            data_loader=DataLoader(Texts(), batch_size=8, collate_fn=collate), criterion=nn.CrossEntropyLoss(),
            grad_sample_mode="ghost_fsdp" if sharded else "ghost",
        )  # fmt: skip
        self.parts, self.model = (*run, loader), model
        mine = drawn[dist.get_rank()]

        class Prescribed:
            first_turn = 0

            def batches(self):
                return iter([np.array(mine, dtype=np.int64)] * 2)

            def sizes(self):
                return np.array([len(mine)] * 2)

        loader.batch_sampler.draws = loader.batch_sampler.steps = 2
        loader.batch_sampler.draw_epoch = Prescribed


class Flagged(Model):
    """Masks as it is told, where it masks at all."""

    def forward(self, x, mask, masked=True):
        return super().forward(x, mask if masked or not self.masked else torch.ones_like(mask))


def twice(module, criterion, batch):
    x, mask = batch["x"], batch["mask"]
    return criterion(module(x, mask, batch["first"]) + module(x, mask, not batch["first"]), batch["y"])


def of_which(masked_first):
    return lambda module, criterion, batch: twice(module, criterion, batch | {"first": masked_first})


def both_masked(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"]) + module(batch["x"], batch["mask"]), batch["y"])


BOTH = (SEVERAL, SEVERAL)
SCENARIOS = {
    "neither masks": (Model, (False,), BOTH), "rank 0 masks": (Model, (True, False), BOTH), "rank 1 masks": (Model, (False, True), BOTH), "both mask": (Model, (True,), BOTH),
    "rank 1 has one length": (Model, (False,), (SEVERAL, ALIKE)), "rank 1 has one example": (Model, (False,), (SEVERAL, [2])),
    "rank 1 has none": (Model, (False,), (SEVERAL, [])), "both mask, rank 1 has one length": (Model, (True,), (SEVERAL, ALIKE)),
    "both mask, rank 1 has none": (Model, (True,), (SEVERAL, [])), "rank 1 takes no other extents": (Picky, (True,), BOTH),
    "rank 1 takes no other extents, rank 0 does not mask": (Picky, (False, True), BOTH),
    "of two forwards the first does not mask": (Flagged, (True,), BOTH, of_which(False)),
    "of two forwards the second does not mask": (Flagged, (True,), BOTH, of_which(True)),
    "of two forwards the first does not mask, rank 1 has none": (Flagged, (True,), (SEVERAL, []), of_which(False)),
    "of two forwards both mask, rank 1 has none": (Flagged, (True,), (SEVERAL, []), both_masked),
    "the shortest are moved": (InFives, (False,), BOTH), "the shortest are moved, rank 1 has one length": (InFives, (False,), (SEVERAL, ALIKE)),
    "the shortest are moved, rank 1 has none": (InFives, (False,), (SEVERAL, [])), "the shortest are masked, rank 1 has one length": (InFives, (True,), (SEVERAL, ALIKE)),
}  # fmt: skip


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    found: dict = {}
    for kind, sharded in (("sharded", True), ("replicas", False)):
        for number, (name, (model, masked, drawn, *loss)) in enumerate(SCENARIOS.items()):
            print(f"rank {dist.get_rank()}: {kind} {name}", file=sys.stderr, flush=True)
            run = Run(model(masked), drawn, sharded=sharded, collate=(right, left)[number % 2 and "the shortest" not in name])
            found[f"{kind} {name}"] = said_by_each(lambda: steps(*(loss or [classes]), run.parts))
            if name == "both mask":
                weight = next(each for name, each in run.model.named_parameters() if name.endswith("embedding.weight")).detach()
                norms = (weight.full_tensor() if isinstance(weight, DTensor) else weight).norm(dim=1)
                found[f"{kind} rows"] = [float(norms[0]), float(norms[1:].min())]
    report_and_leave(sys.argv[1], found)


if __name__ == "__main__":
    main()
