"""Files that are damaged, or others than they should be: each ends in one sentence without a word of a record, with exit status 2, and
what is there stays as it was."""

import json
import os
import subprocess
import sys

import numpy
import pyarrow
import pyarrow.parquet
import pytest
from program import PRIVATE, arguments
from safetensors.numpy import save_file

from ghostshard import launcher
from ghostshard.errors import UserError, run
from ghostshard.texts import tables
from ghostshard.texts.text import read_units
from ghostshard.texts.vocabulary import gpt2_vocabulary

SECRET = "zqxsecret"
PREPARE = "data prepare --tokenizer gpt2 --max-length 8 --output out.safetensors"


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(words: str, capsys) -> str:
    """The sentence."""
    assert launcher.main(words.split()) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and said.err.count("\n") == 1 and said.out == ""
    assert SECRET not in said.err
    return said.err


TEXTS = {  # format, content, what is said
    "number_of_6000_digits": ("jsonl", '{"text": "a", "id": ' + "1" * 6000 + "}\n", "line 1 of in holds a number with too many digits"),
    "deep": ("jsonl", "[" * 200_000 + "\n", "line 1 of in is JSON that is nested too deeply"),
    "two_records_in_a_line": ("jsonl", f'{{"text": "a"}}{{"text": "{SECRET}"}}\n', "line 1 of in is not valid JSON: Extra data"),
    "two_columns_of_one_name": ("e2e", f"mr,ref,ref\n{SECRET},a,b\n", "the columns of in must have different names"),
    "two_other_columns_of_one_name": ("csv", f"text,{SECRET},{SECRET}\na,b,c\n", "the columns of in must have different names"),
}  # fmt: skip


@pytest.mark.parametrize("format, content, sentence", TEXTS.values(), ids=TEXTS)
def test_texts(work, capsys, format, content, sentence):
    (work / "in").write_text(content)
    assert sentence in refused(f"{PREPARE} --format {format} --input in", capsys)
    assert not (work / "out.safetensors").exists()


def test_a_long_text_of_a_table_is_read(work):
    """Python's own limit is 128 KiB."""
    (work / "in").write_text("mr,ref\na," + "word " * 40_000 + "\n")
    assert len(read_units("e2e", work / "in").units[0].text) == 5 * 40_000 - 1


def parquet(table: pyarrow.Table) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def stream(*columns: pyarrow.Array) -> bytes:
    table = pyarrow.Table.from_arrays(columns, names=["text"] * len(columns))
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def text_with_offsets(*offsets: int) -> pyarrow.Array:
    return pyarrow.StringArray.from_buffers(len(offsets) - 1, pyarrow.py_buffer(numpy.array(offsets, numpy.int32)), pyarrow.py_buffer(b"ab"))


def test_a_damaged_parquet_file(work, capsys):
    whole = bytearray(parquet(pyarrow.table({"text": [SECRET, "b"]})))
    whole[-12:-8] = b"\xff" * 4  # the end of what describes the columns
    (work / "in").write_bytes(whole)
    assert "in is not a Parquet file, or it is damaged" in refused(f"{PREPARE} --format parquet --input in", capsys)


def test_a_parquet_file_with_two_columns_of_one_name(work, capsys):
    (work / "in").write_bytes(parquet(pyarrow.Table.from_arrays([pyarrow.array([SECRET])] * 2, names=["text", "text"])))
    assert "must have different names" in refused(f"{PREPARE} --format parquet --input in", capsys)


def test_a_data_set_whose_offsets_leave_the_file_is_not_read(work, capsys):
    """pyarrow would read what lies beside the file in memory."""
    (work / "set").mkdir()
    (work / "set" / "state.json").write_text('{"_data_files": [{"filename": "rows.arrow"}]}')
    (work / "set" / "rows.arrow").write_bytes(stream(text_with_offsets(0, 2_000_000, 2)))
    assert "rows.arrow is not a file of a data set, or it is damaged" in refused(f"{PREPARE} --format dataset --input set", capsys)


@pytest.mark.parametrize("state", ['{"_data_files": [{"filename": 3}]}', "[" * 200_000, "[]"], ids=["number", "deep", "list"])
def test_a_folder_that_is_no_data_set(work, capsys, state):
    (work / "set").mkdir()
    (work / "set" / "state.json").write_text(state)
    assert "save_to_disk()" in refused(f"{PREPARE} --format dataset --input set", capsys)


def test_what_the_operating_system_refuses_is_not_taken_for_damage():
    with pytest.raises(PermissionError), tables._reading(pyarrow, "in", "a file"):
        raise PermissionError(13, "Permission denied", "in")


