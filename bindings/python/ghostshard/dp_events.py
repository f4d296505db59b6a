"""Events of dp_accounting as the C++ accountant reads them."""

import math
from typing import Any

__all__ = ["as_plain"]


def as_plain(event: Any) -> Any:
    """dp_accounting's event as its class name and fields, without importing dp_accounting."""
    if hasattr(event, "to_named_tuple"):
        event = event.to_named_tuple()
    if hasattr(event, "_asdict"):
        return {name: as_plain(value) for name, value in event._asdict().items()}
    if isinstance(event, list | tuple):
        return [as_plain(value) for value in event]
    if hasattr(event, "item"):  # a number of NumPy
        event = event.item()
    return "inf" if event == math.inf else event  # the shape of repeats whose number is Poisson's
