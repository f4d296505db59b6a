"""Ranks that were started differently, that fail or fall silent: one sentence on all of them, and nothing is lost."""

import resource
import shutil
import signal
from pathlib import Path

import pytest
from program import LENGTHS, PRIVATE, arguments, everything_in, metrics, texts, wait_until, write_data, write_model


def other_texts(work: Path) -> None:
    """As many texts, in another order."""
    write_data(work / "other.safetensors", texts(LENGTHS)[::-1])


UNLIKE = {
    # what rank 1 has otherwise: (files made before, flags of rank 1, what the sentence names)
    "noise": (None, {"noise_multiplier": "0.001"}, "--noise-multiplier on rank 1"),
    "clip_norm": (None, {"clip_norm": "100"}, "--clip-norm on rank 1"),
    "seed": (None, {"seed": "4"}, "--seed on rank 1"),
    "steps": (None, {"steps": "4"}, "--steps on rank 1"),
    "expected_batch": (None, {"expected_batch": "5"}, "--expected-batch on rank 1"),
    "microbatch": (None, {"microbatch": "1"}, "--microbatch on rank 1"),
    "freeze": (None, {"freeze": "*.wpe.*"}, "--freeze on rank 1"),
    "no_privacy": (None, {"non_private": "", "noise_multiplier": None}, "--non-private on rank 1"),
    "resume": (None, {"resume": ""}, "--resume on rank 1"),
    "evaluation": (None, {"eval_data": "public.safetensors"}, "--eval-data on rank 1"),
    "texts": (other_texts, {"data": "other.safetensors"}, "the texts in --data on rank 1"),
    "number_of_texts": (lambda work: write_data(work / "other.safetensors", texts([3] * 30)), {"data": "other.safetensors"},
                        "the texts in --data on rank 1"),
    "weights": (lambda work: write_model(work / "other", change=lambda tensors: tensors["transformer.ln_f.bias"].fill(0.5)),
                {"model": "other"}, "the weights in --model on rank 1"),
    "config": (lambda work: write_model(work / "other", {"layer_norm_epsilon": 1e-3}), {"model": "other"},
               "the model's config.json on rank 1"),
    "mesh": (None, {"mesh": "2x1x1"}, "all ranks must be given the same mesh: rank 0 has 1x2x1"),
}  # fmt: skip


@pytest.mark.parametrize("make, changes, message", UNLIKE.values(), ids=UNLIKE.keys())
def test_ranks_that_differ_end_with_one_sentence_before_anything_is_written(program, make, changes, message):
    if make:
        make(program.folder)
    before = everything_in(program.folder)
    ranks = program.run_ranks(arguments(PRIVATE, timeout="60"), arguments(PRIVATE, timeout="60", **changes))
    assert [rank.code for rank in ranks] == [2, 2], ranks
    for number, rank in enumerate(ranks):
        assert rank.out == "" and rank.err.count("\n") == 1 and message in rank.err, rank
        assert rank.err.startswith(f"rank {number}: error: all ranks must be ")
    assert everything_in(program.folder) == before


def test_each_rank_may_find_the_same_files_in_another_place(program):
    shutil.copytree(program.folder / "model", program.folder / "same")
    shutil.copy(program.folder / "data.safetensors", program.folder / "same.safetensors")
    words = arguments(PRIVATE), arguments(PRIVATE, model="same", data="same.safetensors")
    assert [rank.code for rank in program.run_ranks(*words)] == [0, 0]


LONG = {**PRIVATE, "--steps": "1000000", "--timeout": "20"}


def is_under_way(run: Path) -> bool:
    file = run / "metrics.jsonl"
    return file.exists() and file.read_text().count("\n") > 3


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_ends_the_other_which_names_the_cause(program, killed):
    ranks = program.start_ranks(arguments(LONG), arguments(LONG))
    wait_until(lambda: is_under_way(program.folder / "run"))
    ranks[killed].process.kill()
    survivor = ranks[1 - killed].wait(20)
    assert survivor.code == 1
    assert f"rank {1 - killed}: " in survivor.err
    assert "closed" in survivor.err.lower() or "reset" in survivor.err.lower()
    assert not (program.folder / "run" / "model").exists()


def test_a_silent_rank_ends_the_other_after_the_timeout(program):
    words = arguments(LONG, timeout="3")
    ranks = program.start_ranks(words, words)
    wait_until(lambda: is_under_way(program.folder / "run"))
    ranks[1].process.send_signal(signal.SIGSTOP)
    survivor = ranks[0].wait(15)
    assert survivor.code == 1
    assert "rank 0: error: " in survivor.err and "timed out" in survivor.err.lower()
    assert not (program.folder / "run" / "model").exists()


def broken_data(folder: Path) -> dict:
    (folder / "broken.safetensors").write_bytes(b"x" * 300)
    return {"data": "broken.safetensors"}


def broken_weights(folder: Path) -> dict:
    write_model(folder / "broken", change=lambda tensors: tensors.pop("transformer.h.0.ln_1.bias"))
    return {"model": "broken"}


ONE_RANK_FAILS = {
    "data": (broken_data, "broken.safetensors is not a file of tokens: prepare it first"),
    "weights": (broken_weights, "'transformer.h.0.ln_1.bias' is missing"),
}


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("spoil, message", ONE_RANK_FAILS.values(), ids=ONE_RANK_FAILS.keys())
def test_an_exception_on_one_rank_ends_both_with_its_message(program, spoil, message, failing):
    flags = spoil(program.folder)
    words = [arguments(LONG, **(flags if rank == failing else {})) for rank in range(2)]
    ranks = program.run_ranks(*words, seconds=15)
    assert ranks[failing].code == 2
    assert ranks[1 - failing].code in (1, 2)
    for rank in ranks:
        assert message in rank.err
    assert not (program.folder / "run" / "model").exists()


def small_files_only() -> None:
    """Room for the ledger's header and a few releases. The signal ignored, a write beyond it fails as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))


def test_a_ledger_that_cannot_be_written_stops_every_rank_before_the_release(program):
    ranks = program.run_ranks(arguments(LONG), arguments(LONG), before_exec=small_files_only, seconds=30)
    for number, rank in enumerate(ranks):
        assert rank.code == 1
        assert f"rank {number}: " in rank.err and "the ledger could not be written, so nothing of step" in rank.err
    assert "File too large" in ranks[0].err
    run = program.folder / "run"
    assert not (run / "model").exists() and not (run / "privacy_report.json").exists()
    # No step was shown whose release is not in the ledger.
    whole_lines = (run / "ledger.jsonl").read_text().split("\n")[:-1]
    assert metrics(run)[-1]["step"] == len(whole_lines) - 1 > 0
