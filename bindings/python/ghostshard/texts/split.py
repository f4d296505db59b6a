"""Which units are declared public.

The choice must not look at a text: units are put in the order of SHA-256("seed:index"), the first ones become
public. It depends on the seed and the number of units alone, on every machine and version of Python.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ghostshard.errors import UserError
from ghostshard.texts.text import TextUnit


@dataclass(frozen=True)
class Split:
    """Indices of units, each ascending, disjoint and together all of them."""

    public_train: list[int]
    public_eval: list[int]
    private: list[int]


def units_of(texts: Sequence[TextUnit]) -> list[list[int]]:
    """The texts of each privacy unit: all of a user's, wherever they stand, or one. Units in the order of their first texts."""
    groups: dict[object, list[int]] = {}
    for index, text in enumerate(texts):
        groups.setdefault(("text", index) if text.user is None else ("user", text.user), []).append(index)
    return list(groups.values())


def split_indices(units: int, *, public_units: int, eval_units: int, seed: int) -> Split:
    """Takes eval_units for evaluation first, so that another public_units leaves them the same.

    UserError unless at least one unit remains private.
    """
    if not (public_units >= 0 and eval_units >= 0 and public_units + eval_units < units):
        raise UserError(
            f"public and evaluation units together must be fewer than the {units} units there are, "
            f"got {public_units} + {eval_units}"
        )
    order = sorted(range(units), key=lambda index: hashlib.sha256(f"{seed}:{index}".encode()).digest())
    public_end = eval_units + public_units
    return Split(
        public_train=sorted(order[eval_units:public_end]),
        public_eval=sorted(order[:eval_units]),
        private=sorted(order[public_end:]),
    )
