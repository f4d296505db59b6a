"""Tensors that know which examples of which draw each of their rows is of.

The private loader hands its tensors out as Drawn ones. Every torch function that a loop applies to them is asked whether row u of
its result follows from row u of what was drawn, and from nothing else that differs from row to row (operations.py). If so, its
result is Drawn too, so devices, dtypes, crops, flips, noise of torch.randn_like() and permutations of the batch go through. If not,
or if the function is not known, the result carries the reason, and a backward over it is refused with that reason.

The outputs of a model are Drawn as well, because values without a gradient may join them before the criterion (statistics of the
batch that were detached, values of others). Functions that are not known are taken there as long as all that they join has a gradient:
a gradient shows whose rows it reaches (checks/gradients.py).

Not seen: what leaves torch and comes back (NumPy, lists, strings; if it comes back with the same values, proof.py knows it
again), numbers that were read from a tensor (`x.max().item()`), and constants, whose rows are all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .formed import goes_to_ranks
from .opened import opened

VOUCHED = "vouched"
_WRITTEN = (
    "it was written to in a way that is not followed (by a model in place, for example: let its forward write to a copy, x = x.clone(), or hand the criterion one that was made "
    "before the forward)"
)


class Memory:
    """What all views of one memory share: writing to one of them is writing to all."""

    def __init__(self, piece: Any, lost: str = "", *, strangers: bool = False, vouched: bool = False):
        self.piece = piece  # of the loader (loaders/stamps.py); VOUCHED
        self.strangers = strangers  # it was lost to a tensor without a gradient
        self.vouched = vouched or piece is VOUCHED  # somebody's word is in it
        self.loose = False  # lost to tensors with gradients alone, which checks/gradients.py watches
        self.writes = 0  # that were followed, as torch's version counters count them
        self._lost = lost
        self._exposed: list[tuple[torch.Tensor, torch.Tensor]] = []  # bytes that others can write to, and what they were

    @property
    def wrong(self) -> str:
        """Why it may not stand in a loss; "": it may."""
        return "" if self.loose else self.lost

    @property
    def lost(self) -> str:
        """Why it is not known any more whose the rows are; "": it is."""
        if not self._lost and not all(torch.equal(now, then) for now, then in self._exposed):
            self._lost = "its memory was written to outside of torch"
        return self._lost

    @lost.setter
    def lost(self, why: str) -> None:
        self._lost = why

    def expose(self, value: torch.Tensor) -> None:
        """The memory of this plain tensor goes to somebody whose writing is not followed (NumPy, DLPack, storages)."""
        if not self._exposed:
            content = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
            self._exposed = [(content, content.clone())]

    def written(self, times: int) -> None:
        """By a function that was followed."""
        self.writes += times
        self._exposed = [(now, now.clone()) for now, _ in self._exposed]


_MIXED: dict[int, StorageWeakRef] = {}  # storages that hold what does not keep examples apart
_mixed_at_most = 1 << 10


@dataclass(frozen=True)
class Origin:
    memory: Memory
    rows: int  # how many rows the tensor had that the loader handed out; `ids` number them
    dim: int | None  # of the rows; None: all of it is of one row
    ids: torch.Tensor | None = None  # int64 [extent of dim], on the host; None: 0, 1, … rows - 1. One number if dim is None
    moved: bool = False  # elements have other places than in the tensor that was handed out
    live: bool = False  # an output of the model, or what follows from it with its gradient

    @property
    def vouched(self) -> bool:
        return self.memory.piece is VOUCHED

    def numbers(self) -> torch.Tensor:
        """[rows here]: the row that each was."""
        return torch.arange(self.rows) if self.ids is None else self.ids.reshape(-1)

    def same_rows(self, other: Origin) -> bool:
        return torch.equal(self.numbers(), other.numbers())

    def at(self, dim: int | None, ids: torch.Tensor | None, *, moved: bool = False) -> Origin:
        """In memory of its own."""
        if ids is not None and dim is not None and torch.equal(ids, torch.arange(self.rows)):
            ids = None
        memory = Memory(self.memory.piece, self.memory.lost, vouched=self.memory.vouched)
        return Origin(memory, self.rows, dim, ids, self.moved or moved)

    def lost(self, why: str, *, strangers: bool = False) -> Origin:
        """strangers: to a tensor without a gradient."""
        memory = Memory(self.memory.piece, self.memory.lost or why, strangers=strangers, vouched=self.memory.vouched)
        return Origin(memory, self.rows, None, None, True)

    def within(self, memory: Memory) -> Origin:
        return replace(self, memory=memory)


class Drawn(torch.Tensor):
    """Made by drawn()."""

    followed: Callable[[Any, tuple, dict], Any]  # set by operations.py
    _origin: Origin
    _place: tuple[int, int]
    counted = False  # its extents follow from values: y[y == 0]
    by_place = False  # a part of the batch that a slice took (by_place.py)
    way: dict[tuple, int] = {}  # how it was computed since something was read (ways.py)
    course = 0  # through which places, from the batch on (courses.py)

    @property
    def origin(self) -> Origin:
        memory = self._origin.memory
        if self._place != place_of(self, memory) and not memory.wrong:
            memory.lost, memory.loose = _WRITTEN, False
        return self._origin

    def stays_here(self) -> None:
        """After a write that was followed, which may have moved it (x.data = y)."""
        self._place = place_of(self, self._origin.memory)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return cls.followed(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict) -> torch.Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._is_read("pickling")
        return (_of_a_rank, (plain(self).detach(),)) if goes_to_ranks() else plain(self).__reduce_ex__(protocol)

    def __repr__(self, **_: Any) -> str:
        self._is_read("repr()")
        return repr(plain(self))

    def __format__(self, spec: str) -> str:
        self._is_read("format()")
        return format(plain(self), spec)

    def _is_read(self, how: str) -> None:
        if constants := getattr(self._origin.memory.piece, "constants", None):
            constants.was_read(how)


def drawn(value: torch.Tensor, origin: Origin) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        found = value.as_subclass(Drawn)
        if origin.memory.wrong:
            remember_mixed(value)
    found._origin = origin
    found.stays_here()
    return found


def _of_a_rank(value: torch.Tensor) -> torch.Tensor:
    """That came to this rank in an object."""
    return drawn(value, Origin(Memory(None, "another rank sent it (all_gather_object, broadcast_object_list)", strangers=True), 1, None, None, True))


def shares_what_is_lost(value: torch.Tensor) -> bool:
    """Whether a plain tensor lies in the memory of one that is not known to keep examples apart."""
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return value.layout is torch.strided and value.untyped_storage()._cdata in _MIXED
        except RuntimeError:  # no storage
            return False


def remember_mixed(value: torch.Tensor) -> None:
    """That the memory of this tensor holds values of a batch. A weak reference keeps the address from being given to another storage.
    (Attributes of a storage would need its Python object to live on.)"""
    global _mixed_at_most
    with torch._C.DisableTorchFunctionSubclass():
        if value.layout is not torch.strided:
            return
        storage = value.untyped_storage()
    if len(_MIXED) > _mixed_at_most:
        for address in [address for address, each in _MIXED.items() if each.expired()]:
            del _MIXED[address]
        _mixed_at_most = max(1 << 10, 2 * len(_MIXED))
    if storage._cdata not in _MIXED:
        _MIXED[storage._cdata] = StorageWeakRef(storage)


def version_of(value: torch.Tensor) -> int:
    """How often it was written to; views count together."""
    with torch._C.DisableTorchFunctionSubclass():
        return 0 if value.is_inference() else value._version


def place_of(value: torch.Tensor, memory: Memory) -> tuple[int, int]:
    """Stays what it is as long as every write was followed."""
    with torch._C.DisableTorchFunctionSubclass():
        try:
            address = value.data_ptr()
        except RuntimeError:  # no storage
            address = 0
    return address, version_of(value) - memory.writes


NOT_KNOWN = "whether "
BROUGHT = (
    "{} (torch.distributed) brought values of other ranks into it. A number for people is brought together in a copy (loss.detach().clone()) or after the "
    "backward, and enters no loss"
)


def not_known(name: str) -> str:
    if name.startswith("_c10d_functional"):
        return BROUGHT.format(name.partition("::")[2])
    return f"{NOT_KNOWN}{name} keeps the rows of a batch apart is not known"


def of_rows(piece: Any, rows: int, dim: int = 0) -> Origin:
    """Of a tensor whose extent `dim` is `rows`."""
    return Origin(Memory(piece), rows, dim) if rows != 1 else Origin(Memory(piece), 1, None, torch.tensor(0))


def plain(value: Any) -> Any:
    """The tree, with plain tensors in the place of Drawn ones."""

    def bare(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, Drawn):
            return tensor
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.as_subclass(torch.Tensor)

    return opened(bare, value, Drawn)


def of_the_same(value: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
    """The value, whose rows are those of every source, in their places, if the loader handed all of them out."""
    known = [each for each in sources if isinstance(each, Drawn)]
    if not known:
        return value
    origin = next((each.origin for each in known if each.origin.memory.lost), known[0].origin)
    apart = any(each.origin.moved or each.origin.memory.piece is not origin.memory.piece for each in known) or len(known) < len(sources)
    return drawn(value, origin.lost("it was made of tensors that the loader did not hand out")) if apart else drawn(value, origin)


def constant(value: torch.Tensor, dim: int) -> bool:
    """All rows along dim are the same."""
    if value.shape[dim] <= 1 or value.stride(dim) == 0 or value.numel() == 0:
        return True
    return bool((value == value.narrow(dim, 0, 1)).all())


def vouch_for(tensor: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The tensor, with your word that row u of `dim` holds nothing of any example but the u-th of the batch at hand: noise, random
    times, generated data, or what your own code made of example u alone.

    The engine takes it like a tensor of the private loader if make_private(allow_vouched=True) was given, and the report says so.
    If the word is wrong, epsilon is.
    """
    if not 0 <= dim < max(tensor.dim(), 1):
        raise ValueError(f"dim must be one of the tensor's {tensor.dim()} dimensions, got {dim}")
    return drawn(plain(tensor), of_rows(VOUCHED, tensor.shape[dim] if tensor.dim() else 1, dim))


__all__ = ["BROUGHT", "NOT_KNOWN", "VOUCHED", "Drawn", "Memory", "Origin", "constant", "drawn", "not_known", "of_rows", "of_the_same", "plain", "remember_mixed", "shares_what_is_lost", "version_of", "vouch_for"]
