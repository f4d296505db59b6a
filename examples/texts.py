"""The common parts of the Python examples: their options, and a file's lines as padded batches."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from ranks import add_device_option

IGNORED = -100  # the label of padding


def command_line(description: str, *, model: str, lr: float, max_length: int) -> argparse.ArgumentParser:
    """The options of both examples. model: the kind of model that --model takes; lr, max_length: defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="UTF-8, one example a line")
    parser.add_argument("--output", type=Path, required=True, help="a new folder")
    parser.add_argument("--model", help=f"folder or name of a {model} (default: a small one, untrained)")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="examples a step expects, over all ranks")
    parser.add_argument("--clip-norm", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=lr)
    parser.add_argument("--max-length", type=int, default=max_length, help="cut an example after this many tokens")
    add_device_option(parser)
    return parser


def lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def padded(examples: list[list[int]]) -> dict[str, torch.Tensor]:
    """A collate_fn: token ids [B, longest], with mask and labels that leave padding out."""
    longest = max(map(len, examples))
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, tokens in enumerate(examples):
        ids[row, : len(tokens)] = labels[row, : len(tokens)] = torch.tensor(tokens)
    return {"input_ids": ids, "attention_mask": (labels != IGNORED).long(), "labels": labels}
