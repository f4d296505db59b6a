"""Odd words that are typed. Names, as messages show them: an end of line, a command to the terminal or a space of no width in one is escaped,
so that a message is one line that shows what was typed, and a terminal obeys none of it. Empty words; numbers and names that nothing holds."""

import os
import subprocess
import sys

import pytest
from ledgers import write_ledger
from program import PRIVATE, arguments, everything_in

from ghostshard import launcher

COMMAND = [sys.executable, "-m", "ghostshard.command"]
TYPED = {  # the word, what a message shows of it
    "colour": ("\x1b[31mred", r"\x1b[31mred"), "end_of_line": ("no\nsuch", r"no\nsuch"), "return": ("a\rb", r"\x0db"),
    "delete": ("a\x7fb", r"a\x7fb"), "c1": ("a\x9bb", r"a\x9bb"), "letters": ("Läufe", "Läufe"),
}  # fmt: skip
# Python's escapes, and what only Python knows to be without width or of another direction.
PYTHON = {"return": r"a\rb", "no_width": r"a\u200bb", "line_separator": r"a\u2028b", "right_to_left": r"a\u202eb"}
PLACES = {
    "command": lambda word: [*COMMAND, word],
    "input": lambda word: [*COMMAND, *"data prepare --format text --tokenizer gpt2 --max-length 8 --output o --input".split(), word],
    "option": lambda word: [*COMMAND, "metrics", "run", f"--{word}"],
}


def said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL)
    err = done.stderr.decode()
    assert done.returncode == 2 and done.stdout == b"" and err.count("\n") == 1 and err.endswith("\n")
    assert all(c.isprintable() for c in err[:-1])
    return err


@pytest.mark.parametrize("name", {**TYPED, **PYTHON})
@pytest.mark.parametrize("place", PLACES)
def test_of_python(place, name):
    word = TYPED[name][0] if name in TYPED else PYTHON[name].encode().decode("unicode_escape")
    assert (PYTHON.get(name) or TYPED[name][1]) in said(PLACES[place](word))


@pytest.mark.parametrize("name", TYPED)
def test_of_the_accountant(account, name):
    word, shown = TYPED[name]
    for words in ([word], ["epsilon", f"--{word}"], ["epsilon", "--phase", "0.01:1:9", "--delta", word], ["register", word]):
        assert shown in said([*account.program, *words])


@pytest.mark.parametrize("name", TYPED)
def test_of_the_training_program(binary, name):
    word, shown = TYPED[name]
    for words in ([f"--{word}"], ["--device", word]):
        assert shown in said([str(binary), *words])


def test_ranks_beyond_pythons_longest_number():
    """int() refuses 4,301 digits with an error of its own."""
    assert "-n must be a whole number of ranks from 1 to 4096, got '999" in said([*COMMAND, "finetune", "-n", "9" * 5000])


EMPTY = {
    "alone": ([""], "not expected: an empty word"),
    "of_an_unknown_option": (["--model", "model", "--declare", "", "--steps", "2", "--expected-batch", "2"], "not expected: --declare (see"),
    "of_a_misspelt_one": (["--modle", "", "--steps", "2"], "not expected: --modle; did you mean --model? (see"),
    "of_a_switch": (["--resume", "", "--steps", "2"], "not expected: an empty word"),
}


