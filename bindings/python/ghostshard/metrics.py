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
from ghostshard.files import replacing
from ghostshard.texts.vocabulary import load_vocabulary

PUBLIC = ("step", "epsilon", "learning_rate", "eval_loss", "eval_standard_error")
SECONDS_BETWEEN_LOOKS = 2.0


def lines_of(path: Path) -> list[dict]:
    """Whole lines; a last one that is being written is left out. None without a file."""
    if not path.is_file():
        return []
    texts = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [line for line in map(json.loads, texts) if isinstance(line.get("step"), int)]


def public_numbers(folder: Path) -> list[dict]:
    return [{name: line[name] for name in PUBLIC if name in line} for line in lines_of(folder / "metrics.jsonl")]


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
        self._writer = SummaryWriter(str(folder))
        self._step = self._sample = -1

    def add_new(self, folder: Path) -> None:
        """What the run has written since the last call."""
        for line in public_numbers(folder):
            if line["step"] > self._step:
                self._step = line["step"]
                for name in PUBLIC[1:]:
                    if name in line:
                        self._writer.add_scalar(name, line[name], self._step)
        for line in lines_of(folder / "samples.jsonl"):
            if line["step"] > self._sample:
                self._sample = line["step"]
                self._writer.add_text("sample", self._text_of(line), self._sample)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _text_of(self, line: dict) -> str:
        tokens = [*line["prompt"], *line["tokens"]]
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
    if options.csv is None and options.tensorboard is None:
        _print(options.run)
        return
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
    writer = csv.DictWriter(sys.stdout, PUBLIC, lineterminator="\n")
    writer.writeheader()
    writer.writerows(public_numbers(folder))


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
