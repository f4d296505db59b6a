"""Where a run writes, and where its ranks meet: a disk without room for the model, a read-only folder, a port that is taken.
Refused before anything is charged."""

import os
import resource
import socket
import subprocess

import pytest
from program import PRIVATE, arguments


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
    assert "--output must lie on a disk with room for the trained model and 1 checkpoint(s) (1 MiB), " in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_disk_without_room_for_its_checkpoints_is_refused(on_disk):
    """Weights and two moments are 88 kB; two checkpoints stay, and a third is written before the oldest goes."""
    flags = arguments(PRIVATE, output="disk/run", steps="9", checkpoint_every="2")
    done = on_disk("size=500k", *flags)
    assert done.returncode == 2 and "for the trained model and 3 checkpoint(s) (1 MiB), " in done.stderr
    assert on_disk("size=500k", *flags, "--optimizer", "sgd", "--keep-checkpoints", "1").returncode == 0


FILL = """mount -t tmpfs -o size=2m none disk
"$0" "$@" & run=$!
written() { until compgen -G "disk/run/checkpoints/step-*$1" > /dev/null; do kill -0 $run || exit 9; sleep 0.02; done; }
written 0[4-9]?
kill -STOP $run
cat /dev/zero > disk/filler 2> /dev/null
truncate -s -60K disk/filler
kill -CONT $run
written [2-9]??
rm disk/filler
kill -TERM $run; wait $run; exit $?"""


@pytest.mark.usefixtures("on_disk")
def test_older_checkpoints_make_room_for_a_new_one(program):
    """60 KiB are left on the disk, and a checkpoint has 88 kB."""
    flags = arguments(PRIVATE, output="disk/run", steps="100000", checkpoint_every="20")
    command = [*unshared(FILL), str(program.binary), *flags]
    done = subprocess.run(command, cwd=program.folder, capture_output=True, text=True, timeout=180)
    assert done.returncode == 3, done.stderr
    assert "no checkpoint" not in done.stderr


def test_a_file_beyond_its_limit_is_a_sentence_and_no_signal(program):
    """As with ulimit -f; the program alone ignores the signal."""
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    done = subprocess.run([program.binary, *arguments(PRIVATE)], cwd=program.folder, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 1 and "File too large" in done.stderr


def test_a_disk_with_room_is_not(on_disk):
    assert on_disk("size=4m", *arguments(PRIVATE, output="disk/run")).returncode == 0


@pytest.mark.parametrize("output", ["disk", "disk/run", "disk/not/there"])
def test_a_read_only_folder_is_refused(on_disk, output):
    done = on_disk("ro", *arguments(PRIVATE, output=output))
    assert done.returncode == 2
    assert "--output must lie in a folder that may be written to, " in done.stderr and "Read-only file system" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_named(program):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        done = program.start(arguments(PRIVATE, timeout="20"), place).wait(60)
    assert done.code == 1 and "Traceback" not in done.err
    assert f"the store at 127.0.0.1:{port} within 20 s: another program listens there; MASTER_PORT names another port" in done.err
    assert not (program.folder / "run").exists()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_printed_goes_into_no_file_if_a_stream_is_closed(program, account, closed):
    """The ledger would have the number of the stream."""
    command = ["bash", "-c", f'exec "$0" "$@" {closed}', str(program.binary), *arguments(PRIVATE)]
    done = subprocess.run(command, cwd=program.folder, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    run = program.folder / "run"
    assert account("verify", "--ledger", run / "ledger.jsonl", "--report", run / "privacy_report.json").returncode == 0


def test_a_reader_of_the_progress_that_goes_away_does_not_end_a_run(program):
    words = " ".join(arguments(PRIVATE))
    done = subprocess.run(["bash", "-c", f"{program.binary} {words} 2>&1 | true; exit ${{PIPESTATUS[0]}}"], cwd=program.folder, timeout=180)
    assert done.returncode == 0 and (program.folder / "run" / "privacy_report.json").exists()


def test_an_answer_that_cannot_be_printed_is_no_success(account):
    with open("/dev/full", "w") as full:
        words = ["epsilon", "--phase", "0.01:1:10", "--delta", "1e-5"]
        done = subprocess.run([*account.program, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "standard output cannot be written" in done.stderr


def test_a_register_without_its_folder_is_a_mistake(program):
    done = program.run(arguments(PRIVATE, budget_register="not/there/budgets.jsonl", budget_limit="9"))
    assert done.code == 2 and "not/there/budgets.jsonl cannot be used" in done.err and "No such file" in done.err
