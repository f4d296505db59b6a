"""ghostshard metrics RUN: a run's public numbers and sample texts, for TensorBoard and as CSV, afterwards or while it runs.

Only fields that outsiders may see are taken from metrics.jsonl (PUBLIC). What --allow-nonprivate-metrics had written besides stays
there.
"""

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ghostshard.errors import UserError, parser, run
from ghostshard.files import read_file, replacing
from ghostshard.texts.vocabulary import load_vocabulary

PUBLIC = ("step", "epsilon", "learning_rate", "eval_loss", "eval_standard_error")
HEADER = ",".join(PUBLIC).encode()
SECONDS_BETWEEN_LOOKS = 2.0


def lines_of(path: Path) -> list[dict]:
    """Whole lines that name their step; a last one that is being written is left out. None without a file. UserError for a line
    that no run writes; it says no more of it, because --allow-nonprivate-metrics may have written it."""
    if not path.is_file():
        return []
    lines = []
    for number, text in enumerate(read_file(path).split(b"\n")[:-1], start=1):
        try:
            line = json.loads(text.decode("utf-8"))
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict) or not all(_fits(name, line[name]) for name in line.keys() & FITS.keys()):
            raise UserError(f"line {number} of {path} is not one that a run writes")
        if "step" in line:
            lines.append(line)
    return lines


def _fits(name: str, value: object) -> bool:
    return FITS[name](value)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))  # null: no finite loss


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and all(type(token) is int and 0 <= token < 2**31 for token in value)


FITS = {"step": _is_count, "prompt": _are_tokens, "tokens": _are_tokens, **dict.fromkeys(PUBLIC[1:], _is_number)}


def public_numbers(folder: Path) -> list[dict]:
    return [{name: line[name] for name in PUBLIC if name in line} for line in lines_of(folder / "metrics.jsonl")]


def require_own_csv(path: Path) -> None:
    """UserError unless the file is new or begins as write_csv begins one: a ledger given by mistake must not be overwritten."""
    if path.is_dir():
        raise UserError(f"--csv must name a file, {path} is a folder")
    if path.is_file() and path.stat().st_size:
        with open(path, "rb") as stream:
            if stream.read(len(HEADER)) != HEADER:
                raise UserError(f"--csv must name a new file or one that this command wrote, {path} is another")


def write_csv(folder: Path, path: Path) -> None:
    with replacing(path) as partial, open(partial, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, PUBLIC)
        writer.writeheader()
        writer.writerows(public_numbers(folder))


class Board:
    """TensorBoard's event files, by PyTorch's writer."""

    def __init__(self, folder: Path, tokenizer: str | None):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"--tensorboard must name a new or empty folder, {folder} is not: a second copy would be drawn over the first")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError("--tensorboard needs the package tensorboard: pip install tensorboard") from error
        self._vocabulary = None if tokenizer is None else load_vocabulary(tokenizer)
        try:
            self._writer = SummaryWriter(str(folder))
        except OSError as error:
            raise UserError(f"--tensorboard {folder} cannot be written: {error.strerror}") from error
        self._step = self._sample = -1

    def add_new(self, folder: Path) -> None:
        """What the run has written since the last call."""
        for line in public_numbers(folder):
            if line["step"] > self._step:
                self._step = line["step"]
                for name in PUBLIC[1:]:
                    if line.get(name) is not None:
                        self._writer.add_scalar(name, line[name], self._step)
        for line in lines_of(folder / "samples.jsonl"):
            if line["step"] > self._sample:
                self._sample = line["step"]
                self._writer.add_text("sample", self._text_of(line), self._sample)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _text_of(self, line: dict) -> str:
        tokens = [*line.get("prompt", []), *line.get("tokens", [])]
        return str(tokens) if self._vocabulary is None else self._vocabulary.decode(tokens)


def looks(folder: Path, follow: bool) -> Iterator[None]:
    """Once; with follow again and again, until the run has its report."""
    while True:
        done = (folder / "privacy_report.json").exists()
        yield
        if done or not follow:
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)


def main(arguments: list[str] | None = None) -> int:
    return run(_main, arguments)


def _main(arguments: list[str]) -> None:
    options = _options(arguments)
    if not options.run.is_dir():
        raise UserError(f"RUN must be the folder of a run (its --output), got {options.run}")
    if options.tokenizer is not None and options.tensorboard is None:
        raise UserError("--tokenizer shows the samples of --tensorboard DIR as text, which is not given")
    if options.csv is None and options.tensorboard is None:
        if options.follow:
            raise UserError("--follow writes to --csv FILE or --tensorboard DIR, neither is given")
        _print(options.run)
        return
    if options.csv is not None:
        require_own_csv(options.csv)
    board: Any = None if options.tensorboard is None else Board(options.tensorboard, options.tokenizer)
    try:
        for _ in looks(options.run, options.follow):
            if board is not None:
                board.add_new(options.run)
            if options.csv is not None:
                write_csv(options.run, options.csv)
    finally:
        if board is not None:
            board.close()


def _print(folder: Path) -> None:
    numbers = public_numbers(folder)
    writer = csv.DictWriter(sys.stdout, PUBLIC, lineterminator="\n")
    writer.writeheader()
    writer.writerows(numbers)


def _options(arguments: list[str]) -> argparse.Namespace:
    command = parser("ghostshard metrics", "A run's public numbers and sample texts: as CSV (without an option, printed), for TensorBoard.")
    command.add_argument("run", type=Path, metavar="RUN", help="the run's --output")
    command.add_argument("--csv", type=Path, metavar="FILE", help="write step, epsilon, learning rate and public loss")
    command.add_argument("--tensorboard", type=Path, metavar="DIR", help="write event files into this new folder")
    command.add_argument("--tokenizer", metavar="DIR|gpt2", help="show samples as text (default: as token ids)")
    command.add_argument("--follow", action="store_true", help="go on until the run is done, or Ctrl-C")
    return command.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
