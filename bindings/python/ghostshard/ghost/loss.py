"""Per-example losses, and the object whose `backward()` runs a private step's one backward.

Each unit's loss must be that unit's alone. A mean over the tokens of a batch is not, because its divisor counts everybody's
tokens. So criterions run with reduction "none" and are reduced here, unit by unit.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping, DPTensorFastGradientClipping
from torch import nn
from torch.distributed.tensor import DTensor

from ..set_once import SetOnce
from .batch import Inputs
from .callers_criterion import OTHER_REDUCTIONS, name_of, of_functions, with_gradients
from .checks.criterions import is_of_torch
from .checks.left_beside import leave_call_beside
from .checks.paired_rows import refuse_pairs
from .checks.state import Coins, marks_of
from .cross_entropy import cross_entropy, is_plain
from .forwards import forward_of
from .like_a_number import NO_FUNCTION, ReadsLikeANumber
from .nobody import losses_of_nobody
from .provenance import IN_ITS_PLACE, Drawn, Finding, as_units, bare, plain
from .recording import RecordingEngine
from .set_outside import SettingsHandedOn
from .shared import Shared
from .traces import traced
from .uncompiled import uncompiled

_REDUCTIONS = ("mean", "sum")

# All examples' losses would have it. The check of gradients and the guard of weights refuse that too, as a layer's doing.
ONE_FOR_ALL = (
    "the loss met one number with a gradient for all {} examples of the batch (a second loss's mean or sum over them, a penalty): each example "
    "needs a term of its own. Form it with reduction='none', averaged within an example alone, so that it has one value for each, and add that: the step "
    "takes the mean over the examples. For a penalty on weights take the optimizer's weight_decay. If the number is a parameter (a learnt weight or temperature of the loss), "
    "form each example's loss in the model's forward, which knows whose it is: losses = model(x, y), with criterion=lambda losses: losses"
)


def check_reduction(reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"loss_reduction must be 'mean' or 'sum', got {reduction!r}")


def check_losses(losses: torch.Tensor, units: int, forwards: Sequence[Inputs] = (), ranks: int = 1) -> None:
    """ValueError unless these are plain tensors, one loss for each unit, not times the number of ranks, as a trainer makes them that divides by the targets of
    all ranks."""
    if isinstance(losses, DTensor):
        raise ValueError(
            "losses must be plain tensors, whole on every rank of the tensor-parallel axis: give the last layer "
            "ColwiseParallel(output_layouts=Replicate())"
        )
    if isinstance(losses, Shared) or losses.dim() != 1 or losses.shape[0] != units:
        raise ValueError(
            f"a private step needs one loss for each of the {units} units of the batch, got {_what_else(losses, units)}. If logits were "
            "flattened, give the criterion their shape before: criterion(logits.view(-1, V), labels.view(-1), shape=logits.shape)"
        )
    formed = forwards[-1].formed if forwards else None
    if ranks > 1 and formed is not None and len(formed) == len(losses) > 0 and bool(formed.any()) and torch.allclose(losses.detach(), formed * ranks, equal_nan=True):
        raise ValueError(
            f"each example's loss is {ranks} times what model or criterion formed, on {ranks} ranks: Transformers' Trainer multiplies by their number, since it takes losses for ones that were divided by the "
            "targets of all ranks, and each example would be clipped with a gradient as many times as large. Pass TrainingArguments(average_tokens_across_devices=False)"
        )


def _what_else(losses: torch.Tensor, units: int) -> str:
    shape = tuple(losses.shape)
    if isinstance(losses, Shared):
        return (
            f"losses {shape} of which it is not known whose they are: the model brings rows together itself (torch.cat or torch.stack of two of its arguments), and "
            "what follows from them counts as shared by all examples. Call the model once for each and add the losses, or join the rows in the loop and say "
            "whose each is: model(torch.cat([chosen, rejected]), units=torch.arange(n).repeat(2))"
        )
    each, odd = divmod(units, max(shape[0] if shape else 0, 1))
    if len(shape) == 1 and shape[0] and not odd and each > 1:
        return (
            f"shape {shape}. If {each} rows of the model's input are one example's (chosen and rejected, views), say whose each row is: "
            f"model(rows, units=torch.arange(n).repeat({each})) for n examples one after another, {each} times; they are one unit then, with one loss or one for each row"
        )
    if len(shape) == 2 and shape[0] == shape[1] == units:
        return f"shape {shape}, of each pair of them: losses [{units}] met a tensor [{units}, 1], which broadcasts. Give it one extent (weights.squeeze(-1))"
    return f"shape {shape}"


class PrivateLoss(ReadsLikeANumber, DPTensorFastGradientClipping):
    """Losses [units] with the arithmetic of a scalar; `backward()` clips and reduces (GhostEngine.backward in engine.py)."""

    def __init__(self, engine: RecordingEngine, loss_per_sample: torch.Tensor, loss_reduction: str = "mean"):
        self.engine = engine
        super().__init__(engine, None, loss_per_sample, loss_reduction)

    @property
    def loss_per_sample(self) -> torch.Tensor:
        """[units], followed like the model's outputs: writing to it is writing to the losses."""
        if self._handed_out is None:
            self._handed_out = self.engine.provenance.losses(self._formed)
        return self._handed_out

    @loss_per_sample.setter
    def loss_per_sample(self, losses: torch.Tensor) -> None:
        self._formed, self._handed_out = plain(losses), None
        self._ask_of(losses)

    @property
    def _losses(self) -> torch.Tensor:
        """As they are now, with what was found of writes to those that were handed out."""
        self._ask_of(self._handed_out)
        return self._formed

    def _ask_of(self, losses: torch.Tensor | None) -> None:
        """Whose the rows of the caller's own are, formed of outputs that are followed."""
        if isinstance(losses, Drawn):
            self.engine.provenance.mark(self._formed, self.engine.provenance.targets((losses,), {})[2])

    def backward(
        self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None
    ) -> None:
        """As a scalar's. retain_graph has no effect: a private step has one backward. ValueError for what would need another."""
        if gradient is not None or create_graph or inputs is not None:
            raise ValueError(
                "a private step has one backward, of every example's own loss: gradient=, create_graph= (a penalty on gradients) "
                f"and inputs= would go past the clipping of each example. {IN_ITS_PLACE}"
            )
        with self.engine.run.thread.within("a backward"), uncompiled():  # what activation checkpointing computes again, too
            self.engine.backward(self._losses)

    def _with(self, losses: torch.Tensor, found: Finding | None = None) -> PrivateLoss:
        if (found := found or self.engine.provenance.met("the loss")) is not None:
            self.engine.provenance.mark(losses, found)
        return PrivateLoss(self.engine, losses, self.loss_reduction)

    def _met(self, operation: Callable[[Any, Any], torch.Tensor], other: Any) -> Any:
        """operation(losses, other). A tensor with a value for each example must be of the examples, as a criterion's targets; one for all
        of them must not be of the batch (its number of tokens)."""
        if isinstance(other, torch.Tensor) and other.dim() == 0 and other.requires_grad and len(self._losses) > 1:
            raise ValueError(ONE_FOR_ALL.format(len(self._losses)))
        if isinstance(other, torch.Tensor) and (other.dim() > 0 or isinstance(other, Drawn)):
            (losses, other), _, found = self.engine.provenance.targets((self._losses, other), {})
            return self._with(operation(losses, other), found)
        if isinstance(other, PrivateLoss) and len(other._losses) != len(self._losses):
            return operation(self.detach(), other.detach())  # of two batches: a running sum for people, which has no gradient
        if isinstance(other, DPTensorFastGradientClipping) and operation in (operator.mul, operator.truediv):
            raise TypeError(NO_FUNCTION.format("the product or quotient"))
        found = None if isinstance(other, DPTensorFastGradientClipping) else self.engine.provenance.met("the loss", other)
        return self._with(operation(self._losses, self._other(other)), found)

    def _other(self, other: Any) -> Any:
        if not isinstance(other, DPTensorFastGradientClipping):
            return bare(plain(other))  # a read number was looked at before
        if other.loss_reduction != self.loss_reduction:
            raise ValueError(
                f"losses that are added must have one reduction, got {self.loss_reduction} and {other.loss_reduction}"
            )
        return other._losses if isinstance(other, PrivateLoss) else other.loss_per_sample

    def __truediv__(self, other: Any) -> PrivateLoss:
        return self._met(operator.truediv, other)

    def __mul__(self, other: Any) -> PrivateLoss:
        return self._met(operator.mul, other)

    def __add__(self, other: Any) -> PrivateLoss:
        return self._met(operator.add, other)

    def __sub__(self, other: Any) -> PrivateLoss:
        return self._met(operator.sub, other)

    def __rsub__(self, other: Any) -> PrivateLoss:
        return self._met(lambda losses, other: other - losses, other)

    def __neg__(self) -> PrivateLoss:
        return self._with(-self._losses)

    __rmul__ = __mul__
    __radd__ = __add__

    def mean(self) -> PrivateLoss:
        """Of a scalar."""
        return self

    sum = mean

    def __repr__(self) -> str:
        return f"PrivateLoss(loss_reduction={self.loss_reduction}, shape={tuple(self._losses.shape)})"

    def __str__(self) -> str:
        return f"PrivateLoss({self.item():.4f})"


