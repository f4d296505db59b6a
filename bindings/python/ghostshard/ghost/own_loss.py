"""The loss that a Transformers model forms itself, of each example.

A model forms a mean over the batch, which no example's clipping can use. For four kinds that Transformers names, transformers_losses.py
forms each example's loss from logits and labels; if Transformers' own code formed the model's (formed_by.py), and these losses,
reduced as Transformers does, give the same for the first batch, they train from then on. Any other loss (class weights, margins, a router's loss, `model.loss_function`, spans,
pictures, translations) is computed example by example by the model's own code: its forward runs once for the batch; then for
each example the model's outermost forward runs again, in which every layer gives the rows of that example which it gave for
the batch. So each example's loss is what the model would give for that example alone, and two examples are compared with
exactly that, at first use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .batch import Inputs
from .checks.state import State
from .formed_by import asks_for_another, by_transformers, deciding, refuse_another_forward
from .handed_in import HandedIn
from .layout import original_class
from .listed import Path, mapped_units, picked
from .own_layers import Layers, Outputs, loss_of
from .packing import unwrapped
from .settled import as_output
from .shared import Shared, plain
from .tensor_trees import tensors_in
from .transformers_losses import logits_of, loss_of_transformers, per_example_form, targets_of_transformers

_OTHER = (
    "Leave labels out and pass logits and targets to the criterion that make_private returned, or make each example's loss "
    "follow from that example alone"
)
_SUM = 'It is their sum if model.config.ctc_loss_reduction is "sum": set that to "mean". '
_DENOISING = ". (Denoising queries are made of the boxes of all examples, as many as the largest number of boxes allows: config.num_denoising = 0 leaves them out)"


class OwnLoss:
    """transformer: the Hugging Face model in `model`; None: there is none. forward: model's, which records nothing."""

    def __init__(self, model: nn.Module, transformer: Any, forward: Callable[..., Any], device: Callable[[], torch.device]):
        self._model, self._transformer, self._forward, self._device = model, transformer, forward, device
        self._forms: dict[tuple, bool] = {}  # of each kind of call (formed_by.py): loss.py has the model's own
        self._call: tuple = ()  # the last one's
        self._sure = False  # examples were compared with themselves alone
        self._pending: Inputs | None = None  # a batch whose examples must be compared
        self._may_form_one = True  # of other arguments than labels
        self._reduction = "mean"
        self._rounding = 0.0  # of the outputs' dtype
        self._former: Any = transformer  # the model whose forward forms the loss: transformer, or what is around it
        self._layers = Layers(model, transformer)

    @property
    def _by_form(self) -> bool | None:
        """loss.py has the loss that the model forms in calls like the last one; None: not known yet."""
        return self._forms.get(self._call)

    def keeps_labels(self, kwargs: dict) -> bool:
        """The model's forward, which begins with these, must get the labels, because its own loss is needed."""
        if self._transformer is None:
            return False
        self._call = deciding(self._transformer, kwargs)
        return not self._by_form or self._is_around or self._decodes

    @functools.cached_property
    def _decodes(self) -> bool:
        """The Transformers model makes its decoder's inputs of the labels (T5Gemma)."""
        return bool(getattr(self._transformer.config, "is_encoder_decoder", False))

    @functools.cached_property
    def _is_around(self) -> bool:
        """There is a module of the user's around the Transformers model, which may make another loss of the model's in any batch."""
        return unwrapped(self._model) is not self._transformer and not self._is_of_peft

    @functools.cached_property
    def _is_of_peft(self) -> bool:
        """What is around the Transformers model is PEFT's alone, which adds nothing to its loss."""
        return original_class(unwrapped(self._model)).__module__.startswith("peft.")

    @property
    def pending(self) -> bool:
        """This rank has a batch for compare()."""
        return self._pending is not None

    def begin(self, given: Inputs) -> None:
        """Before a forward that records."""
        given.loss_call = self._call
        self._pending = None
        needed = self._transformer is not None and (not self._by_form or self._is_around)
        self._layers.begin(active=needed and (given.labels is not None or self._may_form_one))
        if self._model is self._transformer:  # its forward is under way, as it was before
            self._layers.took(given.args, given.kwargs)

    def losses(self, output: Any, given: Inputs, reduction: str) -> torch.Tensor | None:
        """[units] losses after a forward; None if the model formed none. ValueError for a loss that is not told apart."""
        own = loss_of(output) if isinstance(output, dict) else None
        if self._model is self._transformer:
            self._layers.gave(output)
        outputs, self._reduction = self._layers.end(), reduction
        if given.labels is None and not (isinstance(own, torch.Tensor) and own.requires_grad and own.dim() == 0):
            self._may_form_one = False
            self._layers.remove()
            return None
        if given.labels is not None and logits_of(output) is None and own is None:
            raise ValueError(
                "labels with return_dict=False, or a forward that returns a tuple: the model's loss needs its output by name. Return a ModelOutput or a dict with "
                "loss and logits, or leave labels out and pass logits to the criterion that make_private returned"
            )
        if isinstance(own, Shared) and not self._is_of_peft:
            raise ValueError(
                f"{original_class(self._model).__name__} has parameters of its own beside its layers, so that all of it counts as one layer, whose loss of the batch is not told apart "
                f"example by example: make each of these parameters one of a small nn.Module that is called. {_OTHER}"
            )
        settled = bool(self._by_form) and not self._is_around  # then nothing is kept of the forward
        handed_on = settled or self._layers.handed_on(own, copied=self._is_of_peft)
        own = plain(own)  # of a prompt that PEFT learns
        if self._by_form is not False and self._has_form(given, output, handed_on):
            losses = loss_of_transformers(self._transformer, output, given.labels, reduction, given.packing)
            same = self._by_form or self._same(losses, own, given, reduction, logits_of(output).dtype)
            if same is not None:
                self._forms[self._call] = same
            if same and not self._is_around:
                self._layers.remove()
            if same is not False:
                return losses
        if given.packing is not None:
            raise ValueError(
                f"{self._name} forms a loss of its own, which packed texts cannot have one by one (class weights, label smoothing, a "
                f"router's loss, model.loss_function). {_OTHER}"
            )
        self._forms[self._call] = False
        self._rounding = max(torch.finfo(value.dtype).eps for value in tensors_in(output) if value.is_floating_point())
        self._former = self._transformer if handed_on else unwrapped(self._model)
        refuse_another_forward(self._former)
        if not outputs or own is None:
            raise ValueError(
                f"the loss that {original_class(self._model).__name__} gives is not one that {self._name} forms of its layers' outputs, so it is "
                f"not told apart example by example. {_OTHER}"
            )
        if not self._sure and given.units:
            self._pending = given
        losses = self._one_by_one(outputs, given, own)
        return _Beside.apply(losses, *(value for value in tensors_in(output) if value.requires_grad))

    def again(self, given: Inputs, forward: Callable[..., Any]) -> tuple[Any, torch.Tensor | None]:
        """The output of a forward that records nothing, of other arguments in the place of the last one's, and its losses as losses() gave them."""
        by_form = self._forms.get(given.loss_call) is not False  # another forward may have come since
        self._layers.begin(active=not by_form)
        try:
            output = forward(*given.args, **given.kwargs)
        finally:
            outputs = self._layers.end()
        if by_form:
            return output, loss_of_transformers(self._transformer, output, given.labels, self._reduction, given.packing)
        return output, self._one_by_one(outputs, given, None) if outputs else None

    def _has_form(self, given: Inputs, output: Any, handed_on: bool) -> bool:
        logits = logits_of(output)
        if given.labels is None or not handed_on or asks_for_another(self._layers.kwargs) or (given.packing is None and not by_transformers(self._transformer)):
            return False  # what others make of it may be too little to be seen in one batch
        if not per_example_form(self._transformer, given.labels, given.packing):
            if given.packing is None:
                return False
            raise ValueError(
                f"the loss of packed texts of {self._name} has no per-example form here: leave labels out and pass logits and targets to "
                "the criterion that make_private returned"
            )
        if not self._is_of_peft and logits is not None and given.packing is None and self._by_form is None and given.labels.dim() == 2 and logits.shape[:2] != given.labels.shape:
            return False  # the places of a picture are put before those of the text
        taken = self._layers.kwargs.get("labels")  # a prompt's places are put before those of the text
        return self._by_form is True or taken is None or given.units == 0 or taken.shape == given.labels.shape

    def compare(self, last: Inputs) -> bool:
        """Within a backward, on all ranks: two examples' losses beside those of the examples alone. Whether they were compared; then
        no later batch is. ValueError if they differ. A collective if the forward communicates. last: of the last forward."""
        given, self._pending = self._pending, None
        before = State(self._model, self._device())
        training = [module for module in self._model.modules() if module.training]
        self._model.eval()  # no coins, which an example alone would toss anew
        try:
            found, units = [], 0 if given is None else given.units
            with torch.no_grad():
                outputs, _ = self._outputs_of(last)
                replayed = [] if given is None else self._one_by_one(outputs, last, None, [units // 2, units - 1]).tolist()
                for i in (units // 2, units - 1):
                    _, loss = self._outputs_of(last, None if given is None else i)
                    found.append(float("nan") if loss is None else float(loss))
        finally:
            for module in training:
                module.training = True
            before.again()
        for ours, theirs in zip(replayed, found):
            if abs(ours - theirs) > max(1e-3, 8 * self._rounding) * max(abs(theirs), 1e-3):
                raise ValueError(
                    f"{self._name} forms a loss that is not told apart example by example: {theirs:.6g} for one alone, {ours:.6g} "
                    f"from the layers' outputs of its batch. (Coins that a model tosses in evaluation too, such as ViTMAE's masks, come as an argument: "
                    f"noise=torch.rand_like(rows of the batch).) {_OTHER}"
                )
        return bool(replayed)

    def settled(self) -> None:
        """Some rank has compared."""
        self._sure, self._pending = True, None

    @property
    def _name(self) -> str:
        return original_class(self._former).__name__

    def _same(self, losses: torch.Tensor, own: Any, given: Inputs, reduction: str, dtype: torch.dtype) -> bool | None:
        """Whether the losses, reduced as Transformers does, give the model's own. None: this batch cannot tell."""
        losses = losses.detach()
        counts = targets_of_transformers(self._transformer, given.labels, losses, given.packing)
        targets = counts.sum()
        if own is None or given.units == 0 or targets == 0:
            return None
        ours, theirs = float((losses.double() * (counts if reduction == "mean" else 1)).sum() / targets), float(own.detach())
        if ours != ours or theirs != theirs:
            return None
        # Both are means in float32 of the same logits.
        return abs(ours - theirs) <= max(2e-5, 2 * torch.finfo(dtype).eps) * max(abs(ours), abs(theirs), 1e-6)

    def _one_by_one(self, outputs: Outputs, given: Inputs, own: Any, of: list[int] | None = None) -> torch.Tensor:
        units = max(given.units, 1)  # a placeholder stands for none
        found = []
        taken = (self._layers.args, self._layers.kwargs) if self._former is self._transformer else (given.args, given.kwargs)
        for i in range(units) if of is None else of:
            part = _Part(i, units, given.dim)
            bare = outputs.replayed(self._former, part.of)
            handed = HandedIn(*part.of(taken, given.listed))
            try:
                loss = loss_of(bare.forward(*handed.args, **handed.kwargs))
            except Exception as error:  # whatever the model's own code makes of one example's rows: an assertion, a KeyError
                raise ValueError(
                    f"{self._name} forms its loss of something that is not told apart example by example ({str(error) or type(error).__name__}). {_OTHER}"
                    + _DENOISING * bool(getattr(getattr(self._former, "config", None), "num_denoising", 0))
                ) from error
            if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
                raise ValueError(f"{self._name} forms no loss of one example that is one number. {_OTHER}")
            found.append(loss)
        losses = torch.stack(found).float()
        if of is None and own is not None and given.units:
            self._refuse_joint(losses.detach(), own)
        return losses[: given.units] if of is None else losses

    def _refuse_joint(self, losses: torch.Tensor, own: torch.Tensor) -> None:
        """ValueError unless the batch's loss may be a mean of its examples' losses, with weights of whatever kind."""
        least, most, theirs = float(losses.min()), float(losses.max()), float(own.detach())
        near = 1e-2 * max(abs(least), abs(most), 1e-6)
        if theirs < least - near or theirs > most + near:
            by_ctc = getattr(getattr(self._former, "config", None), "ctc_loss_reduction", "mean") == "sum"
            raise ValueError(
                f"{self._name} forms a loss of the batch that is no mean of its examples' losses: {theirs:.6g}, where each example "
                f"alone has from {least:.6g} to {most:.6g} (a contrastive loss, or one with statistics of the batch). {_SUM * by_ctc}{_OTHER}"
            )

    def _outputs_of(self, given: Inputs, i: int | None = None) -> tuple[Outputs, Any]:
        """The layers' outputs and the loss in a forward that records nothing: of the batch, or of example i alone."""
        args, kwargs = given.args, given.kwargs
        if i is not None:
            part = _Part(i, given.units, given.dim)
            args, kwargs = part.of((args, kwargs), given.listed)
        self._layers.begin(active=True)
        loss = loss_of(self._forward(*args, **kwargs))
        outputs = self._layers.end()
        assert outputs is not None
        return outputs, loss

    def detach(self) -> None:
        self._layers.remove()


class _Beside(torch.autograd.Function):
    """Losses, beside outputs of the model: backward goes by these too, with zeros, because fully_shard gathers parameters when it does."""

    @staticmethod
    def forward(ctx, losses, *outputs):
        ctx.zeros = [torch.zeros((), dtype=each.dtype, device=each.device).expand(each.shape) for each in outputs]
        return losses.view_as(losses)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, *ctx.zeros


class _Part:
    """Example i of a batch."""

    def __init__(self, i: int, units: int, dim: int):
        self._i, self._units, self._dim = i, units, dim

    def of(self, value: Any, listed: frozenset[Path] = frozenset()) -> Any:
        """The tree, with the example's rows of each tensor that has the units' extent, or a multiple of it (rows of each example that
        stand together), and its entry of each list of the units. Other tensors are shared."""
        return mapped_units(self._rows, lambda each: picked(each, [self._i]) if self._units > 1 else each, value, listed)

    def _rows(self, value: torch.Tensor) -> torch.Tensor:
        value = as_output(value)  # a table, or labels, that met a prompt's
        dim = self._dim if value.dim() > self._dim + 1 else 0
        if value.dim() == 0 or self._units == 1:
            return value
        count, odd = divmod(value.shape[dim], self._units)
        return value if odd or count == 0 else value.narrow(dim, self._i * count, count)


__all__ = ["OwnLoss"]
