"""Where ranks come together: groups, each with how often this rank came. If ranks come to two of them in other orders (two runs in one program, a loader that one rank alone begins),
each waits in the one for a rank that waits in the other. What they write to torch.distributed's store shows it."""

from __future__ import annotations

import collections
import contextlib
import threading
from typing import Any

import torch.distributed as dist

_WAITS = "ghostshard/waits/of"
_came: collections.Counter[str] = collections.Counter()  # of this rank, by the name of a group
_threads: set[int] = set()  # of this process that came to any: of several, one may wait while another goes on


def store() -> Any:
    return dist.distributed_c10d._get_default_store()


def arrive(group: Any) -> None:
    """This rank comes to a collective of the group that all of its ranks come to."""
    _came[group.group_name] += 1
    _threads.add(threading.get_ident())


def wait_at(group: Any) -> None:
    """It may wait there."""
    if len(_threads) == 1:
        with contextlib.suppress(RuntimeError, ValueError):  # the store is gone: the collective will say so
            store().set(f"{_WAITS}/{dist.get_rank()}", f"{group.group_name} {_came[group.group_name]}")


def crossing(group: Any) -> int | None:
    """A rank for which this one waits in the group, and that waits for this one in another."""
    if len(_threads) > 1:
        return None
    with contextlib.suppress(RuntimeError, ValueError, KeyError):  # torch.distributed or the group is gone
        for rank in dist.get_process_group_ranks(group):
            if rank != dist.get_rank() and store().check([key := f"{_WAITS}/{rank}"]):
                name, came = store().get(key).decode().rsplit(" ", 1)
                if name != group.group_name and 0 < int(came) == _came[name] + 1:
                    return rank
    return None


__all__ = ["arrive", "crossing", "store", "wait_at"]
