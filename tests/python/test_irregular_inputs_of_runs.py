"""The C++ programs: a pipe or a device in the place of an input ends in one sentence, at once, and nothing is written."""

import json
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


def huge(path) -> None:
    """As large as no memory, without blocks on the disk."""
    path.touch(0o600)
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("name", INPUTS)
def test_of_a_run_larger_than_memory(binary, tmp_path, name):
    place, flags = INPUTS[name]

    def change(work):
        (work / place).unlink(missing_ok=True)
        huge(work / place)

    done, before, after = make_mistake(binary, tmp_path / "work", change, flags)
    assert done.code == 2 and done.out == ""
    assert done.err.startswith("error: ") and done.err.count("\n") == 1 and place in done.err
    assert after == before


def test_texts_larger_than_memory(binary, tmp_path):
    """A file that is what it should be, but for its size."""

    def change(work):
        tokens = 1 << 38
        columns = {"tokens": ("I32", [tokens], 4 * tokens), "loss_mask": ("U8", [tokens], tokens), "offsets": ("I64", [2], 16)}
        header, end = {}, 0
        for column, (dtype, shape, size) in columns.items():
            header[column] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header).encode()
        with (work / "data.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)

    done, before, after = make_mistake(binary, tmp_path / "work", change, {})
    assert done.code == 2 and done.err.startswith("error: data.safetensors must fit in this machine's free memory (")
    assert done.err.endswith("it has 1310720 MiB\n") and after == before


PRIVATE_TEXTS = ('{"text": "zqxsecret"}\n', "zqxsecret\n", "zqxsecret = zqxsecret\n", "text,user\nzqxsecret,1\n", "[zqxsecret]\nsteps = 1\n")


@pytest.mark.parametrize("content", PRIVATE_TEXTS)
@pytest.mark.parametrize("flag", ["config", "optimizer_groups", "model_config", "data", "noise_key_file", "budget_register"])
def test_private_texts_given_for_another_file_are_not_quoted(binary, tmp_path, flag, content):
    flags = {flag: "texts", **({"model": None} if flag == "model_config" else {})}
    flags |= {"budget_limit": "9", "delta": "1e-6"} if flag == "budget_register" else {}
    done, before, after = make_mistake(binary, tmp_path / "work", lambda work: (work / "texts").write_text(content), flags)
    assert done.code == 2 and done.out == "" and done.err.startswith("error: ") and done.err.count("\n") == 1
    assert "zqxsecret" not in done.err and after == before


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


@pytest.mark.parametrize("name", ACCOUNT)
def test_of_the_accountant_larger_than_memory(account, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write_ledger(tmp_path / "ledger.jsonl")
    huge(tmp_path / "odd")
    done = account(*ACCOUNT[name])
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("ghostshard-account: ") and done.stderr.count("\n") == 1 and "odd" in done.stderr
    assert not (tmp_path / "out").exists()
