"""What the private loader handed out, and whether what reaches the model and the criterion is that.

A forward may run on tensors that the loader did not hand out, as an evaluation does. So each forward leaves what was found beside
its output in the autograd graph, and a backward looks from its losses which forwards it is over.
"""

from __future__ import annotations

import linecache
import os
import warnings
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from ..listed import Path, leaves_beside, paths_of
from ..owners import owners_given
from ..tensor_trees import first_tensor, tensors_in
from .brought_in import wrong_within
from .constants import Constants
from .drawn import VOUCHED, Drawn, Origin, constant, plain
from .findings import BY_HOOK, Finding, in_its_order, in_one_order, is_not, lists_own_entries, mark, not_once, refuse_list, under, wrong_output
from .given_back import GivenBack
from .handed_out import HandedOut
from .opened import contents, same_values
from .orders import order_of_units, orders_of
from .unmarked import unmarked
from .ways import another_way

_PACKING = ("segment_ids", "cu_seqlens", "user_ids")
_OF_PACKED = ("max_length_q", "max_length_k")  # of DataCollatorWithFlattening: the longest text's length, for kernels
_NOT_READ = ("num_items_in_batch",)  # Hugging Face's Trainer gives it, and batch.py takes it out for models of Transformers
_NO_LIST = (
    "this draw has no example, and is a step like any other: a loop over its examples makes an empty list, and torch.{name} ({place}) takes none. Write "
    "`torch.{name}(losses) if losses else torch.zeros(0)` there, of inputs torch.zeros(0, ...) of their extents, or let the criterion, the model or the collate_fn form it"
)


