"""Tables as input: CSV, Parquet and data sets on disk; users of a split stay whole; messages hold nothing of a record."""

import json

import pyarrow.parquet
import pytest

from ghostshard.errors import UserError
from ghostshard.texts.__main__ import main
from ghostshard.texts.packed import read_packed
from ghostshard.texts.text import TextUnit, read_units

ROWS = [("one text", "q1 ", "ann"), ("second", "q2 ", "bo"), ("third, with\na line", "q3 ", "ann")]
UNITS = [TextUnit(text, prompt, user) for text, prompt, user in ROWS]


def csv_file(folder):
    lines = ["note,question,patient", *(f'"{text}",{prompt},{user}' for text, prompt, user in ROWS)]
    (folder / "table").write_text("\n".join(lines) + "\n")


def table(rows):
    columns = list(zip(*rows, strict=True))
    return pyarrow.table({"note": columns[0], "question": columns[1], "patient": columns[2], "unread": [b"x"] * len(rows)})


def parquet_file(folder):
    rows = table(ROWS)
    pyarrow.parquet.write_table(rows, folder / "table")


def parquet_folder(folder):
    parts = [table(ROWS[:2]), table(ROWS[2:])]
    (folder / "table").mkdir()
    for number, part in enumerate(parts):
        pyarrow.parquet.write_table(part, folder / "table" / f"{number}.parquet")


def dataset(folder):
    """As save_to_disk() lays it out."""
    rows = table(ROWS)
    (folder / "table").mkdir()
    with pyarrow.OSFile(str(folder / "table" / "data-00000-of-00001.arrow"), "wb") as file:
        with pyarrow.ipc.new_stream(file, rows.schema) as stream:
            stream.write_table(rows)
    (folder / "table" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))


WRITERS = {"csv": ("csv", csv_file), "parquet": ("parquet", parquet_file), "parquet_folder": ("parquet", parquet_folder),
           "dataset": ("dataset", dataset)}  # fmt: skip
NAMES = {"text_field": "note", "prompt_field": "question", "user_field": "patient"}


@pytest.mark.parametrize("format, write", WRITERS.values(), ids=WRITERS)
def test_the_same_rows_in_every_format(tmp_path, format, write):
    write(tmp_path)
    assert read_units(format, tmp_path / "table", **NAMES).units == UNITS
    plain = read_units(format, tmp_path / "table", text_field="note").units
    assert plain == [TextUnit(text) for text, _, _ in ROWS]


@pytest.mark.parametrize("format, write", WRITERS.values(), ids=WRITERS)
def test_a_missing_column_is_named_and_no_other(tmp_path, format, write):
    write(tmp_path)
    with pytest.raises(UserError, match="must have the column 'text'") as refused:
        read_units(format, tmp_path / "table")
    assert "patient" not in str(refused.value)


def secret(text: str) -> bool:
    return "secret" in text.lower() or "13013" in text


BROKEN = {  # no message may hold any of it
    "short_row": ("csv", "text,user\nsecret\n", {}, "line 2 of"),
    "long_row": ("csv", "text,user\na,b,secret\n", {}, "must have 2 columns"),
    "open_quote": ("csv", 'text,user\n"secret,b\n', {}, "not valid CSV"),
    "no_user": ("csv", "text,user\nsecret,\n", {"user_field": "user"}, "must name its user in 'user'"),
    "columns": ("csv", "secret,13013\na,b\n", {}, "must have the column 'text'"),
    "same_columns": ("csv", "text,text\nsecret,b\n", {}, "must have different names"),
    "e2e": ("e2e", "secret,13013\na,b\n", {}, "columns mr and ref"),
    "e2e_of_jsonl": ("e2e", '{"text": "secret"}\n', {}, "--format jsonl"),
    "jsonl_fields": ("jsonl", '{"secret": "13013"}\n', {}, "got 1 other fields"),
    "jsonl_user": ("jsonl", '{"text": "a", "user": 13013.5}\n', {"user_field": "user"}, "got a floating-point number"),
    "jsonl_user_list": ("jsonl", '{"text": "a", "user": ["secret"]}\n', {"user_field": "user"}, "got a list"),
    "jsonl_syntax": ("jsonl", '{"text": "secret"\n', {}, "not valid JSON"),
    "jsonl_text": ("jsonl", "secret\n", {}, "not valid JSON"),
    "not_parquet": ("parquet", "secret\n", {}, "not a Parquet file"),
}


@pytest.mark.parametrize("format, content, fields, message", BROKEN.values(), ids=BROKEN)
def test_messages_hold_nothing_of_a_record(tmp_path, format, content, fields, message):
    (tmp_path / "in").write_text(content)
    with pytest.raises(UserError, match=message) as refused:
        read_units(format, tmp_path / "in", **fields)
    assert not secret(str(refused.value))


def test_a_data_set_of_several_splits_or_of_chosen_rows_is_refused(tmp_path):
    with pytest.raises(UserError, match="save_to_disk"):
        read_units("dataset", tmp_path)
    (tmp_path / "state.json").write_text('{"_data_files": [], "_indices_data_files": [{"filename": "a"}]}')
    with pytest.raises(UserError, match="flatten_indices"):
        read_units("dataset", tmp_path)
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(UserError, match="holds several splits"):
        read_units("dataset", tmp_path)


def test_without_pyarrow_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "in").write_text("x")
    with pytest.raises(UserError, match="python -m pip install pyarrow"):
        read_units("parquet", tmp_path / "in")


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """Ten users with three texts each, the users' texts apart from each other."""
    monkeypatch.chdir(tmp_path)
    records = [{"text": f"note {visit} of {user}", "patient": user} for visit in range(3) for user in range(10)]
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "notes.txt").write_text("".join(record["text"] + "\n" for record in records))
    (tmp_path / "who").write_text("".join(f"{record['patient']}\n" for record in records))
    return tmp_path


@pytest.mark.parametrize("words, field", [
    ("--format jsonl --input notes.jsonl --user-field patient", "patient"),
    ("--format text --input notes.txt --users-file who", "user"),
])  # fmt: skip
def test_a_split_keeps_users_whole_and_their_field(notes, capsys, words, field):
    assert main(f"split {words} --public-units 3 --eval-units 2 --output parts".split()) == 0
    assert f"--user-field {field}" in capsys.readouterr().out
    users = {}
    for name, count in (("public-train", 3), ("public-eval", 2), ("private", 5)):
        records = [json.loads(line) for line in (notes / "parts" / f"{name}.jsonl").read_text().splitlines()]
        users[name] = {record[field] for record in records}
        assert len(users[name]) == count and len(records) == 3 * count
    assert not users["private"] & (users["public-train"] | users["public-eval"])
    assert json.loads((notes / "parts" / "split.json").read_text())["unit"] == "user"
    words = f"prepare --format jsonl --input parts/private.jsonl --user-field {field} --tokenizer gpt2 --max-length 9 --output a"
    assert main(words.split()) == 0
    assert read_packed(notes / "a").units == 5


def test_a_misspelt_flag_is_recognised(capsys):
    assert main("split --format text --input a --public-unit 3 --eval-units 2 --public-units 1 --output b".split()) == 2
    assert "unrecognized arguments: --public-unit 3; did you mean --public-units?" in capsys.readouterr().err
