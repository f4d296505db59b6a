"""Which lists of a batch have an entry for each example?

As many entries as examples tell little: two columns, of two examples. But a list that has one entry for each of several examples that are
collated alone, and two for two of them, has one for each; one that is always as long holds columns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .coins import Coins
from .padding import copies_of

Path = tuple  # of keys, places and attributes, from the batch
_ALONE = 4  # examples that are collated alone: a list of all their boxes has one entry for some of them


def ones_and_two(collate: Callable[[list], Any], examples: list) -> tuple[list[Any], Any] | None:
    """Batches of one example each, and of the first one twice; None if collate_fn takes no such ones. Generators stay what they were."""
    before = Coins(collate)
    try:
        return [collate(copies_of([each])) for each in examples[:_ALONE]], collate(copies_of(examples[:1] * 2))
    except Exception:  # of the user's code, which is asked what no draw has asked it yet
        return None
    finally:
        before.again()


def told_apart(ones: Sequence[Any], two: Any, path: Path = ()) -> dict[Path, bool]:
    """Of each list in a batch, whether it has an entry for each example."""
    found: dict[Path, bool] = {}
    one = ones[0]
    if any(type(each) is not type(one) for each in (*ones, two)):
        return found
    if isinstance(one, Mapping):
        keys = [key for key in one if all(key in each for each in (*ones, two))]
    elif isinstance(one, (list, tuple, deque)):
        lengths = {len(each) for each in ones}
        if not hasattr(one, "_fields"):
            found[path] = lengths == {1} and len(two) == 2
        keys = list(range(len(one))) if lengths == {len(two)} else []
    else:
        keys = list(held(one))
    for key in keys:
        found.update(told_apart([_at(each, key) for each in ones], _at(two, key), (*path, key)))
    return found


def entry_at(batch: Any, path: Path) -> Any:
    """What is there. LookupError, TypeError or AttributeError: nothing is."""
    for key in path:
        batch = _at(batch, key)
    return batch


def _at(value: Any, key: Any) -> Any:
    return value[key] if isinstance(value, (Mapping, list, tuple, deque)) else getattr(value, key)


def held(value: Any) -> dict[str, Any]:
    """Attributes with what a batch is made of."""
    plain = isinstance(value, (torch.Tensor, str, bytes)) or callable(value)
    return {} if plain else {key: each for key, each in getattr(value, "__dict__", {}).items() if isinstance(each, (torch.Tensor, list, tuple, Mapping, deque))}


__all__ = ["Path", "entry_at", "held", "ones_and_two", "told_apart"]
