"""What was found of a forward, or of a criterion, left beside its output in the autograd graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from ..graph import nodes_under
from ..listed import Path
from ..same_memory import lies_within
from ..tensor_trees import tensors_in
from .drawn import Drawn, Origin, plain

_MARK = "ghostshard: whose rows"
_MOST_FUNCTIONS = 1 << 8
OUT = (
    "Change a batch by torch functions that keep its examples apart, or in the data set or its collate_fn (tokenisers, NumPy). If row u of "
    "a tensor holds nothing of any example but the u-th of the batch (noise, generated data, code that cannot be followed), say so by "
    "ghostshard.vouch_for(tensor) and make_private(allow_vouched=True)"
)

BY_HOOK = (
    "a forward pre-hook that was registered after make_private() put another tensor in its place. Register it before make_private(), so "
    "that it is followed, or on the module that make_private() returned"
)


@dataclass(frozen=True)
class Finding:
    """Of one forward, or of a criterion's targets."""

    wrong: str = ""  # why a backward over it is refused
    piece: Any = None  # of the loader; None: no tensor of it was in
    ids: torch.Tensor | None = None  # which rows of the piece, in order; None: all in their order. Of a criterion: those of the forward beneath it
    rows: int = 0  # how many the loader handed out
    joined: bool = False  # units= says whose they are, or texts are laid end to end
    packed: bool = False  # the latter
    read: tuple[Drawn, ...] = ()  # what was read: writing to it unseen by autograd comes too late to be seen by the forward
    forward: bool = True
    examples: torch.Tensor | None = None  # what a forward had as its examples, if nobody followed it
    listed: frozenset[Path] = frozenset()  # where lists with an entry for each unit are in (args, kwargs)
    course: int = 0  # through which places of the loop its arguments came, and where it was called (courses.py)
    order: torch.Tensor | None = None  # of a criterion: the unit of each row that it got, if each has as many and they do not stand as the units do; else None

    def without(self, written: list[torch.Tensor]) -> Finding:
        """A forward whose own copies of these were written to, and not what was read."""
        same = lambda one, two: one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()
        return replace(self, read=tuple(each for each in self.read if not any(same(plain(each), one) for one in written))) if written else self


def is_not(name: str, why: str) -> str:
    return f"{name} is not known to be of the batch that the private loader drew: {why}. {OUT}"


def wrong_output(tensor: torch.Tensor) -> str:
    """Why an output of the model, or what follows from it by gradient, may not stand in a loss."""
    wrong = tensor.origin.memory.wrong if isinstance(tensor, Drawn) and tensor.origin.live else ""
    return is_not("what the loss is formed of", wrong) if wrong else ""


def in_one_order(forwards: list[Finding]) -> bool:
    """Whether row u is of the same example in all of them."""
    orders = [each.ids for each in forwards if each.forward]
    given = [each for each in orders if each is not None]
    return len(given) == 0 or (len(given) == len(orders) and all(torch.equal(each.reshape(-1), given[0].reshape(-1)) for each in given))


def in_its_order(origin: Origin, of: Finding) -> bool:
    """Whether rows are those of a forward, in its order, as many of each."""
    expected = torch.arange(origin.rows) if of.ids is None else of.ids.reshape(-1)
    each, odd = divmod(len(origin.numbers()), max(len(expected), 1))
    return not odd and torch.equal(origin.numbers(), expected.repeat_interleave(each))


def not_once(origin: Origin, rows: int) -> str:
    """Why a forward does not have each example once; "" if it does."""
    if origin.rows != rows or origin.ids is None:
        return ""  # the count of units has a sentence of its own
    once = torch.equal(origin.ids.reshape(-1).sort().values, torch.arange(rows))
    return "" if once else is_not("the model's input", "it does not hold each example once")


def lists_own_entries(value: Any, expected: torch.Tensor, piece: Any) -> bool:
    """Whether a list holds tensors of this piece, those in entry u of unit expected[u] alone."""
    if not isinstance(value, (list, tuple)) or len(value) != len(expected):
        return False
    held = [tensors_in(each) for each in value]
    return any(held) and all(_is_of(tensor, int(unit), piece) for unit, tensors in zip(expected, held) for tensor in tensors)


def _is_of(tensor: torch.Tensor, unit: int, piece: Any) -> bool:
    origin = tensor.origin if isinstance(tensor, Drawn) else None
    return origin is not None and not origin.memory.wrong and origin.memory.piece is piece and origin.dim is None and origin.numbers().tolist() == [unit]


def refuse_list(origin: Origin, given: tuple) -> None:
    """ValueError if the examples come as a list with a tensor for each: a layer would take an extent of the first one for their number. origin: of the first tensor."""
    first = next((value for value in given if tensors_in(value)), None)
    if origin.dim is None and isinstance(first, (list, tuple)) and lists_own_entries(first, torch.arange(origin.rows), origin.memory.piece):
        raise ValueError(
            f"the model's first argument is a list with one entry for each of the {len(first)} examples, and a private model needs a tensor first, whose rows are the examples: "
            "join them in the loop or in collate_fn (torch.stack(images), nn.utils.rnn.pad_sequence(texts, batch_first=True)); lists may come behind it"
        )


def mark(values: Any, finding: Finding) -> None:
    for value in tensors_in(values):
        if value.grad_fn is not None:
            value.grad_fn.metadata.setdefault(_MARK, []).append(finding)


def _marks(node: Any) -> list[Finding]:
    return node.metadata.get(_MARK, [])


def of_no_forward(node: Any) -> bool:
    """A node of the graph that the loop or a criterion made."""
    return not any(each.forward for each in _marks(node))


def under(values: list[torch.Tensor]) -> list[Finding]:
    """Of the forwards and criterions that these follow from."""
    return [each for node in nodes_under(values, of_no_forward) for each in _marks(node)]


def functions_under(losses: torch.Tensor) -> frozenset[str]:
    """Names of the functions that formed them of the outputs of forwards, each with the dimensions along which it goes."""
    nodes = filter(of_no_forward, nodes_under([losses], of_no_forward))
    return frozenset(f"{node.name()} {getattr(node, '_saved_dim', '')}" for node in islice(nodes, _MOST_FUNCTIONS))


def may_train(losses: torch.Tensor, leaf: torch.Tensor, piece: Any = None, *, vouched: bool = False) -> bool:
    """Whether a leaf that these losses reach is of the batch: one that the loader handed out with this piece (vouched: or that the loop
    vouched for), or what the forwards under the losses read, or a view of that (as Wav2Vec2 makes one). A copy, which only has the
    same values, is not: a table of its own may have them too."""
    if isinstance(leaf, Drawn):
        memory = leaf.origin.memory
        return not memory.wrong and (memory.piece is piece or (vouched and leaf.origin.vouched))
    read = [each for found in under([losses]) for each in (*found.read, found.examples) if each is not None]
    # What requires a gradient itself has no leaf among its views, unless somebody's leaf was handed out.
    return any(leaf is each or (not each.requires_grad and lies_within(leaf, each)) for each in read)


__all__ = ["Finding", "functions_under", "in_one_order", "is_not", "lists_own_entries", "mark", "may_train", "not_once", "of_no_forward", "refuse_list", "under", "wrong_output"]
