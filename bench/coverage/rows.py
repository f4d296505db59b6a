"""The rows of the table of models: each family in each way, and each of PEFT's methods on a family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from families import FAMILIES, Family
from torch import nn
from ways import METHODS, WAYS


@dataclass(frozen=True)
class Row:
    name: str  # "family (head): way"
    family: Family
    way: str
    prepared: Callable[[nn.Module], nn.Module]


def rows() -> Iterator[Row]:
    for family in FAMILIES:
        for way, prepared in WAYS.items():
            yield Row(f"{family.name} ({family.head}): {way}", family, way, lambda m, p=prepared, f=family: p(m, f.adapted))
    by_name = {family.name: family for family in reversed(FAMILIES)}
    for method, prepared in METHODS.items():
        for name in ("llama", "gpt2"):
            yield Row(f"{name}: {method}", by_name[name], method, lambda m, p=prepared, n=name: p(m, n))


def built(row: Row) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(1)
    model = row.family.build()
    batch = row.family.batch(model.config)
    return row.prepared(model), batch


__all__ = ["Row", "built", "rows"]