TOKENIZERS = {
    "no_token_for_unknown": ({"tokenizer.json": {"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"<|endoftext|>": 0}}}},
                             "cannot encode these texts: it lacks a token for what it does not know"),
    "panic": ({"tokenizer.json": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}}, "tokenizer.json is not a file that"),
    "garbage": ({"tokenizer.json": [SECRET]}, "tokenizer.json is not a file that the library tokenizers wrote"),
    "ids_of_text": ({"vocab.json": {"a": SECRET}, "merges.txt": ""}, "vocab.json must be an object of tokens and their ids"),
    "ids_too_large": ({"vocab.json": {"<|endoftext|>": 2**31}, "merges.txt": ""}, "whole numbers from 0 to 2147483647"),
    "merges_of_nothing": ({"vocab.json": {"<|endoftext|>": 0}, "merges.txt": "a b\n"}, "merges.txt must hold pairs of tokens"),
    "end_of_text_negative": ({"tokenizer.json": {}, "config.json": {"eos_token_id": -1}}, ""),
    "end_of_text_huge": ({"tokenizer.json": {}, "config.json": {"eos_token_id": 2**70}}, ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole_tokenizer() -> dict:
    return json.loads(gpt2_vocabulary().tokenizer.to_str())


@pytest.mark.parametrize("files, sentence", TOKENIZERS.values(), ids=TOKENIZERS)
def test_tokenizers(work, capfd, whole_tokenizer, files, sentence):
    """capfd: the library announces a panic on the file of standard error itself."""
    (work / "in").write_text(SECRET + "\n")
    (work / "tokenizer").mkdir()
    for name, content in files.items():
        if name == "tokenizer.json" and isinstance(content, dict):
            content = {**whole_tokenizer, **content, **({"added_tokens": []} if "model" in content else {})}
        (work / "tokenizer" / name).write_text(content if isinstance(content, str) else json.dumps(content))
    words = f"{PREPARE} --format text --input in".replace("gpt2", "tokenizer")
    if sentence:
        assert sentence in refused(words, capfd)
    else:  # GPT-2's end of text stands in for one that is none
        assert launcher.main(words.split()) == 0


def test_a_panic_over_a_text_is_not_shown(work, capfd, whole_tokenizer):
    (work / "in").write_text(SECRET + "\n")
    (work / "tokenizer").mkdir()
    normalizer = {"type": "Replace", "pattern": {"String": ""}, "content": "x"}
    (work / "tokenizer" / "tokenizer.json").write_text(json.dumps(whole_tokenizer | {"normalizer": normalizer}))
    refused(f"{PREPARE} --format text --input in".replace("gpt2", "tokenizer"), capfd)


OVERWRITTEN = {
    "prepare": f"{PREPARE.replace('out.safetensors', 'in')} --format text --input in --force",
    "users": f"{PREPARE.replace('out.safetensors', 'in')} --format text --input other --users-file in --force",
    "split": "data split --format text --input parts/private.jsonl --public-units 1 --eval-units 1 --output parts --force",
}


@pytest.mark.parametrize("words", OVERWRITTEN.values(), ids=OVERWRITTEN)
def test_the_output_never_takes_an_input_away(work, capsys, words):
    (work / "parts").mkdir()
    (work / "parts" / "private.jsonl").write_text("a\nb\nc\n")
    for name in ("in", "other"):
        (work / name).write_text("a\nb\n")
    assert "would overwrite the input" in refused(words, capsys)
    assert (work / "in").read_text() == "a\nb\n" and (work / "parts" / "private.jsonl").read_text() == "a\nb\nc\n"


def test_the_output_is_no_device(work, capsys):
    """A move would put a file in the place of /dev/null."""
    (work / "in").write_text("a\n")
    os.mkfifo(work / "pipe")
    assert "pipe is a device or a pipe" in refused(f"{PREPARE.replace('out.safetensors', 'pipe')} --format text --input in --force", capsys)
    assert (work / "pipe").is_fifo()


def test_a_link_stays_a_link(work):
    (work / "in").write_text("a\n")
    (work / "far").mkdir()
    (work / "out.safetensors").symlink_to("far/file")
    assert launcher.main(f"{PREPARE} --format text --input in".split()) == 0
    assert (work / "out.safetensors").is_symlink() and (work / "far" / "file").is_file()


def test_a_vocabulary_beyond_all_memory(work, capsys):
    (work / "in").write_text("a\n")
    words = f"data tokenizer --format text --input in --vocab-size {2**62} --output v"
    assert "--vocab-size: must be a whole number from 257 to 1000000" in refused(words, capsys)


METRICS = {
    "no_json": f"{SECRET}\n", "list": f'["{SECRET}"]\n', "deep": "[" * 200_000 + "\n", "text_for_a_number": f'{{"step": 1, "epsilon": "{SECRET}"}}\n',
    "step_true": '{"step": true}\n', "step_huge": f'{{"step": {2**70}}}\n', "no_utf8": b"\xff\n",
}  # fmt: skip


@pytest.mark.parametrize("content", METRICS.values(), ids=METRICS)
def test_metrics(work, capsys, content):
    (work / "metrics.jsonl").write_bytes(b'{"step": 0}\n' + (content if isinstance(content, bytes) else content.encode()))
    assert "line 2 of metrics.jsonl is not one that a run writes" in refused("metrics .", capsys)


SAMPLES = {"no_list": f'{{"step": 1, "prompt": "{SECRET}"}}\n', "negative": '{"step": 1, "tokens": [-1]}\n', "fraction": '{"step": 1, "tokens": [0.5]}\n'}


@pytest.mark.parametrize("content", SAMPLES.values(), ids=SAMPLES)
def test_samples(work, capsys, content):
    (work / "samples.jsonl").write_text(content)
    assert "line 1 of samples.jsonl is not one that a run writes" in refused("metrics . --tensorboard board", capsys)


def test_metrics_never_overwrite_a_ledger(work, capsys):
    (work / "ledger.jsonl").write_text("precious\n")
    assert "--csv must name a new file or one that this command wrote" in refused("metrics . --csv ledger.jsonl", capsys)
    assert (work / "ledger.jsonl").read_text() == "precious\n"
    assert launcher.main(["metrics", ".", "--csv", "out.csv"]) == launcher.main(["metrics", ".", "--csv", "out.csv"]) == 0


@pytest.mark.parametrize("words, sentence", [("--follow", "--follow writes to --csv"), ("--tokenizer gpt2", "which is not given")])
def test_options_of_metrics_that_would_do_nothing(work, capsys, words, sentence):
    assert sentence in refused(f"metrics . {words}", capsys)


TUNE = "tune --data data --eval-data data --output tuned --units 100 --target-epsilon 8 --expected-batch 2 --steps 4 --model m"


def write_packed(path, declared: str = "public", offsets=range(101)) -> None:
    save_file({"offsets": numpy.array(offsets, numpy.int64)}, path, metadata={"declared": declared})


@pytest.mark.parametrize("offsets", [3, []], ids=["no_list", "empty"])
def test_texts_of_tuning_without_offsets(work, capsys, offsets):
    write_packed(work / "data", offsets=offsets)
    assert "data must hold at least one text" in refused(TUNE, capsys)


def test_what_a_file_declares_of_itself_is_not_shown(work, capsys):
    write_packed(work / "data", declared=SECRET)
    assert "this file was declared neither public nor private" in refused(TUNE, capsys)


@pytest.mark.parametrize("settings", [b"{", b"\xff", b"[" * 200_000], ids=["cut", "no_utf8", "deep"])
def test_settings_of_tuning(work, capsys, settings):
    write_packed(work / "data")
    (work / "tuned").mkdir()
    (work / "tuned" / "settings.json").write_bytes(settings)
    assert "holds the trials of another tuning" in refused(TUNE, capsys)


def test_tuning_into_a_file(work, capsys):
    write_packed(work / "data")
    (work / "tuned").write_text("precious")
    assert "must be a folder, tuned is a file" in refused(TUNE, capsys)


# ---------------------------------------------------------------------------------------------------------------------
# What nobody foresaw


def surprised(_words: list[str]) -> int:
    return int(SECRET)


def test_a_fault_of_ours_shows_its_place_and_no_value(capsys):
    assert run(surprised, []) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ValueError at errors.py:") and "please report it" in said
    assert SECRET not in said and said.count("\n") == 1


def test_a_fault_of_ours_is_shown_whole_on_request(monkeypatch):
    monkeypatch.setenv("GHOSTSHARD_TRACEBACK", "1")
    with pytest.raises(ValueError, match=SECRET):
        run(surprised, [])


def test_too_little_memory_is_said(capsys):
    def command(_words: list[str]) -> int:
        raise MemoryError

    assert run(command, []) == 1
    assert "memory is not enough" in capsys.readouterr().err


def test_a_missing_package_does_not_take_the_whole_command_with_it():
    """`ghostshard doctor` is who names it: the launcher must not need it."""
    lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in ("numpy", "tokenizers", "safetensors", "torch")),
             "from ghostshard.launcher import main", "sys.exit(main(['--help']) or main(['data', 'prepare']))"]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stdout.startswith("Fine-tunes")
    assert done.stderr.startswith("error: this command needs the Python package ") and done.stderr.count("\n") == 1


def test_a_damaged_tokenizer_is_a_user_error_from_python_too(work):
    (work / "t").mkdir()
    (work / "t" / "tokenizer.json").write_text("{}")
    from ghostshard.texts import load_vocabulary

    with pytest.raises(UserError, match="tokenizer.json is not a file"):
        load_vocabulary("t")


@pytest.mark.parametrize(("text", "message"), [
    ("noise-multiplier = 9\nclip-norm = 1\nnoise-multiplier = 2\n", "--config gives --noise-multiplier twice"),
    ('public-note = web "# 2"\n', "quotes around a value that holds # or ;, and a space before a comment, line 1"),
    ("public-note = [web\nclip-norm = 0.5\n", "close each list with ], that of line 1"),
])  # fmt: skip
def test_a_file_of_flags_that_would_be_read_otherwise_is_refused(program, text, message):
    (program.folder / "flags.toml").write_text(text)
    words = arguments(PRIVATE, noise_multiplier=None if "noise" in text else "1", config="flags.toml", output="read-otherwise")
    done = program.run(words)
    assert done.code == 2 and message in done.err
    assert not (program.folder / "read-otherwise").exists()
