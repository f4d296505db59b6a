"""A misspelt option or command of `ghostshard data` gets a suggestion, even if the option is one that is needed."""

import pytest

from ghostshard.texts.__main__ import main

MISSPELT = {
    "needed_option": (["prepare", "--formt", "e2e"], "--formt is not known; did you mean --format?"),
    "command": (["preprae"], "did you mean prepare?"),
    "choice": (["prepare", "--format", "jsnl"], "did you mean jsonl?"),
}


@pytest.mark.parametrize("name", MISSPELT)
def test_it_is_named(name, capsys):
    words, said = MISSPELT[name]
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_what_is_like_nothing_gets_none(capsys):
    assert main(["prepare", "--zzz", "1"]) == 2
    assert "did you mean" not in capsys.readouterr().err
