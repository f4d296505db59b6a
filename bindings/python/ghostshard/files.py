"""Reading what a caller names, without waiting for a pipe; writing so that a crash leaves the old file or the new one, never half of one."""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ghostshard.errors import Failure, UserError
from ghostshard.host_memory import free_memory

OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # the place is right, the disk is not


def read_file(path: Path) -> bytes:
    """The content as it is now: what is appended meanwhile is left out. OSError if the system refuses, UserError unless it is a regular
    file that memory holds: the bytes of a pipe or a device would be waited for, or would never end, and the system ends a program for
    what it cannot hold without a word."""
    require_regular_file(path)  # a socket cannot be opened
    # It may be another one by now: without O_NONBLOCK the opening of a pipe waits for somebody who writes into it.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)) as stream:
        status = os.fstat(stream.fileno())
        _require_regular(path, status.st_mode)
        _require_memory(path, status.st_size)
        return stream.read(status.st_size)


def require_regular_file(path: Path) -> None:
    """The same for a file that a library opens."""
    _require_regular(path, os.stat(path).st_mode)


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kinds = ((stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"))
        kind = next((name for is_one, name in kinds if is_one(mode)), "device")
        raise UserError(f"{path} must be a regular file, it is a {kind}")


def _require_memory(path: Path, size: int) -> None:
    free = free_memory()
    if size > free:
        raise UserError(f"{path} is read whole, so it must be at most as large as this machine's free memory ({free >> 20} MiB), "
                        f"it has {size >> 20} MiB")  # fmt: skip


def require_writable_file(path: Path, *, force: bool) -> None:
    """UserError if something is at `path` already (unless a file, with force), or no folder can be made to hold it."""
    with _visible(path):
        if path.is_dir():
            raise UserError(f"the output must be a file, {path} is a folder")
        _require_no_device(path)
        if path.exists() and not force:
            raise UserError(f"the output {path} exists already; --force overwrites it")
    make_parent(path)


def require_writable_folder(path: Path, *, force: bool, holds: set[str]) -> None:
    """The same for a folder. force removes a folder only if it holds nothing but files of the names in `holds`."""
    present = names_in_output(path)
    if present and not force:
        raise UserError(f"the output {path} exists already; --force overwrites it")
    if others := sorted(present - holds):
        raise UserError(f"--force overwrites only what this command writes, {path} holds {others[0]} as well")
    make_parent(path)


def names_in_output(path: Path) -> set[str]:
    """What a folder to write to holds already; nothing if it is still to be made. UserError if something else is at `path`."""
    with _visible(path):
        if path.exists() and not path.is_dir():
            raise UserError(f"the output must be a folder, {path} is a file")
        return {entry.name for entry in path.iterdir()} if path.is_dir() else set()


def require_apart(output: Path, *inputs: Path | None) -> None:
    """UserError if an input lies where the output is written: with --force it would be gone."""
    for path in inputs:
        if path is not None and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(output)):
            raise UserError(f"the output {output} would overwrite the input {path}")


@contextmanager
def _visible(path: Path) -> Iterator[None]:
    """UserError if the operating system does not say what is at `path`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"the output {path} cannot be used: {error.strerror}") from error


def _require_no_device(path: Path) -> None:
    """UserError for a device, a pipe or a socket: a move would put a file in its place, /dev/null too if root asks for it. Also for a
    path that leads nowhere."""
    try:
        kind = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:  # a link that leads to itself would be replaced, too
        raise UserError(f"the output {path} cannot be used: {error.strerror}") from error
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise UserError(f"the output must be a file or a folder, {path} is a device or a pipe")


def make_parent(path: Path) -> None:
    """UserError if there can be no folder that holds `path` and may be written to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {path.parent} cannot be made: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"the output {path} must lie in a folder that may be written to, {path.parent} is read-only for this user")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path beside `path` to write to, and moves it to `path` (a file or a folder) if the `with` body succeeds. What a
    link leads to is replaced, the link stays. UserError if nothing can be written there, Failure if the disk is full or broken."""
    place = Path(os.path.realpath(path))
    partial = place.with_name(f"{place.name}.partial-{os.getpid()}")
    try:
        _require_no_device(path)
        _remove(partial)
        yield partial
        if partial.is_file():
            with partial.open("rb") as stream:
                os.fsync(stream.fileno())
        if partial.is_dir() and place.exists():
            _remove(place)  # a folder cannot be replaced in one move
        os.replace(partial, place)
    except OSError as error:
        kind = Failure if error.errno in OUT_OF_ROOM else UserError
        raise kind(f"the output {path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
