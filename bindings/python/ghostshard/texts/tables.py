"""Readers of tables: CSV with a first line of column names, Parquet files, and data sets of Hugging Face's `datasets` on disk
(save_to_disk). Parquet and data sets need the package pyarrow.

Messages name rows and the fields that the caller named, never a value or another column of the table.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ghostshard.errors import UserError
from ghostshard.texts.text import TextUnit, read_text, user_of

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
    rows = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    csv.field_size_limit(2**31 - 1)
    try:
        columns = rows.fieldnames or []
        _require(columns, fields, path)
        if len(set(columns)) != len(columns):
            raise UserError(f"the columns of {path} must have different names")
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


def _files(path: Path, pattern: str) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(path.glob(pattern))
    if not files:
        raise UserError(f"the folder {path} must hold files named {pattern}")
    return files


def _parquet(path: Path, fields: Fields) -> Iterator[Row]:
    arrow = _pyarrow()
    for file in _files(path, "*.parquet"):
        try:
            table = arrow.parquet.ParquetFile(file)
            _require(table.schema_arrow.names, fields, file)
            yield from _rows(table.iter_batches(columns=fields.names()), file)
        except arrow.ArrowInvalid as error:
            raise UserError(f"the input {file} is not a Parquet file") from error


def _dataset(path: Path, fields: Fields) -> Iterator[Row]:
    arrow = _pyarrow()
    if (path / "dataset_dict.json").is_file():
        raise UserError(f"{path} holds several splits: name one of its folders, such as {path / 'train'}")
    try:
        state = json.loads((path / "state.json").read_text())
        names = [entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} must be a folder that save_to_disk() of Hugging Face's datasets has written") from error
    if state.get("_indices_data_files"):
        raise UserError(f"{path} chooses rows of another table: flatten_indices() before save_to_disk()")
    for name in names:
        file = path / Path(name).name
        try:
            with arrow.memory_map(str(file)) as source, arrow.ipc.open_stream(source) as stream:
                _require(stream.schema.names, fields, file)
                yield from _rows((batch.select(fields.names()) for batch in stream), file)
        except arrow.ArrowInvalid as error:
            raise UserError(f"{file} is not a file of a data set") from error


def _rows(batches: Iterable, file: Path) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield f"row {number} of {file}", row


TABLES = {"csv": _csv, "parquet": _parquet, "dataset": _dataset}
