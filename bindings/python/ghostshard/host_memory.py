"""Free memory of a Linux host, as its control groups allow: dp/planning/host_memory_left.h for commands that load neither torch nor the engine."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def free_memory(root: Path = Path("/")) -> int:
    """In bytes, what the system can give without ending somebody: what the kernel calls available, or less if a control group (version 1 or 2)
    that this process is in, or one above it, leaves less. A group's own caches of files count as free. root: another only in tests."""
    available = _entry(root / "proc" / "meminfo", "MemAvailable:")
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if available is None else available << 10
    return min([free, *_left_in_groups(root)])


def _left_in_groups(root: Path) -> Iterator[int]:
    """Lines "hierarchy:controllers:path" (cgroups(7)). A limit above holds for all below it. Inside a container the group's own path may be
    missing: then the mount is the group."""
    for line in _lines(root / "proc" / "self" / "cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            mount, names = root / "sys/fs/cgroup", _VERSION_2
        elif "memory" in controllers.split(","):
            mount, names = root / "sys/fs/cgroup/memory", _VERSION_1
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for each in (group, *group.parents):
            with suppress(OSError, ValueError):  # "max": no limit
                limit, used = (int((mount / each / name).read_text()) for name in names[:2])
                yield max(0, limit - used + (_entry(mount / each / "memory.stat", names[2]) or 0))


def _entry(path: Path, name: str) -> int | None:
    """The number after `name` in a file of lines "name number …"."""
    for line in _lines(path):
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


__all__ = ["free_memory"]
