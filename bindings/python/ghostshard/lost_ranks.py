"""What a rank says if another one does not answer: its process has ended, or it is elsewhere. Torch's own error names a socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

RULE = (
    "Every rank takes every batch of its loader, leaves the loop where the others leave it, and evaluates, saves and reports a sharded model together "
    "with them. If a rank ended by an error of its own, that is the one to look for: its message stands above or among the other ranks' output"
)


class LostRank(RuntimeError):
    """Another rank has ended, or has left the run."""


@contextmanager
def answered(*, every_error: bool = True) -> Iterator[None]:
    """Around collectives of ours. LostRank in the place of their error. every_error=False: of code in which other errors may come up, too."""
    try:
        yield
    except LostRank:
        raise
    except RuntimeError as error:
        if not (every_error or _of_a_group(error)):
            raise
        first = str(error).strip().partition("\n")[0]
        raise LostRank(f"another rank does not answer: it has ended, or is elsewhere in the run (torch says: {first[:200]}). {RULE}") from error


def _of_a_group(error: RuntimeError) -> bool:
    """Gloo's errors have no type of their own; their text names its source file."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


__all__ = ["RULE", "LostRank", "answered"]
