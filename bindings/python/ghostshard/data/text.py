"""Readers: a file or folder in, privacy units out, in an order that depends on the files alone.

One record is one unit. A record without text is dropped and counted: a unit of nothing has no gradient, and n should
not count it.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ghostshard.errors import UserError


@dataclass(frozen=True)
class TextUnit:
    """One privacy unit. The loss is on `text`; `prompt` is what comes before it and is only read."""

    text: str
    prompt: str = ""


@dataclass(frozen=True)
class TextData:
    units: list[TextUnit]
    dropped_empty: int


# Between an E2E meaning representation and its sentence.
E2E_ARROW = " → "

# Files beside the texts in a folder of fortunes: index files, and links to the same texts under another name.
_NOT_FORTUNES = (".dat", ".u8")


def read_units(format: str, path: Path) -> TextData:
    """Reads `path` as one of FORMATS. UserError: a missing path, not UTF-8, wrong columns or keys, no text at all."""
    if format not in FORMATS:
        raise UserError(f"the format must be one of {', '.join(FORMATS)}, got {format!r}")
    if not path.exists():
        raise UserError(f"the input {path} does not exist")
    if path.is_dir() and format != "fortunes":
        raise UserError(f"the input of format {format} must be a file, {path} is a folder")
    units, dropped = [], 0
    try:
        for unit in FORMATS[format](path):
            if unit.text.strip():
                units.append(unit)
            else:
                dropped += 1
    except OSError as error:
        raise UserError(f"the input {error.filename or path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the input {path} must be UTF-8 text, its byte {error.start} is not") from error
    if not units:
        raise UserError(f"the input {path} must hold at least one text, found none")
    return TextData(units, dropped)


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"the input {path} must be UTF-8 text, its byte {error.start} is not") from error


def _lines(path: Path) -> Iterator[str]:
    # Not splitlines(): it would also cut at form feeds and Unicode's line separators inside a text.
    lines = _read_text(path).replace("\r\n", "\n").split("\n")
    return iter(lines[:-1] if lines[-1] == "" else lines)


def _text(path: Path) -> Iterator[TextUnit]:
    for line in _lines(path):
        yield TextUnit(line.strip())


def _fortune_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = [
        file
        for file in path.iterdir()
        if file.is_file() and file.suffix not in _NOT_FORTUNES and not file.name.startswith(".")
    ]
    return sorted(files, key=lambda file: file.name)  # sub-folders (off/) are left alone


def _fortunes(path: Path) -> Iterator[TextUnit]:
    for file in _fortune_files(path):
        records = re.split(r"(?m)^%[ \t]*\r?$", _read_text(file))
        if not records[-1].strip():
            records.pop()  # what follows the last separator is no record
        for record in records:
            # Terminals of old printed x, backspace, x for a bold x and _, backspace, x for an underlined one.
            yield TextUnit(re.sub(r"[^\n]\x08", "", record).strip())


def _e2e(path: Path) -> Iterator[TextUnit]:
    rows = csv.DictReader(io.StringIO(_read_text(path), newline=""), strict=True)
    try:
        columns = rows.fieldnames or []
        if not {"mr", "ref"} <= set(columns):
            raise UserError(f"the input {path} must have the columns mr and ref, has {', '.join(columns) or 'none'}")
        for row in rows:
            if row["mr"] is None or row["ref"] is None or None in row:
                raise UserError(f"line {rows.line_num} of {path} must have {len(columns)} columns")
            yield TextUnit(row["ref"].strip(), row["mr"].strip() + E2E_ARROW)
    except csv.Error as error:
        raise UserError(f"line {rows.line_num} of {path} is not valid CSV: {error}") from error


def _jsonl(path: Path) -> Iterator[TextUnit]:
    for index, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UserError(f"line {index} of {path} is not valid JSON: {error}") from error
        if isinstance(record, dict):
            strings = {key: value for key, value in record.items() if isinstance(value, str)}
            if any(re.search("[\ud800-\udfff]", value) for value in strings.values()):
                raise UserError(f"line {index} of {path} must hold whole characters, it escapes half of a surrogate pair")
            if "text" in strings and "completion" not in record:
                yield TextUnit(strings["text"])
                continue
            if {"prompt", "completion"} <= set(strings) and "text" not in record:
                yield TextUnit(strings["completion"], strings["prompt"])
                continue
        raise UserError(
            f'line {index} of {path} must be {{"text": …}} or {{"prompt": …, "completion": …}} with strings, '
            f"got {', '.join(record) if isinstance(record, dict) else type(record).__name__}"
        )


FORMATS = {"fortunes": _fortunes, "e2e": _e2e, "text": _text, "jsonl": _jsonl}


def to_jsonl(units: Iterable[TextUnit]) -> str:
    """The jsonl format's text of these units; reading it gives them back."""
    return "".join(
        json.dumps({"prompt": unit.prompt, "completion": unit.text} if unit.prompt else {"text": unit.text},
                   ensure_ascii=False) + "\n"
        for unit in units
    )
