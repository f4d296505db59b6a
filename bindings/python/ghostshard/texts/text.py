"""Readers: a file or folder in, privacy units out, in an order that depends on the files alone.

One record is one unit; if records name the user they come from, all records of a user are one unit. A record without text
is dropped and counted: a unit of nothing has no gradient, and n should not count it.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ghostshard.errors import UserError
from ghostshard.files import read_file
from ghostshard.texts.user_names import one_user


@dataclass(frozen=True)
class TextUnit:
    """One text. The loss is on `text`; `prompt` comes before it and is only read. Without `user` the text is a privacy unit of
    its own."""

    text: str
    prompt: str = ""
    user: str | None = None


@dataclass(frozen=True)
class TextData:
    units: list[TextUnit]
    dropped_empty: int


# Between an E2E meaning representation and its sentence.
E2E_ARROW = " → "

# Files beside the texts in a folder of fortunes: index files, and links to the same texts under another name.
_NOT_FORTUNES = (".dat", ".u8")


# What a file's name says. ".txt" does not say where a text ends, and so what one unit of privacy is.
_OF_NAMES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


def format_of(path: Path) -> str:
    """The format that a file's name says, or a folder's files. UserError: none does, or there is no such path."""
    if not path.exists():
        raise UserError(f"the input {path} does not exist")
    if path.is_dir():
        if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):  # of save_to_disk()
            return "dataset"
        if next(path.glob("*.parquet"), None):
            return "parquet"
    elif found := _OF_NAMES.get(path.suffix.lower()):
        return found
    raise UserError(f"give --format for {path}: its name does not say how texts lie in it (--help lists the formats)")


def read_units(format: str, path: Path, *, user_field: str | None = None, users_file: Path | None = None,
               text_field: str | None = None, prompt_field: str | None = None) -> TextData:  # fmt: skip
    """Reads `path` as one of FORMATS. UserError: a missing path, not UTF-8, wrong columns or keys, no text at all.

    A text's user is in the field `user_field` of its record (jsonl and tables), or on the same line of `users_file` (text).
    Of a table, text_field (default: text) is what is learnt and prompt_field what is read before it.
    """
    from ghostshard.texts.tables import TABLES, Fields, table_units

    if format not in (*FORMATS, *TABLES):
        raise UserError(f"the format must be one of {', '.join((*FORMATS, *TABLES))}, got {format!r}")
    if user_field is not None and format not in ("jsonl", *TABLES):
        raise UserError(f"--user-field is for --format jsonl, {', '.join(TABLES)}, whose records have fields, not for {format}")
    if (text_field or prompt_field) and format not in TABLES:
        raise UserError(f"--text-field and --prompt-field are for --format {', '.join(TABLES)}, not for {format}")
    if users_file is not None and format != "text":
        raise UserError(f"--users-file is for --format text, line by line, not for {format}")
    units, dropped = [], 0
    try:
        if not path.exists():
            raise UserError(f"the input {path} does not exist")
        if path.is_dir() and format not in ("fortunes", "parquet", "dataset"):
            raise UserError(f"the input of format {format} must be a file, {path} is a folder")
        if format in TABLES:
            records = table_units(format, path, Fields(text_field or "text", prompt_field, user_field))
        elif user_field is not None:
            records = _jsonl(path, user_field)
        elif users_file is not None:
            records = _text_of_users(path, users_file)
        else:
            records = FORMATS[format](path)
        for unit in records:
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


def read_text(path: Path) -> str:
    try:
        return read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"the input {path} must be UTF-8 text, its byte {error.start} is not") from error


def _lines(path: Path) -> Iterator[str]:
    # Not splitlines(): it would also cut at form feeds and Unicode's line separators inside a text.
    lines = read_text(path).replace("\r\n", "\n").split("\n")
    return iter(lines[:-1] if lines[-1] == "" else lines)


def _text(path: Path) -> Iterator[TextUnit]:
    for line in _lines(path):
        yield TextUnit(line.strip())


def _text_of_users(path: Path, users_file: Path) -> Iterator[TextUnit]:
    if not users_file.is_file():
        raise UserError(f"the users file {users_file} must be a file with one line for each line of {path}")
    texts, users = list(_lines(path)), [one_user(line) for line in _lines(users_file)]
    if len(texts) != len(users):
        raise UserError(f"{users_file} must have one line for each of the {len(texts)} lines of {path}, has {len(users)}")
    for index, (text, user) in enumerate(zip(texts, users, strict=True), start=1):
        if not user:
            raise UserError(f"line {index} of {users_file} must name a user, it is empty")
        yield TextUnit(text.strip(), user=user)


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
        records = re.split(r"(?m)^%[ \t]*\r?$", read_text(file))
        if not records[-1].strip():
            records.pop()  # what follows the last separator is no record
        for record in records:
            # Terminals of old printed x, backspace, x for a bold x and _, backspace, x for an underlined one.
            yield TextUnit(re.sub(r"[^\n]\x08", "", record).strip())


def csv_rows(path: Path) -> csv.DictReader:
    csv.field_size_limit(2**31 - 1)  # a text may be longer than the 128 KiB that Python allows
    return csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)


def require_different_names(columns: Sequence[str], path: Path) -> None:
    """Of two columns with one name a reader would silently take the last."""
    if len(set(columns)) != len(columns):
        raise UserError(f"the columns of {path} must have different names")


def _e2e(path: Path) -> Iterator[TextUnit]:
    rows = csv_rows(path)
    try:
        columns = rows.fieldnames or []
        if not {"mr", "ref"} <= set(columns):
            found = f"another first line of {len(columns)} columns" if columns else "none"
            raise UserError(f"the input {path} must have the columns mr and ref, has {found}{_other_format(path)}")
        require_different_names(columns, path)
        for row in rows:
            if row["mr"] is None or row["ref"] is None or None in row:
                raise UserError(f"line {rows.line_num} of {path} must have {len(columns)} columns")
            yield TextUnit(row["ref"].strip(), row["mr"].strip() + E2E_ARROW)
    except csv.Error as error:
        raise UserError(f"line {rows.line_num} of {path} is not valid CSV: {error}") from error


# Messages name the kind of a value and what the formats themselves are called after, never what a record holds: neither its
# text nor the names of its fields.
_KINDS = {str: "a text", bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "an object"}


def _kind(value: object) -> str:
    if isinstance(value, str) and not value.strip():
        return "an empty text"
    return "null" if value is None else _KINDS.get(type(value), "another kind of value")


def _shape(record: dict) -> str:
    known = [f"{name} ({_kind(record[name])})" for name in ("text", "prompt", "completion") if name in record]
    others = len(record) - len(known)
    return ", ".join([*known, *([f"{others} other fields"] if others else [])]) or "an empty object"


def _other_format(path: Path) -> str:
    begin = read_text(path).lstrip()[:1]
    return "; it begins like JSON lines: --format jsonl" if begin == "{" else ""


def user_of(record: dict, field: str, place: str) -> str:
    """A number and the same number as text are one user: splitting somebody in two would halve their protection."""
    user = record.get(field)
    if isinstance(user, bool) or not isinstance(user, (str, int)) or not str(user).strip():
        found = "no such field" if field not in record else "a floating-point number" if isinstance(user, float) else _kind(user)
        raise UserError(f"{place} must name its user in {field!r}, as text or whole number, got {found}")
    return one_user(str(user))


def _json(line: str, place: str) -> object:
    def each_key_once(pairs: list) -> dict:
        if len(found := dict(pairs)) < len(pairs):
            raise UserError(f"{place} must have each key of an object once, it has one twice")
        return found

    try:
        return json.loads(line, object_pairs_hook=each_key_once)
    except UserError:
        raise
    except json.JSONDecodeError as error:
        raise UserError(f"{place} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise UserError(f"{place} is JSON that is nested too deeply") from error
    except ValueError as error:  # Python refuses to read a whole number of thousands of digits
        raise UserError(f"{place} holds a number with too many digits") from error


def _jsonl(path: Path, user_field: str | None = None) -> Iterator[TextUnit]:
    for index, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        record = _json(line, f"line {index} of {path}")
        if isinstance(record, dict):
            strings = {key: value for key, value in record.items() if isinstance(value, str)}
            if any(re.search("[\ud800-\udfff]", value) for value in strings.values()):
                raise UserError(f"line {index} of {path} must hold whole characters, it escapes half of a surrogate pair")
            user = None if user_field is None else user_of(record, user_field, f"line {index} of {path}")
            if "text" in strings and "completion" not in record:
                yield TextUnit(strings["text"], user=user)
                continue
            if {"prompt", "completion"} <= set(strings) and "text" not in record:
                yield TextUnit(strings["completion"], strings["prompt"], user)
                continue
        raise UserError(
            f'line {index} of {path} must be {{"text": …}} or {{"prompt": …, "completion": …}} with strings, got '
            + (_shape(record) if isinstance(record, dict) else _kind(record))
        )


FORMATS = {"fortunes": _fortunes, "e2e": _e2e, "text": _text, "jsonl": _jsonl}


def to_jsonl(units: Iterable[TextUnit], user_field: str = "user") -> str:
    """The jsonl format's text of these units; reading it, with user_field if they name users, gives them back."""
    return "".join(
        json.dumps({**({"prompt": unit.prompt, "completion": unit.text} if unit.prompt else {"text": unit.text}),
                    **({} if unit.user is None else {user_field: unit.user})}, ensure_ascii=False) + "\n"
        for unit in units
    )
