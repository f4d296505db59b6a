"""Readers of tables: CSV with a first line of column names, Parquet files, and data sets of Hugging Face's `datasets` on disk
(save_to_disk). Parquet and data sets need the package pyarrow.

Messages name rows and the fields that the caller named, never a value or another column of the table.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ghostshard.errors import UserError
from ghostshard.files import read_file, require_regular_file
from ghostshard.texts.text import TextUnit, csv_rows, require_different_names, user_of

Row = tuple[str, dict]  # where it stands, for messages; its fields


@dataclass(frozen=True)
class Fields:
    """The columns to read."""

    text: str = "text"
    prompt: str | None = None
    user: str | None = None

    def names(self) -> list[str]:
        return [name for name in (self.text, self.prompt, self.user) if name is not None]


def table_units(format: str, path: Path, fields: Fields) -> Iterator[TextUnit]:
    """UserError: a column that is not there, a text that is none, a row that breaks the format."""
    for place, row in TABLES[format](path, fields):
        user = None if fields.user is None else user_of(row, fields.user, place)
        prompt = "" if fields.prompt is None else _string(row, fields.prompt, place)
        yield TextUnit(_string(row, fields.text, place), prompt, user)


def _string(row: dict, field: str, place: str) -> str:
    value = row[field]
    if not isinstance(value, str):
        found = "nothing" if value is None else "something else"
        raise UserError(f"{place} must have a text in {field!r}, has {found}")
    return value


def _require(columns: Iterable[str], fields: Fields, path: Path) -> None:
    missing = [name for name in fields.names() if name not in set(columns)]
    if missing:
        raise UserError(f"the input {path} must have the column {missing[0]!r} (--text-field, --prompt-field and --user-field "
                        "name the columns)")  # fmt: skip


def _csv(path: Path, fields: Fields) -> Iterator[Row]:
    rows = csv_rows(path)
    try:
        columns = rows.fieldnames or []
        _require(columns, fields, path)
        require_different_names(columns, path)
        for row in rows:
            place = f"line {rows.line_num} of {path}"
            if None in row or None in row.values():
                raise UserError(f"{place} must have {len(columns)} columns")
            yield place, row
    except csv.Error as error:
        raise UserError(f"line {rows.line_num} of {path} is not valid CSV: {error}") from error


def _pyarrow():
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise UserError("Parquet files and data sets on disk are read by pyarrow: python -m pip install pyarrow") from error
    return pyarrow


@contextmanager
def _reading(arrow, file: Path, kind: str) -> Iterator[None]:
    """UserError if the file is broken. What pyarrow says of it may hold values, so it is left out."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # the operating system's: who reads the input reports it
            raise
        raise UserError(f"{file} is not {kind}, or it is damaged") from error
    except arrow.ArrowException as error:
        raise UserError(f"{file} is not {kind}, or it is damaged") from error


def _files(path: Path, pattern: str) -> list[Path]:
    files = sorted(path.glob(pattern)) if path.is_dir() else [path]
    if not files:
        raise UserError(f"the folder {path} must hold files named {pattern}")
    for file in files:
        require_regular_file(file)
    return files


def _parquet(path: Path, fields: Fields) -> Iterator[Row]:
    arrow = _pyarrow()
    for file in _files(path, "*.parquet"):
        with _reading(arrow, file, "a Parquet file"):
            table = arrow.parquet.ParquetFile(file)
            names = table.schema_arrow.names
            _require(names, fields, file)
            require_different_names(names, file)
            yield from _rows(table.iter_batches(columns=fields.names()), file)


def _dataset(path: Path, fields: Fields) -> Iterator[Row]:
    arrow = _pyarrow()
    if (path / "dataset_dict.json").is_file():
        raise UserError(f"{path} holds several splits: name one of its folders, such as {path / 'train'}")
    try:
        state = json.loads(read_file(path / "state.json").decode("utf-8"))
        names = [Path(entry["filename"]).name for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} must be a folder that save_to_disk() of Hugging Face's datasets has written") from error
    if state.get("_indices_data_files"):
        raise UserError(f"{path} chooses rows of another table: flatten_indices() before save_to_disk()")
    for name in names:
        file = path / name
        require_regular_file(file)
        with (_reading(arrow, file, "a file of a data set"), arrow.memory_map(str(file)) as source,
              arrow.ipc.open_stream(source) as stream):  # fmt: skip
            _require(stream.schema.names, fields, file)
            require_different_names(stream.schema.names, file)
            yield from _rows((batch.select(fields.names()) for batch in stream), file)


def _rows(batches: Iterable, file: Path) -> Iterator[Row]:
    number = 0
    for batch in batches:
        batch.validate(full=True)  # offsets of a damaged file would read beside the file
        for row in batch.to_pylist():
            number += 1
            yield f"row {number} of {file}", row


TABLES = {"csv": _csv, "parquet": _parquet, "dataset": _dataset}
