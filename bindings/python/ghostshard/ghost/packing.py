"""Several texts laid end to end in one batch: which rows are whose, by keywords that the caller gives beside the tokens.

    model(input_ids=[B,T] or [1,N], ..., segment_ids=[B,T])            a segment is a run of one id within a row
    model(input_ids=[B,T] or [1,N], ..., cu_seqlens=[S+1])             segment s: rows cu_seqlens[s] to cu_seqlens[s+1]
    model(..., segment_ids or cu_seqlens, user_ids=[S])                segments of one user are one unit
    model(x [R,...], units=[R])                                        rows of one example (crops, turns) are one unit

Without user_ids each segment is a privacy unit. The keywords are:

* segment_ids: integers of the tokens' own extents. Within a row they never decrease; the same id in another row is
  another segment. Negative ids are padding. Padding belongs to the segment before it; at the beginning of a row it belongs
  to the row's first segment; a row of padding alone belongs to the last segment before it (or to the batch's first). So
  every row is some unit's, and every gradient counts.
* cu_seqlens: integers from 0 to the number of rows of the flattened batch, increasing. So every segment has rows and every
  row has a segment.
* user_ids: one integer for each segment, in their order. A user's segments need not stand together.
* units: one integer for each row of the batch [R, ...], alone: rows of the same integer are one example's. Each row is a segment, and the
  model takes it whole, as it takes an example (pictures too).

Everything else is a ValueError. The model must keep texts apart, by an attention mask that separates them and by position
ids that start anew (pack_texts makes both); checks/gradients.py refuses a model that leaks.

The keywords are read in host memory: for tensors on a device the host waits once for each keyword.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import nn

from .owners import owners_given
from .provenance import of_the_same, plain

KEYWORDS = ("segment_ids", "cu_seqlens", "user_ids", "units")


@dataclass(frozen=True)
class Packing:
    extents: tuple[int, ...]  # of the tokens, [N] or [B,T]
    segments: int
    segment_of_row: torch.Tensor  # int64 [N]
    unit_of_segment: torch.Tensor  # int64 [segments]; units are numbered as they first appear
    units: int
    padding: torch.Tensor  # bool [N]
    first: torch.Tensor  # bool [N]: a segment begins here; all of them in host memory
    whole: bool = False  # units=: rows of the batch itself, extents [N]
    places: int = 1  # of tokens in each of these rows

    @property
    def rows(self) -> int:
        return self.segment_of_row.numel()

    @property
    def unit_of_row(self) -> torch.Tensor:
        return self.unit_of_segment[self.segment_of_row]

    def described(self) -> tuple[list[int], list[int], torch.Tensor | None, bool]:
        """The arguments of the session's begin_packed(): extents, offsets, the order that brings a unit's rows together (None: they
        are together), and whether each unit is one segment."""
        owners = self.unit_of_row
        ends = torch.bincount(owners, minlength=self.units).cumsum(0).tolist()
        order = torch.argsort(owners, stable=True) if bool((owners.diff() < 0).any()) else None
        return list(self.extents), [0, *ends], order, self.units == self.segments

    def labels_of_segments(self, labels: torch.Tensor, *, causal: bool) -> torch.Tensor:
        """Labels [extents] without those of padding; causal (the token before predicts them): without first tokens' too."""
        if self.whole and labels.shape[:1] == self.extents:
            return labels  # a model shifts them within their row
        if tuple(labels.shape) != self.extents:
            raise ValueError(f"labels of a packed batch have its tokens' extents {self.extents}, got {tuple(labels.shape)}")
        hidden = self.padding | self.first if causal else self.padding
        return labels.masked_fill(_there(hidden, labels).view(self.extents), -100)

    def reduce(self, losses: torch.Tensor, valid: torch.Tensor | None, reduction: str) -> torch.Tensor:
        """Losses of tokens -> [units]: sum or mean over a unit's valid places, without padding. Losses [units] stay as they
        are. ValueError for other extents."""
        shape = tuple(losses.shape)
        if self.whole and self.places > 1 and shape == (self.rows * self.places,):  # of logits that were flattened
            losses = losses.view(self.rows, self.places)
            valid = None if valid is None else valid.reshape(losses.shape)
            shape = tuple(losses.shape)
        if not any(shape[: len(of)] == of for of in (self.extents, (self.rows,), (1, self.rows))):
            if shape == (self.units,):
                return losses
            raise ValueError(
                f"a packed batch of {self.units} units needs one loss for each token, {self.extents} or ({self.rows},), or "
                f"one for each unit, got {shape}. Targets must be shifted without dropping rows "
                "(ghostshard.next_token_labels)"
            )
        flat = losses.reshape(self.rows, -1) if self.rows else losses.reshape(0, 1)
        counted = ~_there(self.padding, flat).unsqueeze(1).expand(flat.shape)
        if valid is not None:
            counted = counted & valid.reshape(flat.shape).to(flat.device)
        owners = _there(self.unit_of_row, flat)
        zeros = flat.new_zeros(self.units)
        total = zeros.index_add(0, owners, torch.where(counted, flat, 0).sum(1))
        if reduction == "sum":
            return total
        return total / zeros.index_add(0, owners, counted.sum(1).to(zeros.dtype)).clamp(min=1)