class Provenance:
    """batch_first: of make_private(), for tensors whose first two extents are both the number of examples."""

    def __init__(self, *, allow_vouched: bool = False, batch_first: bool = True):
        self._allow_vouched, self._batch_first = allow_vouched, batch_first
        self._latest: Finding | None = None
        self._warned = False
        self.own: tuple[torch.Tensor, ...] = ()  # of the last forward's arguments, those that have a row for each of the batch's
        self.entries: dict[tuple, Any] = {}  # of lists with one for each example, in a draw of none (loaders/empty_batch.py)
        self.constants = Constants()
        self._out = HandedOut(self.constants, batch_first=batch_first)
        self._back = GivenBack(self._out, self.constants, self._wrong_constant)
        self.lengths = self._back.lengths

    def forget(self) -> None:
        """A new draw begins."""
        self._out.forget()
        self._latest = None
        self.constants.begin_draw()

    def hand_out(self, piece: Any, batch: Any) -> Any:
        """The batch, with Drawn tensors in the place of its own."""
        self.constants.begin_batch(piece.units)
        self.entries = piece.entries
        name, file, line = self.constants.list_joined or ("", "", 0)
        if piece.units == 0 and name and not self._warned and "else" not in linecache.getline(file, line):
            self._warned = True
            warnings.warn(_NO_LIST.format(name=name, place=f"{os.path.basename(file)}:{line}"), stacklevel=5)
        return batch if piece.units == 0 else self._out.hand_out(piece, batch)

    # The loop's side ------------------------------------------------------------------------------------------------

    def read(self, args: tuple, kwargs: dict, *, batch_first: bool, recording: bool, owning: Collection[str]) -> tuple[tuple, dict]:
        """The arguments of a model's forward with plain tensors; if it is recorded, what was found is for the mark() that follows. owning:
        the keywords among them that say whose rows or tokens are (packing.py), and are not the model's own."""
        bare = unmarked(args), unmarked(kwargs)
        if recording:
            self._latest = replace(self._found(args, kwargs, batch_first, owning), course=self.constants.courses.at("the model", tensors_in((args, kwargs))))
            pairs = zip(contents((args, kwargs)), contents(bare)) if batch_first else ()
            self.own = tuple(two for one, two in pairs if isinstance(one, Drawn) and one.origin.dim == 0 and not one.origin.memory.lost)
        return bare

    def hand_in(self, own: tuple[torch.Tensor, ...]) -> None:
        self.constants.within = own

    def _found(self, args: tuple, kwargs: dict, batch_first: bool, owning: Collection[str] = ()) -> Finding:
        examples = first_tensor(args, kwargs)
        if examples is None:
            return Finding()
        dim = 0 if batch_first or examples.dim() < 2 else 1
        rows = examples.shape[dim]
        if examples.numel() == 0:
            return Finding()
        if before := self._forwards_under(examples):
            return before[0]
        packed = any(name in owning for name in _PACKING)
        origin, wrong = self._origin_of(examples, "the model's input")
        if wrong:
            return Finding(wrong)
        refuse_list(origin, (*args, *kwargs.values()))
        units = kwargs["units"] if "units" in owning else None
        alone = units is not None and origin.dim is None and origin.rows == 1  # rows of the one example that was drawn
        if not packed and rows > 1 and origin.dim != dim and not alone:
            return Finding(is_not("the model's input", f"the rows of its dimension {dim} are not those of the examples"))
        if packed and origin.moved:
            return Finding(is_not("the packed input", "its tokens were moved, and which text they are of is not followed"))
        wrong = self._wrong_units(units, origin) if units is not None else "" if packed else not_once(origin, rows)
        aside = (*(["units"] if units is not None else []), *(name for name in _NOT_READ if name in owning and kwargs.get("labels") is not None))
        given = [value for name, value in kwargs.items() if name not in aside]
        read = tuple(each for each in contents((args, given)) if isinstance(each, Drawn))
        listed = frozenset() if packed or units is not None else self._lists_of_units((args, kwargs), origin.numbers(), origin.memory.piece)
        numbers = {name: value for name, value in kwargs.items() if name not in (*aside, *(_OF_PACKED if packed else ()))}
        wrong = wrong or self._wrong_numbers("the model", (args, numbers), listed)
        joined = units is not None or packed
        found = Finding(wrong, origin.memory.piece, origin.ids, origin.rows, joined=joined, packed=packed, read=read, examples=plain(examples), listed=listed)
        apart = {id(each) for each in leaves_beside((args, kwargs), listed)}
        for name, value in [*((f"argument {i}", each) for i, each in enumerate(args)), *kwargs.items()]:
            for tensor in contents(value) if name not in aside else ():
                if not found.wrong and tensor is not examples and (not listed or id(tensor) in apart):
                    found = replace(found, wrong=self._wrong_beside(tensor, origin, rows, name, packed))
        return found

    @property
    def listed(self) -> frozenset[Path]:
        """Of the forward that was read last."""
        return self._latest.listed if self._latest is not None else frozenset()

    @property
    def latest(self) -> Finding | None:
        """The same forward's."""
        return self._latest

    def taken(self, tensors: list[torch.Tensor], read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        """What the forward had in the end, and what was read for it: a hook that comes after the reading is not followed. written: by it, to copies of these arguments."""
        self.constants.within = None
        if self._latest is None or self._latest.wrong:
            return
        self._latest = self._latest.without(written)
        for each in (each for each in tensors if not any(each is one for one in read)):
            alike = each.dim() == 0 or isinstance(each, torch.nn.Parameter) or all(constant(each, d) for d in range(min(each.dim(), 2)))
            if not alike and not any(same_values(one, one._version, each) for one in read):
                self._latest = replace(self._latest, wrong=is_not("the model's input", BY_HOOK))

    def read_layer(self, args: tuple, kwargs: dict, *, batch_first: bool) -> tuple[tuple, dict, Finding | None]:
        """The arguments of a layer that is called outside of the model's forward, and what was found, for mark(). None: they follow
        from other layers' outputs, which have marks."""
        examples = first_tensor(args, kwargs)
        loose = not isinstance(examples, Drawn) or examples.origin.memory.loose
        derived = examples is None or (loose and examples.grad_fn is not None)
        return plain(args), plain(kwargs), None if derived else self._found(args, kwargs, batch_first)

    def _forwards_under(self, tensor: torch.Tensor) -> list[Finding]:
        """Of the forwards that a tensor follows from, those that were refused first."""
        followed = isinstance(tensor, Drawn) and not tensor.origin.memory.loose
        found = [] if followed else [each for each in under([tensor]) if each.forward]
        return sorted(found, key=lambda each: not each.wrong)

    def _origin_of(self, tensor: torch.Tensor, name: str) -> tuple[Any, str]:
        """(origin, why there is none)"""
        if isinstance(tensor, Drawn):
            origin = tensor.origin
            if wrong := another_way(name, tensor):
                return origin, is_not(name, wrong)
            if wrong := self._wrong_word(name, tensor):
                return origin, wrong
            return origin, is_not(name, origin.memory.wrong) if origin.memory.wrong else ""
        if (found := self._out.origin_of(tensor)) is not None:
            return found, ""
        return None, is_not(name, f"it ({tuple(tensor.shape)}) came neither from the loader nor from a batch of it")

    def _wrong_output(self, tensor: torch.Tensor) -> str:
        name = "what the loss is formed of"
        wrong = wrong_output(tensor) or self._wrong_word(name, tensor)
        if not wrong and isinstance(tensor, Drawn) and tensor.origin.live and (found := another_way(name, tensor)):
            wrong = is_not(name, found)
        return wrong

    def _wrong_word(self, name: str, tensor: torch.Tensor) -> str:
        """Why nobody's word may be in it; "" if there is none, or if it may."""
        if self._allow_vouched or not isinstance(tensor, Drawn) or not tensor.origin.memory.vouched:
            return ""
        return f"{name} was vouched for by ghostshard.vouch_for(): give make_private(allow_vouched=True), so that the report says so"

    def _wrong_units(self, units: Any, origin: Origin) -> str:
        """units= says whose each row is: the rows of one number must be those of one row that the loader handed out, unless it came with
        the batch."""
        try:
            units = owners_given(units)
        except ValueError:
            return ""  # packing.py raises it, if the keyword is not the model's own
        mine, theirs = origin.numbers(), plain(units).cpu().reshape(-1)
        if isinstance(units, Drawn) and not units.origin.vouched:
            lost = units.origin.memory.lost
            lost = lost or ("" if units.origin.same_rows(origin) else "its rows are others than the input's")
            return is_not("units=", lost) if lost else ""
        if len(mine) != len(theirs):
            return ""  # packing.py has a sentence for it
        pairs = set(zip(mine.tolist(), theirs.tolist()))
        if len(pairs) == len({one for one, _ in pairs}) == len({two for _, two in pairs}):
            return ""
        return is_not("units=", "it joins other rows than those that were made of one drawn example")

    def _wrong_beside(self, tensor: torch.Tensor, origin: Origin, rows: int, name: str, packed: bool) -> str:
        """Why a tensor may not stand beside the examples; "" if it may."""
        if not isinstance(tensor, Drawn):
            places = tensor.dim() > 0 and tensor.numel() == tensor.shape[-1] and tensor.dtype != torch.bool and torch.equal(
                tensor.reshape(-1), torch.arange(tensor.numel(), dtype=tensor.dtype, device=tensor.device))  # fmt: skip
            alike = tensor.numel() <= 1 or places
            if not packed:
                alike = alike or all(constant(tensor, d) for d in range(min(tensor.dim(), 2)) if tensor.shape[d] == rows)
            if alike or isinstance(tensor, torch.nn.Parameter):
                known = places or isinstance(tensor, torch.nn.Parameter) or tensor.requires_grad
                known = known or self._out.origin_of(tensor)
                return "" if known else self._wrong_constant(name, tensor, single=rows == 1 and not packed)
        if before := self._forwards_under(tensor):
            return before[0].wrong
        beside, wrong = self._origin_of(tensor, name)
        if wrong:
            return wrong
        if packed:
            return is_not(name, "its tokens were moved") if beside.moved else ""
        if beside.memory.piece is not origin.memory.piece and not (beside.vouched or origin.vouched):
            return is_not(name, "it is of another batch of the loader")
        same = beside.rows != origin.rows or beside.same_rows(origin)
        return "" if same else is_not(name, "its rows are of other examples than the input's, or in another order")

    def targets(self, args: tuple, kwargs: dict, beside: dict[str, Any] | None = None) -> tuple[tuple, dict, Finding]:
        """A criterion's arguments with plain tensors, and what was found of those that follow from no forward. beside: constants that
        the criterion has."""
        given = tensors_in((args, kwargs))
        tensors = [each for each in given if each.grad_fn is None and (each.dim() > 0 or isinstance(each, Drawn))]
        bare = unmarked((args, kwargs))
        of = [each for each in under(tensors_in(bare)) if each.forward] or ([self._latest] if self._latest else [])
        if not of:
            return *bare, Finding(forward=False)
        wrong = next((found for each in given if (found := self._wrong_output(each))), "")
        expected = torch.arange(of[0].rows) if of[0].ids is None else of[0].ids.reshape(-1)
        listed = self._lists_of_units((args, kwargs), expected, of[0].piece)
        apart = {id(each) for each in leaves_beside((args, kwargs), listed)}
        orders = orders_of(given, of[0].piece)
        wrong = wrong or next((found for each in tensors if id(each) in apart and (found := self._wrong_target(each, of[0], orders))), "")
        wrong = wrong or self._wrong_numbers("the criterion", (args, kwargs), listed)
        wrong = wrong or next((found for name, each in (beside or {}).items() if (found := self._wrong_constant(name, each))), "")
        order, course = None if of[0].joined else order_of_units(orders, expected, given), self.constants.courses.at("the criterion" if beside is not None else "", given)
        self.constants.within = None if beside is None else ()  # until formed()
        return *bare, Finding(wrong, of[0].piece, expected, of[0].rows, packed=of[0].packed, forward=False, listed=listed, order=order, course=course)

    def _lists_of_units(self, given: Any, expected: torch.Tensor, piece: Any) -> frozenset[Path]:
        known = lambda value: any(value is each for each in self._out.lists) or lists_own_entries(value, expected, piece)
        return paths_of(known, given)

    def _wrong_target(self, tensor: torch.Tensor, of: Finding, orders: list[torch.Tensor]) -> str:
        """orders: of the outputs that it comes with."""
        if of.piece is None or of.wrong or tensor.numel() == 0:
            return ""
        if not isinstance(tensor, Drawn) and constant(tensor, 0):
            return "" if self._out.origin_of(tensor) else self._wrong_constant("a target", tensor, single=of.rows == 1)
        origin, wrong = self._origin_of(tensor, "a target")
        if wrong:
            return wrong
        if tensor.dim() == 0 and origin.rows != 1 and not origin.vouched:
            return is_not("a target", "it is a number of the batch, and would stand in every example's loss")
        if origin.memory.piece is not of.piece and not (origin.vouched or of.piece is VOUCHED):
            return is_not("a target", "it is of another batch of the loader")
        same = in_its_order(origin, of) or any(torch.equal(origin.numbers(), order) for order in orders)
        if same or (origin.dim is None and of.joined):  # packed texts are one row
            return ""
        return is_not("a target", "its rows are of other examples than the model's output, or in another order")

    def met(self, name: str, *constants: Any) -> Finding:
        """What was found of a number, or of a tensor without rows, that met losses; of losses that met each other, if there is none."""
        return Finding(next((wrong for each in constants if (wrong := self._wrong_constant(name, each))), ""), forward=False, course=self.constants.courses.at(name))

    def _wrong_constant(self, name: str, constant: Any, *, alone: bool = False, single: bool = False) -> str:
        wrong = self.constants.wrong(name, constant, alone=alone, single=single)
        return is_not("what the loss is formed of", wrong) if wrong else ""

    def _wrong_numbers(self, name: str, given: Any, listed: frozenset[Path]) -> str:
        numbers = [each for each in leaves_beside(given, listed) if isinstance(each, (float, int)) and not isinstance(each, bool)]
        ask = lambda each: self.constants.goes_with_count(name, each) if name == "the model" and type(each) is int else self.constants.wrong(name, each)
        return next((is_not("what the loss is formed of", found) for each in numbers if (found := ask(each))), "")

    def opened(self) -> bool:
        """Since it was asked last: a constant that was 0 is none any more, so that a term counts that did not."""
        found, self.constants.opened = self.constants.opened, False
        return found

    # The model's side -----------------------------------------------------------------------------------------------

    def give_back(self, output: Any, finding: Finding | None = None) -> Any:
        """The output of the forward that was read last, or of a layer with what was found: Drawn, like the batch, where it is certain which
        rows it has."""
        finding = finding or self._latest
        if finding is None or finding.wrong or finding.piece is None or finding.rows < 1:
            return output
        return self._back.outputs(output, finding)

    def losses(self, losses: torch.Tensor) -> torch.Tensor:
        """[units] losses as the loop gets them, Drawn."""
        found = next((each for each in under([losses]) if each.forward), None)
        return losses if found is None or found.wrong or found.piece is None or found.rows < 1 else self._back.losses(losses, found)

    def gave(self, given: Any) -> None:
        """Outputs of the forward that was read last, or what a layer in it gets: a followed tensor among them came in by another way than its arguments."""
        if self._latest is not None and not self._latest.wrong and (found := self._wrong_within("the model's forward", contents(given), self._latest)):
            self._latest = replace(self._latest, wrong=found)

    def within_layer(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments of a layer in a forward, as plain tensors."""
        if any(isinstance(each, Drawn) for each in tensors_in((args, kwargs))):
            self.gave((args, kwargs))
            args, kwargs = plain(args), plain(kwargs)
        return args, kwargs

    def formed(self, losses: torch.Tensor, found: Finding) -> tuple[torch.Tensor, Finding]:
        """What a criterion gave, as a plain tensor, with what was found of it too."""
        self.constants.within = None
        return plain(losses), replace(found, wrong=found.wrong or self._wrong_within("the criterion", [losses], found))

    def _wrong_within(self, where: str, tensors: list[torch.Tensor], of: Finding) -> str:
        return wrong_within(where, tensors, of, self._origin_of, (0,) if self._batch_first else (0, 1))

    # Marks in the autograd graph ------------------------------------------------------------------------------------

    def mark(self, values: Any, finding: Finding | None = None) -> None:
        """The outputs of the forward that was read last; or of a criterion, with what was found."""
        finding = finding or self._latest
        if finding is not None:
            mark(values, finding)

    def check(self, losses: torch.Tensor, piece: Any) -> None:
        """ValueError unless the losses are of this piece of the loader's."""
        found = under([losses])
        if not any(each.forward for each in found) and self._latest is not None:
            found.append(self._latest)  # its output has no mark: a hook took a layer's
        wrong = next((each.wrong for each in found if each.wrong), "") or self.constants.courses.wrong(found)
        wrong = wrong or next((is_not("the model's input", each.origin.memory.wrong) for one in found for each in one.read if each.origin.memory.wrong), "")
        others = [each for each in found if each.piece is not None and each.piece is not VOUCHED and each.piece is not piece]
        if not wrong and others:
            wrong = is_not("the model's input", "it is of another batch of the loader than the one at hand")
        if not wrong and not in_one_order([each for each in found if each.piece is piece and not each.joined]):
            wrong = is_not("the model's input", "the forwards that the loss is over have its examples in different orders")
        if not wrong and piece.units and not any(each.piece is not None for each in found):
            wrong = is_not("the model's input", "no tensor of the loader reached the model")
        if wrong:
            raise ValueError(wrong)


__all__ = ["Provenance"]
