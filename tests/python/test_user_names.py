"""Spellings of one name are one user, and names that only look alike are mentioned."""

import json

import pytest

from ghostshard.texts.__main__ import main
from ghostshard.texts.packed import read_packed
from ghostshard.texts.user_names import alike, one_user

COMPOSED, APART = "Jos\u00e9", "Jose\u0301"
END = ["--tokenizer", "gpt2", "--max-length", "8", "--output", "a"]


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def as_jsonl(work, names):
    (work / "records.jsonl").write_text("".join(json.dumps({"text": "a b", "who": name}) + "\n" for name in names))
    return ["--format", "jsonl", "--input", "records.jsonl", "--user-field", "who"]


def as_lines(work, names):
    (work / "lines.txt").write_text("a b\n" * len(names))
    (work / "users.txt").write_text("".join(name + "\n" for name in names))
    return ["--format", "text", "--input", "lines.txt", "--users-file", "users.txt"]


@pytest.mark.parametrize("written", [as_jsonl, as_lines])
def test_two_spellings_of_one_name_are_one_user(work, capsys, written):
    assert main(["prepare", *written(work, [COMPOSED, "Ann", APART + " "]), *END]) == 0
    assert read_packed(work / "a").units == 2 and "warning" not in capsys.readouterr().err


def test_a_split_keeps_the_spellings_of_one_name_whole(work):
    names = [name for pair in zip([COMPOSED + str(n) for n in range(6)], [APART + str(n) for n in range(6)], strict=True) for name in pair]
    words = as_jsonl(work, names)
    assert main(["split", *words, "--public-units", "3", "--eval-units", "1", "--output", "parts"]) == 0
    parts = [(work / "parts" / f"{name}.jsonl").read_text().splitlines() for name in ("public-train", "public-eval", "private")]
    users = [{json.loads(line)["who"] for line in lines} for lines in parts]
    assert sum(map(len, users)) == 6 == len(set.union(*users))


def test_names_that_look_alike_are_counted_and_stay_apart(work, capsys):
    names = ["Ann", "ann", "Bob", "Bo\u200bb", "\uff23arl", "Carl", "Dan\u00a0X", "Dan X", "Eve"]
    assert main(["prepare", *as_jsonl(work, names), *END]) == 0
    assert read_packed(work / "a").units == 9
    said = capsys.readouterr().err
    assert "the names of 8 users differ from another's in case" in said and not any(name in said for name in names)


def test_what_is_one_and_what_is_alike():
    assert one_user(APART) == one_user(" " + COMPOSED) and one_user("\u212b") == one_user("\u00c5")
    assert one_user("Ann") != one_user("ann")
    assert alike(["x", "y", "x"]) == 0 and alike(["stra\u00dfe", "STRASSE", "s"]) == 2


def test_a_record_that_has_a_key_twice_is_refused(work, capsys):
    (work / "records.jsonl").write_text('{"text": "a", "who": "ann", "who": "ben"}\n')
    assert main(["prepare", "--format", "jsonl", "--input", "records.jsonl", "--user-field", "who", *END]) == 2
    said = capsys.readouterr().err
    assert "line 1 of records.jsonl must have each key of an object once" in said and "ann" not in said
