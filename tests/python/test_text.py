"""The readers: what becomes a unit, what does not, and what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostshard.errors import UserError
from ghostshard.texts.text import FORMATS, TextUnit, read_units, to_jsonl

READS = {
    "text_is_one_unit_per_line": ("text", "one\n two \nthree", ["one", "two", "three"], 0),
    "text_counts_blank_lines_as_dropped": ("text", "one\n\n   \ntwo\n", ["one", "two"], 2),
    "text_keeps_duplicates": ("text", "one\none\n", ["one", "one"], 0),
    "text_does_not_cut_at_other_separators": ("text", "one\x0c\u2028two\n", ["one\x0c\u2028two"], 0),
    "text_reads_windows_line_ends_and_byte_order_marks": ("text", "\ufeffone\r\ntwo\r\n", ["one", "two"], 0),
    "fortunes_are_separated_by_percent_lines": ("fortunes", "a\nb\n%\nc\n%\n", ["a\nb", "c"], 0),
    "fortunes_may_lack_the_last_separator": ("fortunes", "a\n%\nb", ["a", "b"], 0),
    "fortunes_keep_percent_signs_inside_a_line": ("fortunes", "100%\n%\n%d\n% x\n", ["100%", "%d\n% x"], 0),
    "fortunes_count_empty_records": ("fortunes", "a\n%\n%\n \n%\nb\n%\n", ["a", "b"], 2),
    "fortunes_lose_overstriking": ("fortunes", "_\bA_\bB c\bc\n%\n", ["AB c"], 0),
    "jsonl_reads_text": ("jsonl", '{"text": "a\\nb"}\n\n{"text": "c", "id": 3}\n', ["a\nb", "c"], 0),
    "jsonl_drops_empty_completions": ("jsonl", '{"text": " "}\n{"text": "c"}\n', ["c"], 1),
}


@pytest.mark.parametrize("format, content, texts, dropped", READS.values(), ids=READS.keys())
def test_reads(tmp_path, format, content, texts, dropped):
    path = tmp_path / "input"
    path.write_bytes(content.encode())
    data = read_units(format, path)
    assert [unit.text for unit in data.units] == texts
    assert data.dropped_empty == dropped
    assert all(unit.prompt == "" for unit in data.units)


def test_jsonl_puts_the_loss_on_the_completion_only(tmp_path):
    path = tmp_path / "input.jsonl"
    path.write_text('{"prompt": "q: ", "completion": "a"}\n')
    assert read_units("jsonl", path).units == [TextUnit("a", "q: ")]


def test_e2e_puts_the_loss_on_the_reference_only(tmp_path):
    path = tmp_path / "input.csv"
    path.write_text('ref,mr\n"A ""fine"", place.","name[A], area[b]"\n')
    assert read_units("e2e", path).units == [TextUnit('A "fine", place.', "name[A], area[b] → ")]


def test_a_folder_of_fortunes_is_read_in_order_of_names_without_its_index_files(tmp_path):
    for name, content in {"b": "two\n%\n", "a": "one\n%\n", "a.dat": "index", "a.u8": "one\n%\n", ".x": "hidden"}.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "off").mkdir()
    (tmp_path / "off" / "c").write_text("three\n%\n")
    assert [unit.text for unit in read_units("fortunes", tmp_path).units] == ["one", "two"]


REFUSED = {
    "e2e_of_jsonl": ("e2e", b'{"text": "secret"}\n', "another first line of 1 columns; it begins like JSON lines: --format jsonl"),
    "empty_file": ("text", b"", "at least one text, found none"),
    "blank_file": ("fortunes", b"%\n \n%\n", "at least one text, found none"),
    "not_utf8": ("text", b"caf\xe9\n", "must be UTF-8 text, its byte 3 is not"),
    "e2e_without_ref": ("e2e", b"mr,text\na,b\n", "columns mr and ref, has another first line of 2 columns"),
    "e2e_empty": ("e2e", b"", "columns mr and ref, has none"),
    "e2e_short_row": ("e2e", b"mr,ref\na,b\nc\n", "line 3 of"),
    "e2e_long_row": ("e2e", b"mr,ref\na,b,c\n", "must have 2 columns"),
    "e2e_open_quote": ("e2e", b'mr,ref\na,"b\n', "is not valid CSV"),
    "jsonl_syntax": ("jsonl", b'{"text": "a"}\n{"text"\n', "line 2 of"),
    "jsonl_array": ("jsonl", b'["a"]\n', "got a list"),
    "jsonl_other_keys": ("jsonl", b'{"prompt": "a"}\n', "got prompt (a text)"),
    "jsonl_number": ("jsonl", b'{"text": 3}\n', "with strings"),
    "jsonl_both_kinds": ("jsonl", b'{"text": "a", "prompt": "b", "completion": "c"}\n', "got text (a text), prompt (a text), completion (a text)"),
    "jsonl_half_a_character": ("jsonl", b'{"text": "\\ud800"}\n', "surrogate"),
}


@pytest.mark.parametrize("format, content, message", REFUSED.values(), ids=REFUSED.keys())
def test_refuses(tmp_path, format, content, message):
    path = tmp_path / "input"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        read_units(format, path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("format", FORMATS)
def test_refuses_a_missing_path_in_every_format(tmp_path, format):
    with pytest.raises(UserError, match="does not exist"):
        read_units(format, tmp_path / "nothing")


@pytest.mark.parametrize("format", [format for format in FORMATS if format != "fortunes"])
def test_refuses_a_folder_where_a_file_is_meant(tmp_path, format):
    with pytest.raises(UserError, match="must be a file"):
        read_units(format, tmp_path)


PLAIN = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.builds(TextUnit, PLAIN.filter(lambda text: text.strip()), PLAIN), min_size=1, max_size=5))
def test_jsonl_gives_back_what_was_written(tmp_path_factory, units):
    path = tmp_path_factory.mktemp("jsonl") / "units.jsonl"
    path.write_bytes(to_jsonl(units).encode())
    assert read_units("jsonl", path).units == units
    lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    assert len(lines) == len(units) and all(json.loads(line) for line in lines)
