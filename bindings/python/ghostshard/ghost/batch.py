"""The arguments of a model's forward, as a private step needs them: whose rows, how many units, labels apart."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..loaders.padding import Axis
from . import packing as packed
from .handed_in import HandedIn
from .layout import original_class
from .listed import Path, with_entries
from .tensor_trees import filled, first_tensor, mapped, without_rows

# Whose tables may have one row. Of texts laid end to end, or nodes, whatever else is no mask counts rows, of which a placeholder has one.
_OF_NUMBER_0 = ("type_ids", "position_ids", "edge_index")


@dataclass
class Inputs:
    args: tuple  # as the model takes them
    kwargs: dict
    examples: torch.Tensor | None = None  # the tensor among them that counts the units
    dim: int = 0  # its dimension of the units
    packing: packed.Packing | None = None
    labels: torch.Tensor | None = None  # for a loss of each unit's own; in kwargs, too, if the model keeps them
    empty_dim: int | None = None  # the dimension that had extent 0; the arguments are placeholders of extent 1
    padding: tuple[Axis, ...] = ()  # of the examples, if the loader told it (checks/padding.py)
    listed: frozenset[Path] = frozenset()  # where lists with an entry for each unit are in (args, kwargs)
    own: tuple[torch.Tensor, ...] = ()  # arguments that have a row for each of the batch's, as the loader's do: no places, whatever their values are
    forward: object = field(default_factory=object)  # which one, for marks in the autograd graph
    buffers: dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)  # the model's before (checks/held_buffers.py)
    keeps: bool = False  # a forward that is recorded sets attributes of the model
    nobodys: torch.Tensor | None = None  # [0] losses of its outputs, if the draw has no example
    handed: HandedIn | None = None  # the arguments as a recorded forward gets them
    earlier: list[Inputs] = field(default_factory=list)  # of the forwards before it in the same microbatch
    was: Any = None  # how the model was after the forward (checks/seen.py)
    again: Any = None  # how it is as it was when the forward is repeated
    ran: Any = None  # how the forward ran (checks/as_recorded.py)
    finding: Any = None  # of provenance, as it is in the graph of the outputs
    token: Callable[[], Any] = lambda: None  # gives something as long as a graph holds an output
    loss_call: tuple = ()  # what decides which loss the model's own code forms (formed_by.py)
    own_losses: Any = None  # of checks/left_beside.py, if the model formed its own
    divided: bool = False  # a trainer gave the number of all targets with the batch
    formed: torch.Tensor | None = None  # losses of its outputs then, as they were formed
    set_aside: list = field(default_factory=list)  # attributes of the model that follow from examples, set by other forwards (checks/set_aside.py)
    told: bool = True  # outputs moved with their own units' inputs, so that what moves with others' would show
    padding_was_compared: set[int] = field(default_factory=set)  # axes by is_padded(), which may find no output to compare
    pooled: bool = True  # no output has places of the batch's axes: found by is_padded()
    padded_outputs: dict[int, list[Any]] = field(default_factory=dict)  # that have places: found by is_padded()
    known_lengths: set[tuple[int, int, int]] = field(default_factory=set)  # of the run: an output's number, its dimensions, and which of them with the units first
    found_lengths: dict[int, list[Any]] = field(default_factory=dict)  # as long as the longest that the model finds, by the output's number (checks/found_lengths.py)

    @property
    def of_nobody(self) -> bool:
        """The draw has no example. A forward that nothing records does not count its units, so that it is no draw."""
        return self.empty_dim is not None or (self.packing is not None and self.packing.units == 0)

    @property
    def units(self) -> int:
        if self.of_nobody:
            return 0
        return self.examples.shape[self.dim] if self.packing is None else self.packing.units

    def hand_in(self) -> None:
        self.handed = HandedIn(self.args, self.kwargs)
        self.own = self.handed.with_copies(self.own)

    def end_forward(self) -> None:
        """What the forward wrote to its arguments is written. Checks go on with what they held."""
        held = {} if self.handed is None else self.handed.write_back()
        if held:
            as_held = lambda value: mapped(lambda each: held.get(id(each), each), value)
            self.args, self.kwargs, self.examples, self.labels, self.own = map(as_held, (self.args, self.kwargs, self.examples, self.labels, self.own))

    def note_losses(self, losses: torch.Tensor) -> None:
        """One for each unit, as model or criterion formed them."""
        self.formed = losses.detach() if self.divided else None

    def output_of_units(self, output: Any) -> Any:
        """The model's output, without the rows of a placeholder."""
        return output if self.empty_dim is None else without_rows(output, self.empty_dim)


