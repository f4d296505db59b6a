"""A file of flags is read as it stands, or refused with its line."""

import json

import pytest
from program import PRIVATE, arguments

from ghostshard.tune_flags import toml


def header_of_run(program, text: str | bytes, **flags) -> dict:
    (program.folder / "flags.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    done = program.run(arguments({**PRIVATE, "--steps": "1", "--config": "flags.toml"}, **flags))
    assert done.code == 0, done.err
    return json.loads((program.folder / "run" / "ledger.jsonl").read_text().splitlines()[0])


NOTES = {
    "tuning-note = it's fine # really\n": "it's fine",
    "tuning-note = it's fine\n": "it's fine",
    "tuning-note = a, b\n": "a, b",
    'tuning-note = "issue #5, two" # and a comment\n': "issue #5, two",
    "tuning-note = 'a\\nb # c'\n": "a\\nb # c",
    'tuning-note = "a \\"b\\" \\\\ c"\n': 'a "b" \\ c',
    "\ufefftuning-note = x\r\n": "x",
    "; of an INI file\n[default]\n'tuning-note'=x": "x",
}


@pytest.mark.parametrize("text, note", NOTES.items(), ids=range(len(NOTES)))
def test_a_text_is_what_the_file_says(program, text, note):
    assert header_of_run(program, text)["facts"]["tuning"]["how"] == note


@pytest.mark.parametrize("note", ["web # 2", "a\\n \"b\" 'c'", "0x10", "true, false", "[a]", "naïve ; # \\"])
def test_what_tune_writes_is_read_back(program, note):
    assert header_of_run(program, f"tuning-note = {toml(note)}\n")["facts"]["tuning"]["how"] == note


LISTS = {
    "one_line": '["*.wpe.*", "*.ln_f*"]',
    "bare": "[*.wpe.*, *.ln_f*]",
    "without_brackets": "*.wpe.*, *.ln_f*",
    "quoted_without_brackets": '"*.wpe.*", "*.ln_f*"',
    "many_lines_with_comments": '[\n  # the first ]\n  "*.wpe.*", # one\n\n  "*.ln_f*" # two\n] # all',
    "last_comma": '["*.wpe.*",\n "*.ln_f*",]',
}


@pytest.mark.parametrize("freeze", LISTS.values(), ids=LISTS)
def test_entries_behind_a_list_are_not_part_of_it(program, freeze):
    header = header_of_run(program, f"freeze = {freeze}\nclip-norm = 0.5\n")
    assert header["clip_norm"] == 0.5 and header["binding"]["run"]["--freeze"] == "*.wpe.*\n*.ln_f*"


REFUSED = {
    "section": ("[budget]\nclip-norm = 2\n", "one of its entries is none"),
    "same_flag_in_dashes": ("clip-norm = 2\n--clip-norm = 9\n", "flags without the dashes, line 2"),
    "dashes_alone": ("-- = 3\n", "flags without the dashes, line 1"),
    "glued_comment": ("clip-norm = 2#3\n", "a space before a comment, line 1"),
    "comment_of_an_ini_file": ("clip-norm = 2 ; two\n", "quotes around a value that holds # or ;"),
    "behind_quotes": ('clip-norm = "1"0\n', "nothing but a comment behind a value in quotes or a list, line 1"),
    "open_quote": ('\n\ntuning-note = "a\n', "close each quote in its line, line 3"),
    "escape": ('tuning-note = "a\\q"\n', "no backslash in double quotes but"),
    "two_of_one": ("clip-norm = [1, 2]\n", "give --clip-norm one value, line 1"),
    "two_words": ("clip-norm = 1 2\n", "--clip-norm: must be a decimal number, got 1 2"),
    "words_of_a_list": ("lora-rank = 2\nlora-targets = attn.c_attn mlp.c_fc\n", "commas between the values of a flag, line 2"),
    "open_list": ('freeze = ["*.wpe.*",\nclip-norm = 2\n]\n', "close each list with ], that of line 1"),
}


@pytest.mark.parametrize("text, message", REFUSED.values(), ids=REFUSED)
def test_what_has_two_readings_is_refused(program, text, message):
    (program.folder / "flags.toml").write_text(text)
    done = program.run(arguments({**PRIVATE, "--config": "flags.toml"}))
    assert done.code == 2 and message in done.err and done.err.count("\n") == 1, done
    assert not (program.folder / "run").exists()
