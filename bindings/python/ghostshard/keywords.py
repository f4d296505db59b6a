"""Keywords of functions that take `**kwargs`, because Opacus' do: one that nobody knows must not be dropped without a word. And flags: a word such as
"false" counts as true in Python, and would ask for the opposite of what it says."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ghostshard.errors import did_you_mean

__all__ = ["refuse_no_flags", "refuse_unknown"]

_FLAGS = (
    "secure_mode", "batch_first", "poisson_sampling", "wrap_model", "rand_on_empty", "own_batches", "allow_vouched", "attribution_check", "every_rank",
)  # fmt: skip
_OR_NONE = ("accumulate",)


def refuse_unknown(given: Iterable[str], of: str, taken: Collection[str]) -> None:
    """TypeError for a keyword that is not among `taken`, with the one that it was probably meant to be. of: the function, as a sentence
    has it."""
    for name in given:
        if name not in taken:
            raise TypeError(f"{of} was given the unknown keyword {name}{did_you_mean(name, taken)}")


def refuse_no_flags(of: str, given: Mapping[str, Any]) -> None:
    """ValueError for a flag among these arguments of the function `of` that is neither True nor False. Those of another kind are passed over."""
    for name, value in given.items():
        known = name in _FLAGS or (name in _OR_NONE and value is not None)
        if known and not isinstance(value, bool):
            words = "True, False or None" if name in _OR_NONE else "True or False"
            raise ValueError(f"{of} takes for {name} {words}, got {value!r} ({type(value).__name__})")
