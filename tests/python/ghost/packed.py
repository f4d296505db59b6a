"""Texts of uneven lengths, how they are packed, and the slow twin that runs each alone."""

from __future__ import annotations

import copy

import oracle
import torch
from torch import nn
from torch.nn import functional

from ghostshard import pack_texts

LENGTHS = [3, 7, 1, 5, 2, 6]  # a text of one token predicts nothing
User = list[list[int]]  # one unit: its texts


def some_users(*texts_of_each: int, lengths=LENGTHS, vocabulary: int = 50) -> list[User]:
    """As many users, each with as many texts; without arguments one text to a user."""
    left = iter(torch.randint(0, vocabulary, (length,)).tolist() for length in lengths)
    return [[next(left) for _ in range(texts)] for texts in texts_of_each or [1] * len(lengths)]


def clipped_sum(model: nn.Module, users: list[User], clip_norm: float) -> dict[str, torch.Tensor]:
    """Each text alone and unpacked, in float64; a user's loss is the mean over the predictions of all their texts."""

    def loss(twin, batch):
        total, tokens = torch.zeros((), dtype=torch.float64), 0
        for text in users[int(batch[0])]:
            if len(text) > 1:
                ids = torch.tensor([text])
                logits = twin.eval()(input_ids=ids, use_cache=False).logits[0, :-1]
                total = total + functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
                tokens += len(text) - 1
        return total / max(tokens, 1) + sum(0 * p.sum() for p in twin.parameters() if p.requires_grad)

    return oracle.clipped_sum(copy.deepcopy(model), loss, [(torch.arange(len(users)),)], clip_norm)


def in_rows(rows: list[list[User]], width: int) -> dict[str, torch.Tensor]:
    """[B,T] by hand: each row some texts and then padding; ids anew in each row; an additive-free mask of four extents."""
    made = {name: torch.zeros(len(rows), width, dtype=torch.long) for name in ("input_ids", "position_ids")}
    made["labels"] = torch.full((len(rows), width), -100)
    made["segment_ids"] = torch.full((len(rows), width), -1)
    for row, texts in enumerate(rows):
        at = 0
        for number, [text] in enumerate(texts):
            place = slice(at, at + len(text))
            made["input_ids"][row, place] = made["labels"][row, place] = torch.tensor(text)
            made["position_ids"][row, place] = torch.arange(len(text))
            made["segment_ids"][row, place] = 2 * number
            at += len(text)
    ids = made["segment_ids"]
    made["attention_mask"] = (ids[:, :, None] == ids[:, None, :]).tril().unsqueeze(1)
    return made


def texts_of(users):
    return [text for [text] in users]


def one_row(users):
    return pack_texts(texts_of(users))
