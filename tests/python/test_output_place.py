"""Where a run writes, and where its ranks meet: a disk without room for the model, a read-only folder, a port that is taken.
Refused before anything is charged."""

import os
import socket
import subprocess

import pytest
from program import PRIVATE, arguments, free_port


def unshared(script: str) -> list[str]:
    """A command that mounts in a namespace of its own; what follows is the program's."""
    flags = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *flags, "--mount", "bash", "-c", script + ' && exec "$0" "$@"']


@pytest.fixture
def on_disk(program):
    """Runs the program in its folder with a disk of its own at disk/."""
    (program.folder / "disk").mkdir()
    if subprocess.run([*unshared("mount -t tmpfs none disk"), "true"], cwd=program.folder, capture_output=True).returncode != 0:
        pytest.skip("this machine allows no mounts")

    def run(options: str, *words: str) -> subprocess.CompletedProcess:
        command = [*unshared(f"mount -t tmpfs -o {options} none disk"), str(program.binary), *words]
        return subprocess.run(command, cwd=program.folder, capture_output=True, text=True, timeout=180)

    return run


def test_a_disk_without_room_for_the_model_is_refused(on_disk):
    done = on_disk("size=100k", *arguments(PRIVATE, output="disk/run"))
    assert done.returncode == 2 and done.stdout == ""
    assert "--output must lie on a disk with room for the trained model (1 MiB), " in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_disk_with_room_is_not(on_disk):
    assert on_disk("size=4m", *arguments(PRIVATE, output="disk/run")).returncode == 0


@pytest.mark.parametrize("output", ["disk", "disk/run", "disk/not/there"])
def test_a_read_only_folder_is_refused(on_disk, output):
    done = on_disk("ro", *arguments(PRIVATE, output=output))
    assert done.returncode == 2
    assert "--output must lie in a folder that may be written to, " in done.stderr and "Read-only file system" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_named(program):
    port = free_port()
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        done = program.start(arguments(PRIVATE, timeout="20"), place).wait(60)
    assert done.code == 1 and "Traceback" not in done.err
    assert f"the store at 127.0.0.1:{port} within 20 s: another program listens there; MASTER_PORT names another port" in done.err
    assert not (program.folder / "run").exists()
