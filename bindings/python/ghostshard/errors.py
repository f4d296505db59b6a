"""Errors of commands: one sentence; exit code 2 for a mistake of the user, 1 for anything else, 130 and 143 for Ctrl-C and SIGTERM."""

import argparse
import codecs
import difflib
import errno
import io
import math
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

SHOW_FAULTS = "GHOSTSHARD_TRACEBACK"  # set: a fault of this package ends in Python's traceback
PACKAGE = Path(__file__).resolve().parent
# What the system says of a path that was asked for and cannot be (fsdp/failure.cpp has the same).
OF_THE_PATH = (errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS)


class UserError(ValueError):
    """A mistake of the caller. The message names the rule and the value that broke it."""


class Failure(RuntimeError):
    """A program that a command started has failed; the caller's arguments are not wrong."""


class _Parser(argparse.ArgumentParser):
    _words: tuple[str, ...] = ()  # that it was given

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        self._words = tuple(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def _get_value(self, action, arg_string):
        """An empty text would count as an option that was left out: --user-field "$UNSET" would protect texts, not users."""
        is_text = action.type in (None, str, Path) and not isinstance(action, argparse._SubParsersAction)
        if arg_string == "" and is_text and action.dest != "prompt":
            raise argparse.ArgumentError(action, "must not be empty: leave the option out, or give it a value")
        return super()._get_value(action, arg_string)

    def error(self, message: str):  # argparse would print the whole usage first
        raise UserError(f"{message.removeprefix('argument ')}{self._suggestion(message)} (--help lists the options)")

    def _suggestion(self, message: str) -> str:
        """What a word that argparse does not know was probably meant to be. If an option is missing, the word that was meant to be it."""
        options = _options_of(self)
        if unknown := re.match(r"unrecognized arguments: (--[^ =]+)", message):
            return did_you_mean(unknown[1], options)
        if choice := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message):
            return did_you_mean(choice[1], re.findall(r"[^\s,']+", choice[2]))
        if message.startswith("the following arguments are required"):
            given = [word.partition("=")[0] for word in self._words if word.startswith("--")]
            strange = [(word, did_you_mean(word, options)) for word in given if word not in options]
            return next((f"; {word} is not known{meant}" for word, meant in strange if meant), "")
        return ""