class PrivateCriterion(SetOnce, SettingsHandedOn, DPLossFastGradientClipping):
    """Opacus' criterion wrapper: runs the criterion with reduction "none" and gives a PrivateLoss. A module, so that it can take the
    place of the one that a model or a LightningModule holds as a child.

    shape: extents [B, T, ...] of the logits before they were flattened, for a criterion whose losses are [B·T].
    """

    set_once = {"loss_reduction": "make_private(loss_reduction=)"}

    def __init__(self, engine: RecordingEngine, optimizer: Any, criterion: Any, loss_reduction: str = "mean"):
        nn.Module.__init__(self)
        check_reduction(loss_reduction)
        own = getattr(criterion, "reduction", loss_reduction)
        self._adds_rows = own == "batchmean" and loss_reduction == "mean"  # KLDivLoss: a row's sum, averaged over rows
        if own != loss_reduction and not self._adds_rows:
            raise ValueError(f"the criterion's reduction must be loss_reduction ({loss_reduction!r}), got {own!r}{OTHER_REDUCTIONS.get(own, '')}")
        self.engine = self.module = engine
        self.optimizer = optimizer
        self.loss_reduction, self._reduction = loss_reduction, own
        self.criterion = criterion
        self._calls = engine.sessions.alike.follow(criterion)

    def __deepcopy__(self, memo: dict) -> Any:
        """The plain criterion: a copied model (an average of weights) is not private either."""
        return copy.deepcopy(self.criterion, memo)

    def forward(self, *args: Any, shape: Any = None, **kwargs: Any) -> PrivateLoss:
        given = args, kwargs
        args, kwargs, found = self.engine.provenance.targets(args, kwargs, constants_of(self.criterion))
        inputs = forward_of(self.engine, (args, kwargs))
        packing = None if inputs is None else inputs.packing
        refuse_pairs(self.criterion, *given, packed=packing is not None, batch_first=self.engine.batch_first)
        nobodys, marks = losses_of_nobody(inputs, (args, kwargs)), marks_of(self.criterion, buffers=True)
        coins = None if is_of_torch(self.criterion) else Coins(self.engine.ranks.device)
        try:
            with self._calls, traced() as trace:
                losses = self._unreduced(*args, **kwargs)
        except Exception:  # many criterions take no batch of no example (torch.stack([]))
            if nobodys is None:
                raise
            losses = nobodys
        if nobodys is not None and not (isinstance(losses, torch.Tensor) and losses.shape[:1] == (0,) and losses.requires_grad):
            losses = nobodys
        if not isinstance(losses, torch.Tensor):
            raise ValueError(f"the criterion must give a tensor, one loss for each example, got {type(losses).__name__}")
        losses, found = self.engine.provenance.formed(losses, found)
        self.engine.provenance.mark(losses, found)
        if (attribution := self.engine.sessions.attribution) is not None:
            attribution.look_at_criterion(self.criterion)
        keeps = marks_of(self.criterion, buffers=True) != marks
        leave_call_beside(
            losses, self.criterion, functools.partial(with_gradients, self._unreduced) if keeps else self._unreduced, *given, packing=packing, batch_first=self.engine.batch_first,
            reduced=self._reduced, padded=inputs is not None and bool(inputs.padding), found=found, trace=trace.of, coins=coins,
        )  # fmt: skip
        if losses.dim() == 0:
            raise ValueError(
                f"{name_of(self.criterion)} must give one loss per example with reduction='none', got a scalar: leave out the mean "
                f"over the examples, in a criterion of your own too{of_functions(self.criterion)}"
            )
        if losses is nobodys:
            return PrivateLoss(self.engine, losses, self.loss_reduction)
        valid = self._valid(args, kwargs, losses)
        if packing is not None:
            return PrivateLoss(self.engine, packing.reduce(losses, valid, self.loss_reduction), self.loss_reduction)
        if found.order is not None and len(losses) == len(found.order):
            losses, valid = as_units(losses, found.order), None if valid is None else as_units(valid, found.order)
        elif shape is not None and losses.shape[0] == shape[0] * shape[1]:
            losses, valid = _of_rows(losses, valid, shape[0])
        losses = reduce_units(losses, valid, self.loss_reduction)
        if self.engine.forwards:
            self.engine.forwards[-1].note_losses(losses)
        return PrivateLoss(self.engine, losses, self.loss_reduction)

    def _reduced(self, units: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        """[units], also of losses [units · rows, ...]."""
        losses = self._unreduced(*args, **kwargs)
        return reduce_units(*_of_rows(losses, self._valid(args, kwargs, losses), units), self.loss_reduction)

    def _unreduced(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        before = getattr(self.criterion, "reduction", None)
        if before in ("mean", "sum", "batchmean") and before != self._reduction:
            raise ValueError(f"the criterion's reduction became {before!r} after make_private(), which was given {self._reduction!r}: set it before, and loss_reduction alike")
        if is_plain(self.criterion) and len(args) == 2 and not kwargs:
            return cross_entropy(*args, ignore_index=self.criterion.ignore_index)
        given = hasattr(self.criterion, "reduction")
        try:
            self.criterion.reduction = "none"
        except (AttributeError, TypeError, RuntimeError):  # a bound method, slots, TorchScript: it gives what it gives
            return self.criterion(*args, **kwargs)
        try:
            losses = self.criterion(*args, **kwargs)
            if self._adds_rows and losses.dim() > 1:
                return losses.flatten(1).sum(1)
            return losses / _target_lengths(args, kwargs, losses) if type(self.criterion) is nn.CTCLoss and before == "mean" else losses
        finally:
            if given:
                self.criterion.reduction = before
            else:
                del self.criterion.reduction

    def _valid(self, args: tuple, kwargs: dict, losses: torch.Tensor) -> torch.Tensor | None:
        """Which losses count: targets other than the criterion's ignore_index, wherever they were passed."""
        ignored = getattr(self.criterion, "ignore_index", None)
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        if ignored is None or not isinstance(target, torch.Tensor) or target.shape != losses.shape:
            return None
        return target != ignored


def _target_lengths(args: tuple, kwargs: dict, losses: torch.Tensor) -> torch.Tensor:
    """[units]: CTCLoss divides each loss by its own before it takes the mean."""
    lengths = kwargs["target_lengths"] if "target_lengths" in kwargs else args[3]
    return torch.as_tensor(lengths, device=losses.device).clamp(min=1)


def _of_rows(losses: torch.Tensor, valid: torch.Tensor | None, units: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """[units · rows, ...] as [units, rows, ...]."""
    if losses.shape[0] != units:
        losses = losses.reshape(units, -1, *losses.shape[1:])
    return losses, None if valid is None else valid.reshape(losses.shape)


def constants_of(criterion: Any) -> dict[str, Any]:
    """Numbers and buffers that it has, by name."""
    found: dict[str, Any] = {}
    for name, module in criterion.named_modules() if isinstance(criterion, nn.Module) else ():
        own = {**vars(module), **{key: value for key, value in module._buffers.items() if value is not None}}
        numbers = {key: value for key, value in own.items() if isinstance(value, (float, torch.Tensor)) or type(value) is int}
        found.update((f"{name}.{key}".lstrip("."), value) for key, value in numbers.items() if not key.startswith("_"))
    return found


def reduce_units(losses: torch.Tensor, valid: torch.Tensor | None, reduction: str) -> torch.Tensor:
    """losses [units, ...] -> [units]: sum or mean over all other extents, over valid places alone."""
    if losses.dim() == 1:
        return losses
    flat = losses.flatten(1)
    total = flat.sum(1) if valid is None else torch.where(valid.flatten(1), flat, 0).sum(1)
    if reduction == "sum":
        return total
    if valid is None:
        return total / max(flat.shape[1], 1)
    return total / valid.flatten(1).sum(1).clamp(min=1)
