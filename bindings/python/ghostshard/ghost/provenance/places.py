"""Where the loop is: the file and the line that called torch or us."""

from __future__ import annotations

import os
import sys

import torch

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "")


def place_of_loop() -> tuple[str, int]:
    """File and line of the loop."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_TORCH, _OURS)):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def masks_of_transformers() -> str:
    """The file in which Transformers asks of a mask whether it hides nothing, to leave it out then: a teacher's attention is the same with and without."""
    module = sys.modules.get("transformers.masking_utils")
    return getattr(module, "__file__", None) or ""


__all__ = ["masks_of_transformers", "place_of_loop"]
