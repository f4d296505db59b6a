"""What docs/accountant.md shows of `ghostshard account` is what it prints: each line of an answer, as far as it is shown."""

import re
import shlex
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SHOWN = re.findall(r"^\$ ghostshard account (.*?)\n```", (REPOSITORY / "docs" / "accountant.md").read_text(), re.DOTALL | re.MULTILINE)
COMMANDS = [each for block in SHOWN for each in block.split("\n$ ghostshard account ")]


def words_and_answer(shown: str) -> tuple[list[str], list[str]]:
    """A command may go over several lines, within quotes."""
    lines = shown.split("\n")
    for end in range(1, len(lines) + 1):
        try:
            return shlex.split("\n".join(lines[:end])), lines[end:]
        except ValueError:
            continue
    raise AssertionError(f"no command: {shown}")


def rounded(line: str) -> str:
    """Another C library may differ in the last digits."""
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.9g}", line)


def test_the_document_shows_commands():
    assert len(COMMANDS) >= 7


@pytest.mark.parametrize("shown", COMMANDS)
def test_an_answer_is_as_it_is_shown(account, shown):
    words, answer = words_and_answer(shown)
    done = account(*words)
    assert done.returncode == 0, done.stderr
    wanted = [line for line in answer if line.strip() != "..."]
    assert wanted and [*map(rounded, done.stdout.splitlines()[: len(wanted)])] == [*map(rounded, wanted)]
