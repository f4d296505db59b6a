"""A pipe, a socket, a device or a folder where a command reads a file: refused at once, in a sentence. A pipe would be waited for, and a
device read until memory is full."""

import os
import socket

import pytest

from ghostshard import check_receipt, files, launcher

PREPARE = "data prepare --tokenizer gpt2 --max-length 8 --output out.safetensors"


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pipe(path) -> None:
    os.mkfifo(path)


def bound_socket(path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def endless(path) -> None:
    path.symlink_to("/dev/zero")


def folder(path) -> None:
    path.mkdir()


IRREGULAR = {"pipe": pipe, "socket": bound_socket, "device": endless, "folder": folder}
READERS = {  # what is no regular file, the command, which kinds are refused by another sentence
    "text": ("in", f"{PREPARE} --format text --input in", ("folder",)),
    "jsonl": ("in", f"{PREPARE} --format jsonl --input in", ("folder",)),
    "e2e": ("in", f"{PREPARE} --format e2e --input in", ("folder",)),
    "csv": ("in", f"{PREPARE} --format csv --input in", ("folder",)),
    "parquet": ("in", f"{PREPARE} --format parquet --input in", ("folder",)),
    "parquet_of_a_folder": ("set/a.parquet", f"{PREPARE} --format parquet --input set", ()),
    "state": ("set/state.json", f"{PREPARE} --format dataset --input set", tuple(IRREGULAR)),  # none is a data set
    "rows": ("set/rows.arrow", f"{PREPARE} --format dataset --input set", ()),
    "tune": ("in", "tune --data in --eval-data in --output out --units 9 --target-epsilon 1 --try clip-norm=1", ()),
}  # fmt: skip


@pytest.mark.parametrize("kind", IRREGULAR)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_refused_at_once(work, capsys, reader, kind):
    name, words, other = READERS[reader]
    (work / "set").mkdir()
    if reader == "rows":
        (work / "set" / "state.json").write_text('{"_data_files": [{"filename": "rows.arrow"}]}')
    IRREGULAR[kind](work / name)
    assert launcher.main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    assert (f"{name} must be a regular file, it is a {kind}" in said) != (kind in other)


def test_a_receipt_and_a_ledger_that_are_no_files_prove_nothing(work, capsys):
    for name in IRREGULAR:
        IRREGULAR[name](work / name)
        assert check_receipt.main(["--receipt", name, "--ledger", name]) == 1
        assert capsys.readouterr().out == f"NOT PROVEN: {name} must be a regular file\n"


def test_a_file_that_grows_is_read_as_it_was(work):
    """It grows between the look at its size and the reading; a reader that goes on to the end may never come to it."""
    (work / "in").write_text("a\n")
    grown = files.os.fstat

    def fstat(number: int):
        status = grown(number)
        with (work / "in").open("a") as more:
            more.write("b\n")
        return status

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files.os, "fstat", fstat)
        assert files.read_file(work / "in") == b"a\n"


@pytest.mark.parametrize("kind", ["text", "fortunes", "jsonl", "e2e", "csv"])
def test_a_file_that_memory_cannot_hold_is_refused_before_it_is_read(work, capsys, kind):
    with open(work / "in", "wb") as stream:
        stream.truncate(1 << 40)  # without blocks on the disk
    assert launcher.main(f"{PREPARE} --format {kind} --input in".split()) == 2
    said = capsys.readouterr().err
    assert "in is read whole, so it must be at most as large as this machine's free memory (" in said
    assert said.endswith("it has 1048576 MiB\n") and said.count("\n") == 1