@pytest.mark.parametrize("words, sentence", EMPTY.values(), ids=EMPTY)
def test_an_empty_word_that_is_no_value_is_refused(binary, words, sentence):
    """CLI11 reads some of them for ever."""
    done = subprocess.run([str(binary), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and sentence in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", ["８", "1_0", " 8", "8 ", "0x8", "nan", "inf", "1e400", ""])
def test_numbers_of_python_are_those_of_the_programs(number, capsys):
    words = "advise --units 1000 --expected-batch 10 --steps 10".split()
    assert launcher.main([*words, f"--target-epsilon={number}"]) == 2
    assert f"must be a number >= 0, got {number!r}" in capsys.readouterr().err


REFUSED = {
    "rank_beyond_all_sizes": ({"lora_rank": "9" * 18}, "--lora-rank must be at most the smaller side of transformer.h.0.attn.c_attn.weight (16), got 9999"),
    "rank_one_too_large": ({"lora_rank": "17"}, "(16), got 17"),
    "output_of_a_long_name": ({"output": "x" * 300}, "cannot be used: File name too long"),
}


@pytest.mark.parametrize("flags, sentence", REFUSED.values(), ids=REFUSED)
def test_of_a_run(program, flags, sentence):
    before = everything_in(program.folder)
    done = program.run(arguments(PRIVATE, **flags))
    assert done.code == 2 and sentence in done.err and done.err.count("\n") == 1
    assert everything_in(program.folder) == before


def test_the_largest_rank_is_taken(program):
    assert program.run(arguments(PRIVATE, lora_rank="16", steps="1")).code == 0


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_receipt_where_something_else_is_is_refused_before_the_report_is_written(account, tmp_path, make):
    """A move would take the place of a pipe, and of a device if root asks for it."""
    write_ledger(tmp_path / "ledger.jsonl")
    make(tmp_path / "there")
    done = account("report", "--ledger", tmp_path / "ledger.jsonl", "--delta", "1e-6", "--output", tmp_path / "out", "--receipt", tmp_path / "there")
    assert done.returncode == 2 and "--receipt must be a file, " in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "there").is_file()


def test_a_report_takes_no_pipes_place_and_leaves_a_link_one(account, tmp_path):
    write_ledger(tmp_path / "ledger.jsonl")
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / "privacy_report.html")
    done = account("report", "--ledger", tmp_path / "ledger.jsonl", "--delta", "1e-6", "--output", tmp_path / "out")
    assert done.returncode == 2 and "must be a regular file, or none yet" in done.stderr and done.stderr.count("\n") == 1
    assert (tmp_path / "out" / "privacy_report.html").is_fifo()
    os.unlink(tmp_path / "out" / "privacy_report.html")
    (tmp_path / "elsewhere.html").touch()
    (tmp_path / "out" / "privacy_report.html").symlink_to(tmp_path / "elsewhere.html")
    assert account("report", "--force", "--ledger", tmp_path / "ledger.jsonl", "--delta", "1e-6", "--output", tmp_path / "out").returncode == 0
    assert (tmp_path / "out" / "privacy_report.html").is_symlink() and (tmp_path / "elsewhere.html").read_text().startswith("<!")


def test_what_is_written_is_named_without_commands_for_the_terminal(program, tmp_path, monkeypatch, capsys):
    done = program.run(arguments(PRIVATE, output="\x1b]0;t\x07run"))
    assert done.code == 0 and "\x1b" not in done.out + done.err and "]0;t" in done.out
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").write_text("one\ntwo\n")
    words = "data prepare --format text --input texts --tokenizer gpt2 --max-length 8 --output".split()
    assert launcher.main([*words, "\x1b]0;t\x07out.safetensors"]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err and "]0;t" in said.out


def test_a_receipt_that_cannot_be_is_refused_before_a_report_is_written(account, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_ledger(tmp_path / "ledger.jsonl")
    (tmp_path / "loop").symlink_to("loop")
    done = account("report", "--ledger", "ledger.jsonl", "--delta", "1e-6", "--output", "out", "--receipt", "loop")
    assert done.returncode == 2 and "--receipt loop cannot be used: Too many levels of symbolic links" in done.stderr
    assert not (tmp_path / "out").exists() and (tmp_path / "loop").is_symlink()
    shown = account("report", "--ledger", "ledger.jsonl", "--delta", "1e-6", "--output", "\x1b]0;t\x07out")
    assert shown.returncode == 0 and "\x1b" not in shown.stdout + shown.stderr
