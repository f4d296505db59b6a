"""Which units are declared public.

The choice must not look at a text: units are put in the order of SHA-256("seed:index"), the first ones become
public. It depends on the seed and the number of units alone, on every machine and version of Python.
"""

import hashlib
from dataclasses import dataclass

from ghostshard.errors import UserError


@dataclass(frozen=True)
class Split:
    """Indices of units, each ascending, disjoint and together all of them."""

    public_train: list[int]
    public_eval: list[int]
    private: list[int]


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
