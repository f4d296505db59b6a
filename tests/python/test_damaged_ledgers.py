"""ghostshard-account refuses ledgers that were changed, and says in which line."""

import json
from pathlib import Path

import pytest
from ledgers import write_ledger


def swap(lines):
    lines[2], lines[3] = lines[3], lines[2]


def edit(lines):
    lines[2] = lines[2].replace("2.0", "9.0")


def other_schema(lines):
    lines[0] = lines[0].replace("ledger/1", "ledger/9")


def broken_ledger(folder, change) -> Path:
    path = folder / "ledger.jsonl"
    lines = write_ledger(path, releases=5)
    change(lines)
    path.write_text("".join(line + "\n" for line in lines))
    return path


def deep_header(lines):
    lines[0] = lines[0][:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}"


def two_sigmas(lines):
    lines[2] = lines[2].replace('"noise_multiplier"', '"noise_multiplier": 9.0, "noise_multiplier"')


BROKEN = {
    "deep": (deep_header, "line 1: JSON must not be nested deeper than 64"),
    "a_key_twice": (two_sigmas, 'line 3: a JSON object must have each key once, got "noise_multiplier" twice'),
    "reordered": (swap, "line 3: previous must be"),
    "edited": (edit, "line 4: previous must be"),
    "a_line_taken_out": (lambda lines: lines.pop(2), "line 3: previous must be"),
    "unknown_schema": (other_schema, "schema must be ghostshard.ledger/1"),
    "cut_in_the_middle": (lambda lines: lines.__setitem__(2, lines[2][:30]), "line 3: must be a JSON object"),
    "empty": (lambda lines: lines.clear(), "the file is empty"),
}


@pytest.mark.parametrize("change, sentence", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("command", ["epsilon", "report"])
def test_a_broken_ledger_is_refused(account, tmp_path, command, change, sentence):
    path = broken_ledger(tmp_path, change)
    done = account(command, "--ledger", path, *(["--output", tmp_path / "out"] if command == "report" else []))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert sentence in done.stderr and str(path) in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change, sentence", BROKEN.values(), ids=BROKEN.keys())
def test_verify_finds_a_broken_ledger(account, tmp_path, change, sentence):
    path = broken_ledger(tmp_path, change)
    done = account("verify", "--ledger", path)
    assert done.returncode == 1 and "DIFFERS" in done.stdout and sentence in done.stdout
    done = account("verify", "--ledger", path, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["agrees"] is False and found["ledger_head"] is None
    assert [finding["verdict"] for finding in found["findings"]] == ["DIFFERS"]
    assert sentence in found["findings"][0]["what"]
