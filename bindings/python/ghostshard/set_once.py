"""Settings of Opacus' interface that make_private() put into the run: to set them later would change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SetOnce:
    """AttributeError for whoever sets one of `set_once` to something else later. It has their names, and where each is said."""

    set_once: Mapping[str, str] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.set_once and name in vars(self):
            before = vars(self)[name]
            if before is not value and (type(before) is not type(value) or before != value):
                raise AttributeError(
                    f"{name} is of the run that make_private() began with {before!r}, and setting it to {value!r} later would change nothing. It is said by "
                    f"{self.set_once[name]}, before a run begins"
                )
        super().__setattr__(name, value)


__all__ = ["SetOnce"]
