"""A way in which people write a training loop: `LOOPS` has all that were imported, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recorded import Run


@dataclass(frozen=True)
class Loop:
    name: str
    body: Callable[[Run], None]
    options: dict


LOOPS: list[Loop] = []


def loop(name: str, **options: Any) -> Callable:
    def keep(body: Callable[[Run], None]) -> Callable[[Run], None]:
        LOOPS.append(Loop(name, body, options))
        return body

    return keep


__all__ = ["LOOPS", "Loop", "loop"]