def _there(described: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return described.to(values.device, non_blocking=True)


def unwrapped(module: nn.Module) -> nn.Module:
    """The model whose forward takes the arguments."""
    wraps = isinstance(module, (nn.parallel.DistributedDataParallel, DifferentiallyPrivateDistributedDataParallel))
    return module.module if wraps else module  # type: ignore[return-value]


@dataclass(frozen=True)
class Keywords:
    """Of packing, in one call of a model."""

    says: frozenset[str] = frozenset()  # whose rows or tokens are
    ends: frozenset[str] = frozenset()  # are not handed on, as the model's own forward does not name them


def keywords_of(module: nn.Module, kwargs: dict) -> Keywords:
    given = {name for name in KEYWORDS if name in kwargs}
    if not given:
        return Keywords()
    own = inspect.signature(unwrapped(module).forward).parameters.keys()
    says = {name for name in given if kwargs[name] is not None}
    if says in ({"user_ids"}, {"units"}) and says <= own:
        says = set()  # the model itself knows about users, and nothing is packed
    return Keywords(frozenset(says), frozenset(given - own))


def read(said: dict, tokens: torch.Tensor) -> Packing | None:
    """The packing by these keywords; None without any. tokens: ids [N] or [B,T], or embeddings with one extent more. ValueError
    for keywords that do not fit the tokens."""
    if not said:
        return None
    if "units" in said:
        return _by_rows(said, tokens)
    if "segment_ids" in said and "cu_seqlens" in said:
        raise ValueError("segments are given by segment_ids or by cu_seqlens, got both")
    if "segment_ids" not in said and "cu_seqlens" not in said:
        raise ValueError("user_ids name the owners of segments: give segment_ids or cu_seqlens with them")
    extents = tuple(tokens.shape[:-1] if tokens.is_floating_point() else tokens.shape)
    if not 1 <= len(extents) <= 2:
        raise ValueError(f"packed tokens have extents [N] or [B,T] (embeddings one more), got {tuple(tokens.shape)}")
    find = _by_ids if "segment_ids" in said else _by_offsets
    segment_of_row, padding, first = find(next(said[name] for name in KEYWORDS if name in said), extents)
    segments = int(first.sum())
    owners, units = _owners(said.get("user_ids"), segments)
    return Packing(extents, segments, segment_of_row, owners, units, padding, first)


def _by_rows(said: dict, rows: torch.Tensor) -> Packing:
    """rows: [R, ...]."""
    if len(said) > 1:
        raise ValueError(f"units say whose the rows of a batch are, and nothing else does, got {sorted(said)}")
    count = rows.shape[0]
    units = _integers("units", owners_given(said["units"]))
    if units.dim() != 1 or len(units) != count:
        raise ValueError(f"units must be one for each of the {count} rows, got shape {tuple(units.shape)}")
    owners, number = _owners(units, count)
    first = torch.ones(count, dtype=torch.bool)
    tokens = rows.shape[1:-1] if rows.is_floating_point() else rows.shape[1:]
    places = math.prod(tokens) if len(tokens) == 1 else 1
    return Packing((count,), count, torch.arange(count), owners, number, ~first, first, whole=True, places=places)


def _integers(name: str, value: Any) -> torch.Tensor:
    value = torch.as_tensor(value).cpu()
    if value.numel() > 0 and (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool):
        raise ValueError(f"{name} must be integers, got {value.dtype}")
    return value.to(torch.int64)


def _by_ids(given: Any, extents: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(segment of each row, whether it is padding, whether a segment begins at it), each [N]."""
    given = _integers("segment_ids", given)
    if tuple(given.shape) != extents:
        raise ValueError(f"segment_ids must have the extents of the tokens, {extents}, got {tuple(given.shape)}")
    if given.numel() == 0:
        nothing = torch.zeros(0, dtype=torch.bool)
        return given.reshape(0), nothing, nothing
    ids = given if given.dim() == 2 else given.unsqueeze(0)
    padding = ids < 0
    highest = torch.where(padding, -1, ids).cummax(1).values
    wrong = (~padding & (ids < highest)).nonzero()
    if len(wrong):
        row, place = wrong[0].tolist()
        raise ValueError(
            f"segment_ids must not decrease within a row (negative: padding), but {ids[row, place].item()} follows "
            f"{highest[row, place].item()} at [{row}, {place}]"
        )
    before = torch.cat([torch.full_like(highest[:, :1], -1), highest[:, :-1]], 1)
    first = highest != before
    if not bool(first.any()):
        raise ValueError(f"a batch of {ids.numel()} rows must have a segment, but all segment_ids are negative (padding)")
    number = first.flatten().cumsum(0).view(ids.shape) - 1
    # Padding at the beginning of a row belongs to the row's first segment, the next number, if the row has a segment at all.
    begins = (highest < 0) & first.any(1, keepdim=True)
    number = (number + begins).clamp(min=0)
    return number.flatten(), padding.flatten(), first.flatten()


def _by_offsets(given: Any, extents: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    offsets = _integers("cu_seqlens", given)
    rows = torch.Size(extents).numel()
    if offsets.dim() != 1 or len(offsets) == 0:
        raise ValueError(f"cu_seqlens must be [segments + 1], got shape {tuple(offsets.shape)}")
    if offsets[0] != 0 or offsets[-1] != rows:
        raise ValueError(
            f"cu_seqlens must go from 0 to the {rows} rows of the batch, got {offsets[0].item()} to {offsets[-1].item()}"
        )
    lengths = offsets.diff()
    if bool((lengths <= 0).any()):
        at = int((lengths <= 0).nonzero()[0])
        raise ValueError(
            f"cu_seqlens must increase, each segment has rows, but {offsets[at + 1].item()} follows {offsets[at].item()}"
        )
    first = torch.zeros(rows, dtype=torch.bool)
    first[offsets[:-1]] = True
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths), torch.zeros_like(first), first


def _owners(given: Any, segments: int) -> tuple[torch.Tensor, int]:
    """(unit of each segment, number of units)."""
    if given is None:
        return torch.arange(segments), segments
    users = _integers("user_ids", given)
    if users.dim() != 1 or len(users) != segments:
        raise ValueError(f"user_ids must be one for each of the {segments} segments, got shape {tuple(users.shape)}")
    numbers: dict[int, int] = {}
    owners = [numbers.setdefault(user, len(numbers)) for user in users.tolist()]
    return torch.tensor(owners, dtype=torch.int64), len(numbers)


# Making packed batches ----------------------------------------------------------------------------------------------


def pack_texts(
    texts: Sequence[Any], *, users: bool = False, mask_dtype: torch.dtype = torch.bool
) -> dict[str, torch.Tensor]:
    """A collate_fn: lays tokenised texts end to end in one row, for a causal model that takes a mask of four extents.

    texts: each is a sequence of token ids. With users=True each is a user's sequence of such texts, because a data set whose
    unit is the user has users for items. A text or a user without tokens is a ValueError; no texts at all are the empty batch.

    Returns input_ids, labels, position_ids and segment_ids [1,N], attention_mask [1,1,N,N], and with users user_ids [S]. A
    token sees itself and the tokens before it in its own text. mask_dtype: torch.bool (true: sees), or a floating dtype for
    attention that adds its mask (0: sees; Hugging Face's "eager").
    """
    owned = [(owner, text) for owner, unit in enumerate(texts) for text in (unit if users else [unit])]
    tokens = [_integers("a text's tokens", text) for _, text in owned]
    if users and any(len(unit) == 0 for unit in texts) or any(text.dim() != 1 or len(text) == 0 for text in tokens):
        raise ValueError("a text is a sequence of one token or more, and a user (users=True) has one text or more")
    ids = torch.cat([torch.zeros(0, dtype=torch.int64), *tokens])
    lengths = torch.tensor([len(text) for text in tokens], dtype=torch.int64)
    segment = torch.repeat_interleave(torch.arange(len(tokens)), lengths)
    starts = lengths.cumsum(0) - lengths
    position = torch.arange(len(ids)) - starts[segment]
    sees = (segment[:, None] == segment[None, :]).tril()
    if mask_dtype != torch.bool:
        sees = torch.zeros(sees.shape, dtype=mask_dtype).masked_fill(~sees, torch.finfo(mask_dtype).min)
    packed = {
        "input_ids": ids[None], "labels": ids[None].clone(), "position_ids": position[None],
        "segment_ids": segment[None], "attention_mask": sees[None, None],
    }  # fmt: skip
    if users:
        packed["user_ids"] = torch.tensor([owner for owner, _ in owned], dtype=torch.int64)
    return packed


def next_token_labels(labels: torch.Tensor, segment_ids: torch.Tensor) -> torch.Tensor:
    """The target of each place, [B,T]: the label after it in its own segment, or -100. For a criterion that takes logits
    [B,T,V] as they are."""
    bare = plain(labels)
    packing = read({"segment_ids": plain(segment_ids)}, bare)
    return of_the_same(shifted(packing.labels_of_segments(bare, causal=True)), labels, segment_ids)


def shifted(labels: torch.Tensor) -> torch.Tensor:
    """Each place gets the label after it, the last of a row gets -100. So logits need not be cut, which would copy them."""
    return torch.cat([labels[..., 1:], torch.full_like(labels[..., :1], -100)], -1)
