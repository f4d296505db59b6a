"""Keywords of functions that take `**kwargs`, because Opacus' do: one that nobody knows must not be dropped without a word."""

from collections.abc import Collection, Iterable

from ghostshard.errors import did_you_mean

__all__ = ["refuse_unknown"]


def refuse_unknown(given: Iterable[str], of: str, taken: Collection[str]) -> None:
    """TypeError for a keyword that is not among `taken`, with the one that it was probably meant to be. of: the function, as a sentence
    has it."""
    for name in given:
        if name not in taken:
            raise TypeError(f"{of} was given the unknown keyword {name}{did_you_mean(name, taken)}")
