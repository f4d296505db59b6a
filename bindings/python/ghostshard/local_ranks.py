"""Starts a program on several ranks of this machine and gives one true exit status.

Signals reach each rank once. A rank that fails ends the others: by its own announcement, or, if they do not hear it, by this
launcher. The launcher prints nothing of its own but the end of a rank that could not speak any more.
"""

import ctypes
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

GRACE = 20.0  # seconds in which other ranks should end by themselves after one has failed
LAST = 10.0  # seconds between SIGTERM and SIGKILL
STOPPED, MISTAKE, FAILURE = 3, 2, 1
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
# Looked up here: between fork and exec a process must wait for no lock, and loading takes some.
_prctl = ctypes.CDLL(None).prctl
# What a rank says of an end that rank 0 reports as well.
ECHO = re.compile(r"rank \d+: (error: |ending because )")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def prepare_rank(parent: int) -> None:
    """In a process that trains, before its program: it hears signals, and SIGTERM, which asks for a checkpoint, if the process that
    started it is killed. It ends if that has happened already. parent: the id of that process."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def environment_of(rank: int, size: int, port: int) -> dict[str, str]:
    cores = len(os.sched_getaffinity(0))
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {
        "OMP_NUM_THREADS": str(max(1, cores // size)), **os.environ, "MASTER_ADDR": "127.0.0.1",
        **{name: str(value) for name, value in place.items()},
    }  # fmt: skip


class Rank:
    """A started process. Of ranks other than 0 the error output is read, from listen() on: what rank 0 says too is kept back."""

    def __init__(self, number: int, command: list[str], environment: dict[str, str]):
        self.number = number
        self.held: list[str] = []
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stderr=None if number == 0 else subprocess.PIPE,
            process_group=0, preexec_fn=functools.partial(prepare_rank, os.getpid()),
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read, daemon=True)

    def listen(self) -> None:
        """Once all ranks are started: a process that is forked beside a thread may find locked what the thread held."""
        if self.number > 0:
            self.reader.start()

    def _read(self) -> None:
        for raw in self.process.stderr:  # type: ignore[union-attr]  # a pipe
            line = raw.decode(errors="replace")
            if ECHO.match(line):
                self.held.append(line)
            else:
                sys.stderr.write(line)
                sys.stderr.flush()

    def send(self, signum: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signum)

    @property
    def code(self) -> int | None:
        return self.process.poll()


def status_of(codes: list[int], sent: set[int]) -> int:
    """One exit status for all. A mistake of the user explains the failures of the other ranks, which only heard of it.
    sent: the signals that were passed on to the ranks."""
    if MISTAKE in codes:
        return MISTAKE
    for signum in FORWARDED:  # by a second signal, or by one that came before a rank could hear it
        if signum in sent and {128 + signum, -signum} & set(codes):
            return 128 + signum
    if all(code in (0, STOPPED) for code in codes):
        return STOPPED if STOPPED in codes else 0
    return FAILURE


def wait_for(ranks: list[Rank]) -> None:
    """Until all have ended; if one fails, the others have GRACE seconds."""
    deadline = None
    steps = [(signal.SIGTERM, LAST), (signal.SIGKILL, LAST)]
    while any(rank.code is None for rank in ranks):
        if deadline is None and any(rank.code not in (None, 0, STOPPED) for rank in ranks):
            deadline = time.monotonic() + GRACE
        if deadline is not None and time.monotonic() > deadline and steps:
            signum, wait = steps.pop(0)
            for rank in ranks:
                rank.send(signum)
            deadline = time.monotonic() + wait
        time.sleep(0.02)


def say_what_is_left(ranks: list[Rank], sent: set[int]) -> None:
    """The ends that rank 0 has not reported."""
    for rank in ranks[1:]:
        rank.reader.join(1.0)
    if ranks[0].code not in (FAILURE, MISTAKE):
        said = set()
        for line in (line for rank in ranks[1:] for line in rank.held):
            if (text := ECHO.sub("", line)) not in said:
                sys.stderr.write(line)
            said.add(text)
    for rank in ranks:
        if rank.code is not None and rank.code < 0 and -rank.code not in sent:
            print(f"error: rank {rank.number} was ended by {signal.Signals(-rank.code).name}", file=sys.stderr)


def run_ranks(command: list[str], size: int) -> int:
    """Runs the command on `size` ranks; returns 0, 1, 2, 3, or 128 + a signal's number if that ended the ranks at once."""
    port = free_port()
    ranks: list[Rank] = []
    sent: set[int] = set()

    def forward(signum: int, _frame: object) -> None:
        sent.add(signum)
        for rank in ranks:
            rank.send(signum)

    before = {signum: signal.signal(signum, forward) for signum in FORWARDED}
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # a signal between two starts reaches both
    try:
        try:
            for number in range(size):
                ranks.append(Rank(number, command, environment_of(number, size, port)))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        for rank in ranks:
            rank.listen()
        wait_for(ranks)
        say_what_is_left(ranks, sent)
        return status_of([rank.process.wait() for rank in ranks], sent)
    finally:
        for rank in ranks:
            rank.send(signal.SIGKILL)
        for signum, handler in before.items():
            signal.signal(signum, handler)
