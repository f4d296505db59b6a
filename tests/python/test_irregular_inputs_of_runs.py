"""The C++ programs: a pipe or a device in the place of an input ends in one sentence, at once, and nothing is written."""

import os

import pytest
from ledgers import write_ledger
from test_cli_errors import make_mistake

KINDS = {"pipe": lambda path: os.mkfifo(path, 0o600), "device": lambda path: path.symlink_to("/dev/zero")}
INPUTS = {  # the file, flags
    "config": ("model/config.json", {}),
    "weights": ("model/model.safetensors", {}),
    "data": ("data.safetensors", {}),
    "eval_data": ("eval.safetensors", {"eval_data": "eval.safetensors"}),
    "recipe": ("recipe.toml", {"config": "recipe.toml"}),
    "model_config": ("own.json", {"model": None, "model_config": "own.json"}),
    "tokenizer": ("model/tokenizer.json", {}),
    "key": ("key", {"noise_key_file": "key"}),
    "register": ("register", {"budget_register": "register", "budget_limit": "9", "delta": "1e-5"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", INPUTS)
def test_of_a_run(binary, tmp_path, name, kind):
    place, flags = INPUTS[name]

    def change(work):
        (work / place).unlink(missing_ok=True)
        KINDS[kind](work / place)

    done, before, after = make_mistake(binary, tmp_path / "work", change, flags)
    assert done.code == 2 and done.out == ""
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert place in done.err
    assert name == "register" or "must be a regular file" in done.err  # a register is not there without its key
    assert after == before


ACCOUNT = {
    "ledger": ["epsilon", "--delta", "1e-5", "--ledger", "odd"],
    "dp_event": ["epsilon", "--delta", "1e-5", "--dp-event", "odd"],
    "facts": ["report", "--delta", "1e-5", "--ledger", "ledger.jsonl", "--output", "out", "--facts", "odd"],
    "signing_key": ["report", "--delta", "1e-5", "--ledger", "ledger.jsonl", "--output", "out", "--sign", "odd"],
    "report": ["verify", "--ledger", "ledger.jsonl", "--report", "odd"],
    "register": ["register", "odd"],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ACCOUNT)
def test_of_the_accountant(account, tmp_path, monkeypatch, name, kind):
    monkeypatch.chdir(tmp_path)
    write_ledger(tmp_path / "ledger.jsonl")
    KINDS[kind](tmp_path / "odd")
    done = account(*ACCOUNT[name])
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("ghostshard-account: ") and done.stderr.count("\n") == 1 and "odd" in done.stderr
    assert not (tmp_path / "out").exists()
