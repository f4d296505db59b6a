"""Peak memory is the program's own, not that of the launcher in whose place it was started: ru_maxrss survives exec."""

import os
import re
import subprocess
import sys

from program import PLAIN, arguments

LAUNCHER = """
import os, sys
ballast = bytearray(b"x") * (900 << 20)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_the_launchers_memory_is_not_counted(program):
    command = [sys.executable, "-c", LAUNCHER, str(program.binary), *arguments(PLAIN, steps="1")]
    done = subprocess.run(command, cwd=program.folder, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    (peak,) = re.findall(r"peak memory (\d+) MiB", done.stdout)
    assert 20 < int(peak) < 800


def test_benches_from_python_count_their_own(repository):
    sys.path.insert(0, str(repository / "bench" / "peers"))
    try:
        from host_memory import peak_host_memory_mib
    finally:
        sys.path.pop(0)
    before = peak_host_memory_mib()
    block = bytearray(b"x") * (int(before + 64) << 20)  # more than was ever resident
    assert peak_host_memory_mib() >= len(block) / 2**20
