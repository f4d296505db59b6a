"""What files are read into: the machine's free memory, or less where a control group leaves less."""

from pathlib import Path

import pytest

from ghostshard import files
from ghostshard._native import load
from ghostshard.errors import UserError
from ghostshard.host_memory import free_memory

MIB = 1 << 20
V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"


def host(root: Path, cgroup: str, groups: dict[str, tuple]) -> Path:
    """1024 MiB are available; of each group its limit, what it uses, and what of that is cached."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, (limit, used, cached) in groups.items():
        old = name.startswith(V1)
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ("memory.limit_in_bytes" if old else "memory.max")).write_text(f"{limit}\n")
        (folder / ("memory.usage_in_bytes" if old else "memory.current")).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\n{'total_inactive_file' if old else 'inactive_file'} {cached}\n")
    return root


CASES = {
    # name: (lines of /proc/self/cgroup, groups, MiB free)
    "no groups": ("", {}, 1024),
    "no limit": ("0::/job\n", {f"{V2}/job": ("max", 5 * MIB, 0)}, 1024),
    "its own": ("0::/job\n", {f"{V2}/job": (300 * MIB, 200 * MIB, 50 * MIB)}, 150),
    "one above": ("0::/a/b\n", {f"{V2}/a/b": ("max", 0, 0), f"{V2}/a": (400 * MIB, 100 * MIB, 0)}, 300),
    "a container's mount": ("0::/\n", {V2: (256 * MIB, 56 * MIB, 0)}, 200),
    "a path that is not there": ("0::/elsewhere\n", {V2: (256 * MIB, 56 * MIB, 0)}, 200),
    "version 1": ("4:cpu:/x\n3:memory:/job\n", {f"{V1}/job": (128 * MIB, 28 * MIB, 4 * MIB)}, 104),
    "used up": ("0::/job\n", {f"{V2}/job": (10 * MIB, 20 * MIB, 0)}, 0),
}


@pytest.mark.parametrize("cgroup, groups, expected", CASES.values(), ids=CASES.keys())
def test_the_least_of_host_and_groups_counts(tmp_path, cgroup, groups, expected):
    assert free_memory(host(tmp_path, cgroup, groups)) == expected * MIB


def test_the_engine_counts_alike():
    """Within what other processes take between the two questions."""
    assert free_memory() == pytest.approx(load("engine").host_memory_left(), rel=0.2)


def test_a_file_beyond_the_groups_limit_is_not_read(tmp_path, monkeypatch):
    root = host(tmp_path / "host", "0::/job\n", {f"{V2}/job": (8 * MIB, 6 * MIB, 0)})
    monkeypatch.setattr(files, "free_memory", lambda: free_memory(root))
    large = tmp_path / "large"
    with large.open("wb") as stream:
        stream.truncate(3 * MIB)
    with pytest.raises(UserError, match=r"at most as large as this machine's free memory \(2 MiB\), it has 3 MiB"):
        files.read_file(large)
