"""A private model under test, without data loader or accountant: the release of a step, by parameter name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ghostshard.ghost.checks.charges import EachDraw
from ghostshard.ghost.loss import PrivateLoss
from ghostshard.ghost.optimizer import GhostOptimizer
from ghostshard.ghost.provenance import NoProvenance, may_train
from ghostshard.ghost.wrappers import GhostModule


class AnyBatches:
    """Every batch is taken, for tests of sums, which have no loader."""

    broken = ""
    units = places = skipped = turn = 0
    place = (0, 0, 0, 0)
    more = True
    provenance = NoProvenance()
    charges = EachDraw()

    def may_train(self, losses: torch.Tensor, leaf: torch.Tensor) -> bool:
        return may_train(losses, leaf)

    def check_forward(self) -> None: ...

    def check_backward(self, losses: torch.Tensor, units: int) -> None: ...

    def met_together(self, units: int) -> None: ...

    def will_refuse(self, why: str) -> None: ...

    def went_backward(self) -> None: ...

    def report_to(self, presence) -> None: ...

    check_step = stepped = paused = dropped = end = went_backward


class NotFollowed(NoProvenance):
    """For tests that make their batches themselves."""

    def forget(self) -> None: ...

    def hand_out(self, piece, batch): ...

    def check(self, losses, piece) -> None: ...


def hand_out(loader, *units: int, notes=None) -> None:
    """As if the private loader had just handed out one draw, in batches of so many units, whose tensors nobody follows. notes: of the
    pass; default a new one."""
    stamps = getattr(loader.batch_sampler, "stamps", None)
    if stamps is None:
        return  # batches of the caller's own
    for _ in (notes or stamps.begin_pass()).noted([range(each) for each in units]):
        stamps.receiver.provenance = NotFollowed()
        stamps.receiver.hand_out(stamps.waiting.popleft(), None)


Loss = Callable[[nn.Module, tuple[torch.Tensor, ...]], torch.Tensor]


class Private:
    """sampling rate 0.1; divisor 1, so that a step without noise releases the clipped sum itself. Microbatches are reduced each by itself, if
    accumulate= says nothing else."""

    def __init__(
        self,
        model: nn.Module,
        clip_norm: float,
        *,
        noise_multiplier: float = 0.0,
        generator: torch.Generator | None = None,
        lr: float = 1.0,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
        **options,
    ):
        self.model = model
        self.module = GhostModule(model, **({"accumulate": False} | options))
        self.engine = self.module.engine
        self.optimizer = GhostOptimizer(
            optimizer(list(model.parameters()), lr=lr),
            engine=self.engine,
            noise_multiplier=noise_multiplier,
            max_grad_norm=clip_norm,
            expected_batch_size=1,
        )
        self.engine.set_constants(
            sampling_rate=0.1, divisor=1.0, terms=self.optimizer.terms, generator=generator, batches=AnyBatches()
        )

    def backward(self, loss: Loss, batch: tuple[torch.Tensor, ...]) -> None:
        PrivateLoss(self.engine, loss(self.module, batch)).backward()

    def released(self) -> dict[str, torch.Tensor]:
        self.engine.release()
        return {
            name: (p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad).clone()
            for name, p in self.model.named_parameters()
            if p.requires_grad
        }

    def step(self, loss: Loss, batches: list[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        for batch in batches:
            self.backward(loss, batch)
        return self.released()