def _options_of(command: argparse.ArgumentParser) -> list[str]:
    """Those of its subcommands too: argparse has the uppermost parser complain."""
    subcommands = [action for action in command._actions if isinstance(action, argparse._SubParsersAction)]
    below = [option for action in subcommands for sub in action.choices.values() for option in _options_of(sub)]
    return [*command._option_string_actions, *below]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """What to put behind a sentence about an unknown word: the known one that is like it, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """An argument parser that reports a mistake as UserError. Options must be written out in full."""
    return _Parser(prog=prog, description=description, allow_abbrev=False)


class _Terminated(BaseException):
    """SIGTERM, raised where the command is, so that it takes back what it has half written."""


def _end(_signum: int, _frame: object) -> None:
    raise _Terminated


@contextmanager
def _raising_signals() -> Iterator[None]:
    """SIGINT and SIGTERM are raised where the command is, and have their default before and after: it ends Python without a word,
    whatever it is at. One that is ignored, or has a handler already, stays as it is."""
    raised = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _end}
    main = threading.current_thread() is threading.main_thread()
    ours = [signum for signum in raised if main and signal.getsignal(signum) == signal.SIG_DFL]
    try:
        for signum in ours:
            signal.signal(signum, raised[signum])
        yield
    finally:
        for signum in ours:
            signal.signal(signum, signal.SIG_DFL)


def run(command: Callable[[list[str]], int | None], arguments: list[str] | None) -> int:
    """Runs a command line's function; returns the exit code."""
    _open_standard_streams()
    _speak_utf8()
    try:
        with _raising_signals():
            code = command(sys.argv[1:] if arguments is None else arguments) or 0
            sys.stdout.flush()  # a full disk shows here, not in the interpreter's last words
            return code
    except UserError as error:
        return _fail(str(error), 2)
    except Failure as error:
        return _fail(str(error), 1)
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        _drop_output()
        return _fail(of_system(error), 2 if error.filename is not None and error.errno in OF_THE_PATH else 1)
    except ModuleNotFoundError as error:
        package = (error.name or "ghostshard").partition(".")[0]
        if package == "ghostshard":
            return _fault(error)
        return _fail(f"this command needs the Python package {package}: python -m pip install {package}", 1)
    except MemoryError:
        return _fail("this machine's memory is not enough for that", 1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except _Terminated:
        return 143
    except Exception as error:
        return _fault(error)


def _open_standard_streams() -> None:
    """/dev/null for each that the caller has closed: a file that is opened later would have its number, and get what is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # has the lowest number that is free, which is this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))


def _speak_utf8() -> None:
    """Where the locale knows ASCII alone, names of files and generated texts would end in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name == "ascii":
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def typed_text(text: str, flag: str) -> str:
    """A text of the command line as the user typed it, whatever the locale took its bytes for. UserError unless it is UTF-8."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError as error:
        raise UserError(f"{flag} must be UTF-8 text, its byte {getattr(error, 'start', 0)} is not") from error


def _fault(error: Exception) -> int:
    """A fault of this package, by its kind and place alone: what the exception says may quote a private record."""
    if os.environ.get(SHOW_FAULTS):
        raise error
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if PACKAGE in Path(frame.filename).parents] or frames
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
    return _fail(f"{type(error).__name__} at {place}: a fault of ghostshard, please report it; {SHOW_FAULTS}=1 shows the whole "
                 "traceback, which may quote private data", 1)  # fmt: skip


def _fail(sentence: str, code: int) -> int:
    print(f"error: {one_line(sentence)}", file=sys.stderr)
    return code


def one_line(sentence: str) -> str:
    """With escapes for what a terminal would obey or not show: a name that was typed may hold an end of line, a command to the terminal, or
    a space of width zero. Halves of surrogate pairs stand for bytes that are no UTF-8, and stay."""
    shown = ("\ud800" <= c <= "\udfff" or c.isprintable() for c in sentence)
    return "".join(c if plain else c.encode("unicode_escape").decode() for c, plain in zip(sentence, shown, strict=True))


def show(line: str) -> None:
    """On standard output, and with names as one_line() has them."""
    print(one_line(line))


def of_system(error: OSError) -> str:
    """What the operating system refused, as a sentence."""
    reason = error.strerror or str(error)
    return f"{error.filename} cannot be used: {reason}" if error.filename is not None else f"reading or writing failed: {reason}"


def _drop_output() -> None:
    """What standard output still holds goes nowhere: the interpreter would try to write it once more, and print a traceback."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def whole_number(*, at_least: int, at_most: int = 2**63 - 1) -> Callable[[str], int]:
    """An argparse type. Underscores and leading zeros, which int() would take, are refused, as the programs do."""
    limit = f">= {at_least}" if at_most == 2**63 - 1 else f"from {at_least} to {at_most}"

    def convert(text: str) -> int:
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 20:
            if len(digits) > 1 and digits[0] == "0":
                raise argparse.ArgumentTypeError(f"must be a whole number without leading zeros, got {text!r}")
            if at_least <= int(text) <= at_most:
                return int(text)
        raise argparse.ArgumentTypeError(f"must be a whole number {limit}, got {text!r}")

    return convert


def number(*, at_least: float) -> Callable[[str], float]:
    """An argparse type: finite and not below at_least. What float() would take beside plain digits (underscores, spaces, digits of other
    scripts) is refused, as the programs do."""

    def convert(text: str) -> float:
        try:
            value = float(text) if re.fullmatch(r"[-+0-9.eE]+", text) else math.nan
        except ValueError:
            value = math.nan
        if math.isfinite(value) and value >= at_least:
            return value
        raise argparse.ArgumentTypeError(f"must be a number >= {at_least:g}, got {text!r}")

    return convert
