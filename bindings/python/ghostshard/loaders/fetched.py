"""Items as a DataLoader fetches them: by `__getitems__` where a data set has one. What is looked at must be what is drawn, and `__getitem__` may say
something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def fetched(dataset: Any, places: Sequence[int]) -> list[Any]:
    """ValueError if there are more or fewer items than places."""
    many = getattr(dataset, "__getitems__", None)
    if not many:
        return [dataset[place] for place in places]
    items = many(list(places))
    if len(items) != len(places):
        raise ValueError(
            f"the data set's __getitems__() gave {len(items)} items for {len(places)} indices: each index is a unit of its own, so it must give one item for each, "
            "in their order. Cut the items there, or give each of them an index"
        )
    return list(items)


def item_of(dataset: Any, place: int) -> Any:
    return fetched(dataset, [place])[0]


def ways_to_items(dataset: Any) -> list[Callable[[int], Any]]:
    """Of a data set that another one holds, which may fetch its items either way."""
    by_number = lambda place: dataset[place]
    return [by_number, lambda place: item_of(dataset, place)] if getattr(dataset, "__getitems__", None) else [by_number]


__all__ = ["fetched", "item_of", "ways_to_items"]