def read(
    model: nn.Module, transformer: Any, args: tuple, kwargs: dict, keywords: packed.Keywords, *, batch_first: bool, recording: bool, keeps_labels: bool,
    entries: dict[Path, Any],
) -> Inputs:  # fmt: skip
    """Reads a forward's arguments. transformer: the Hugging Face model in `model`, which would form a loss of labels by itself;
    None: there is none. keeps_labels: it gets them all the same (own_loss.py). entries: of lists that are empty because the draw is (loaders/empty_batch.py).

    If nothing records, the model gets its own arguments, except that keywords of packing are taken out, and that labels
    predict within texts alone. ValueError for packing that does not fit the tokens, and for a private step without a tensor.
    """
    said = {name: kwargs[name] for name in keywords.says}
    kwargs = {name: value for name, value in kwargs.items() if name not in keywords.ends} if keywords.ends else kwargs
    examples = first_tensor(args, kwargs)
    if examples is None and (said or recording):
        raise ValueError("the model's forward needs a tensor that shows how many examples the batch has")
    if said and not batch_first:
        raise ValueError("packed texts need batch_first=True: their rows are taken in the order [B,T]")
    packing = packed.read(said, examples)
    labels = None if transformer is None else kwargs.get("labels")
    if labels is not None and packing is not None:
        labels = packing.labels_of_segments(labels, causal=loss_kind(transformer) == "ForCausalLM")
        kwargs = {**kwargs, "labels": labels}
    if not recording:
        return Inputs(args, kwargs, packing=packing)
    if labels is not None and keeps_labels:
        # The divisor of a batch that is larger than this one.
        kwargs = {name: value for name, value in kwargs.items() if name != "num_items_in_batch"}
    elif labels is not None:
        # Its own loss would be a mean over the tokens of all examples: ours is formed from the logits, example by example.
        kwargs = {name: value for name, value in kwargs.items() if name != "labels"}
    found = Inputs(args, kwargs, examples, 0 if batch_first or examples.dim() < 2 else 1, packing, labels)
    if found.units == 0:
        # Many models cannot reshape an empty batch. One example of zeros takes its place, and its output is not handed on,
        # so that all its gradients are zeros.
        found.empty_dim = found.dim if examples.shape[found.dim] == 0 else 1
        args, kwargs = with_entries((args, kwargs), entries, examples.device)
        number = lambda name, value: 0 if name.endswith(_OF_NUMBER_0) or (packing is not None and value is not examples and not name.endswith("mask")) else 1
        found.args = tuple(filled(value, number(name, value)) for name, value in zip(_names_of(model), args))
        found.kwargs = {name: filled(value, number(name, value)) for name, value in kwargs.items()}
    return found


def _names_of(model: nn.Module) -> Iterator[str]:
    """Of the positional arguments of its forward."""
    parameters = inspect.signature(packed.unwrapped(model).forward).parameters.values()
    return itertools.chain((each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD), itertools.repeat(""))


def without_divisor(model: nn.Module, kwargs: dict) -> dict:
    """Hugging Face's Trainer gives the number of targets of all examples to every model that takes more keywords than it names, also if the loss is
    formed elsewhere. The model does not get it: without labels nothing is divided by it, and each example's loss has its own divisor. (One
    that the forward names is the model's, and followed like any other argument.)"""
    if "num_items_in_batch" not in kwargs or "num_items_in_batch" in inspect.signature(model.forward).parameters:
        return kwargs
    return {name: value for name, value in kwargs.items() if name != "num_items_in_batch"}


def loss_kind(model: Any) -> str | None:
    """The name that Transformers gives to the loss of one of its models."""
    kind = getattr(model, "loss_type", None)
    if kind is None and original_class(model).__name__.endswith("LMHeadModel"):
        return "ForCausalLM"  # Transformers treats these older names in the same way
    return kind
