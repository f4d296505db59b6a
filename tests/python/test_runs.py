"""Whole runs, as a user starts and finds them: what they write, what they must not tell, how they end when a rank dies."""

import hashlib
import json
import math
import re
import resource
import shutil
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy
import pytest
from opacus.accountants import PRVAccountant, RDPAccountant
from program import (
    CONFIG, LENGTHS, PLAIN, PRIVATE, UNITS, Program, arguments, everything_in, json_lines, metrics, report, same_weights,
    texts, wait_until, weights, write_data, write_inputs, write_key, write_model,
)  # fmt: skip
from safetensors.numpy import load_file, save_file

from ghostshard.texts.generate import Sampling, generate

TARGET = 3.0
STEPS = 20
KEY = bytes(range(100, 132))


# ---------------------------------------------------------------------------------------------------------------------
# A private run over two ranks


@pytest.fixture(scope="module")
def two_ranks(binary, tmp_path_factory):
    """The run of a folder and what its two ranks said. One unit in the mean: most batches leave a rank without any."""
    folder = tmp_path_factory.mktemp("two_ranks") / "work"
    write_inputs(folder)
    (folder / "key").write_bytes(KEY)
    (folder / "key").chmod(0o600)
    program = Program(binary, folder)
    words = arguments(PRIVATE, noise_multiplier=None, target_epsilon=str(TARGET), expected_batch="1", steps=str(STEPS),
                      eval_data="public.safetensors", noise_key_file="key", timeout="60")  # fmt: skip
    try:
        ranks = program.run_ranks(words, words)
    finally:
        program.kill_all()
    assert [rank.code for rank in ranks] == [0, 0], ranks
    return folder / "run", ranks


def test_a_run_leaves_report_metrics_ledger_and_model(two_ranks):
    run, _ = two_ranks
    assert set(everything_in(run)) == {
        "privacy_report.json", "privacy_report.html", "metrics.jsonl", "ledger.jsonl", "model", "model/config.json",
        "model/generation_config.json", "model/model.safetensors",
    }  # fmt: skip


def test_the_report_promises_at_most_the_target(two_ranks):
    guarantee = report(two_ranks[0])["guarantee"]
    epsilon = guarantee["epsilon"]
    assert 0 < epsilon["lower"] <= epsilon["estimate"] <= epsilon["upper"] <= TARGET
    assert epsilon["upper"] > 0.999 * TARGET, "noise beyond what the target asks for"
    assert guarantee["delta"] == min(1e-6, UNITS**-1.1)
    assert guarantee["applies"] is True


def rounded_up(value: Fraction) -> float:
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def test_the_ledger_has_one_release_for_each_step(two_ranks):
    header, *releases = json_lines(two_ranks[0] / "ledger.jsonl")
    assert (header["type"], header["units"], header["expected_batch"], header["clip_norm"]) == ("header", UNITS, 1, 1.0)
    assert [(line["type"], line["step"], line["attempt"], line["sequence"]) for line in releases] == [
        ("release", step, 0, step + 1) for step in range(STEPS)
    ]
    for line in releases:
        assert line["event"] == {
            "type": "poisson_gaussian", "sampling_rate": rounded_up(Fraction(1, UNITS)),
            "noise_multiplier": header["noise_multiplier"],
        }  # fmt: skip


def test_every_line_of_the_ledger_carries_the_hash_of_the_one_before(two_ranks):
    lines = (two_ranks[0] / "ledger.jsonl").read_bytes().split(b"\n")
    assert lines.pop() == b""
    previous = "0" * 64
    for line in lines:
        assert json.loads(line)["previous"] == previous
        previous = hashlib.sha256(line).hexdigest()
    provenance = report(two_ranks[0])["provenance"]
    assert (provenance["ledger_head"], provenance["ledger_entries"]) == (previous, STEPS)
    assert provenance["run_id"] == json.loads(lines[0])["run_id"]


def test_epsilon_is_within_what_opacus_says(two_ranks):
    header, *releases = json_lines(two_ranks[0] / "ledger.jsonl")
    said = report(two_ranks[0])
    epsilons = {}
    for name, accountant in {"rdp": RDPAccountant(), "prv": PRVAccountant()}.items():
        for line in releases:
            accountant.step(noise_multiplier=line["event"]["noise_multiplier"], sample_rate=line["event"]["sampling_rate"])
        epsilons[name] = accountant.get_epsilon(delta=header["delta"])
    # Under the same Renyi bound ours chooses among all orders, theirs among some.
    assert said["rdp"]["epsilon"]["upper"] - 1e-6 <= epsilons["rdp"] <= 1.01 * said["rdp"]["epsilon"]["upper"]
    # Their grid's upper value lies above the truth by at most its stated error of 0.01, ours by less than 1e-6.
    assert said["guarantee"]["epsilon"]["upper"] - 1e-6 <= epsilons["prv"] <= said["guarantee"]["epsilon"]["upper"] + 0.02


def test_metrics_tell_of_every_step(two_ranks):
    lines = metrics(two_ranks[0])
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    always = {"step", "epsilon", "learning_rate"}
    evaluated = {"eval_loss", "eval_standard_error"}
    for line in lines:
        assert set(line) - evaluated == always
        assert evaluated <= set(line) or not evaluated & set(line)
        assert all(numpy.isfinite(value) for value in line.values())
    assert evaluated <= set(lines[0]) and evaluated <= set(lines[-1])
    assert sum("eval_loss" in line for line in lines) == 11  # the start and about ten of the run
    assert {line["learning_rate"] for line in lines} == {0.001}


def test_epsilon_so_far_never_falls_and_ends_at_the_reports(two_ranks):
    spent = [line["epsilon"] for line in metrics(two_ranks[0])]
    assert spent[0] == 0 and spent[1] > 0
    assert spent == sorted(spent)
    assert spent[-1] == report(two_ranks[0])["guarantee"]["epsilon"]["upper"]


def test_nothing_tells_losses_or_batch_sizes_of_private_data(two_ranks):
    run, ranks = two_ranks
    assert "private" not in (run / "metrics.jsonl").read_text()
    for rank in ranks:
        assert "private loss" not in (rank.out + rank.err).lower() and "private batch" not in (rank.out + rank.err).lower()
    assert report(run)["released_outputs"]["nonprivate_metrics"] is False


def test_the_noise_key_is_in_no_file_and_on_no_screen(two_ranks):
    run, ranks = two_ranks
    files = [content for content in everything_in(run).values() if content is not None]
    said = [(rank.out + rank.err).encode() for rank in ranks]
    for text in files + said:
        assert KEY not in text and KEY.hex().encode() not in text.lower()


def test_only_rank_0_speaks_and_closes_with_loss_epsilon_and_places(two_ranks):
    _, (first, second) = two_ranks
    assert (second.out, second.err) == ("", "")
    assert "Public evaluation loss: " in first.out
    assert "delta = 1e-06" in first.out and f"epsilon = {TARGET:.4f}" in first.out
    for name in ("run/model", "run/metrics.jsonl", "run/privacy_report.json", "run/ledger.jsonl"):
        assert name in first.out
    assert f"step {STEPS}/{STEPS}" in first.err and "\x1b" not in first.err


def test_sentences_name_the_unit_as_a_sentence_would(two_ranks):
    run, (first, _) = two_ranks
    assert "any one text" in report(run)["guarantee"]["statement"]
    assert "one one" not in first.out and "one one" not in (run / "privacy_report.json").read_text()


def test_two_ranks_start_with_the_loss_of_one(two_ranks, program):
    assert program.run(arguments(PRIVATE, eval_data="public.safetensors", steps="1")).code == 0
    one, two = (metrics(run)[0]["eval_loss"] for run in (program.folder / "run", two_ranks[0]))
    assert abs(one - two) < 1e-6


def test_a_launch_by_torchrun_trains_over_two_ranks(program):
    # For its own imports torchrun takes longer than the run.
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python",
             str(program.binary), *arguments(PRIVATE)]  # fmt: skip
    done = subprocess.run(words, cwd=program.folder, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert report(program.folder / "run")["provenance"]["ranks"] == 2
    assert len(json_lines(program.folder / "run" / "ledger.jsonl")) == 1 + 3


# ---------------------------------------------------------------------------------------------------------------------
# What is the same in two runs, and what never is


def test_one_key_gives_every_run_noise_of_its_own(program):
    (program.folder / "key").write_bytes(KEY)
    (program.folder / "key").chmod(0o400)
    one, other = program.folder / "one", program.folder / "other"
    for run in (one, other):
        assert program.run(arguments(PRIVATE, noise_key_file="key", output=run.name)).code == 0
    assert report(one)["provenance"]["run_id"] != report(other)["provenance"]["run_id"]
    assert not same_weights(one, other)


def test_a_seed_repeats_fresh_weights_and_neither_noise_nor_batches(program):
    (program.folder / "fresh.json").write_text(json.dumps(CONFIG))
    starts, ends = [], []
    for run, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        words = arguments(PRIVATE, model=None, model_config="fresh.json", seed=seed, output=run, eval_data="public.safetensors")
        assert program.run(words).code == 0
        losses = [line["eval_loss"] for line in metrics(program.folder / run) if "eval_loss" in line]
        starts.append(losses[0])
        ends.append(losses[-1])
    assert starts[0] == starts[1] != starts[2]
    assert ends[0] != ends[1]
    assert not same_weights(program.folder / "a", program.folder / "b")


def test_a_run_without_privacy_repeats_to_the_bit(program):
    for run, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        assert program.run(arguments(PLAIN, seed=seed, output=run)).code == 0
    model = Path("model/model.safetensors")
    a, b, c = ((program.folder / run / model).read_bytes() for run in "abc")
    assert a == b != c


def test_a_run_without_privacy_promises_nothing(program):
    done = program.run(arguments(PLAIN, eval_data="public.safetensors"))
    assert done.code == 0
    run = program.folder / "run"
    assert not (run / "privacy_report.json").exists() and not (run / "ledger.jsonl").exists()
    assert all("epsilon" not in line for line in metrics(run))
    assert "epsilon" not in done.out.lower() and "nothing is guaranteed" in done.err


def test_training_without_privacy_learns(program):
    """Each token is followed by the next number."""
    units = [[(start + i) % 8 for i in range(7)] for start in range(8)] * 3
    write_data(program.folder / "data.safetensors", units)
    write_data(program.folder / "public.safetensors", units[:8])
    words = arguments(PLAIN, eval_data="public.safetensors", steps="60", learning_rate="0.01", expected_batch="8", eval_every="20")
    assert program.run(words).code == 0
    losses = [line["eval_loss"] for line in metrics(program.folder / "run") if "eval_loss" in line]
    assert len(losses) == 4
    assert losses[0] > 2 and losses[-1] < 0.5


def test_epochs_are_expected_passes_over_the_data(program):
    assert program.run(arguments(PRIVATE, steps=None, epochs="1.5", expected_batch="5")).code == 0
    # 24 · 1.5 / 5 = 7.2
    assert metrics(program.folder / "run")[-1]["step"] == 8


def test_a_lower_target_gets_more_noise(program):
    noise = {}
    for target in ("1", "8"):
        words = arguments(PRIVATE, noise_multiplier=None, target_epsilon=target, output=f"run{target}", delta="1e-5")
        assert program.run(words).code == 0
        run = program.folder / f"run{target}"
        assert 0.999 * float(target) < report(run)["guarantee"]["epsilon"]["upper"] <= float(target)
        noise[target] = json_lines(run / "ledger.jsonl")[0]["noise_multiplier"]
    assert noise["1"] > noise["8"] > 0


# ---------------------------------------------------------------------------------------------------------------------
# Numbers of private data, where the user allows them


def test_allowed_private_metrics_are_written_and_the_report_says_they_are_not_covered(program):
    words = arguments(PRIVATE, allow_nonprivate_metrics="", expected_batch="12", steps="6")
    ranks = program.run_ranks(words, words)
    assert [rank.code for rank in ranks] == [0, 0]
    run = program.folder / "run"
    lines = metrics(run)
    assert "private_loss" not in lines[0]
    batches = [line["private_batch"] for line in lines[1:]]
    # 24 units, each drawn with probability a half; six equal draws: once in 1000.
    assert all(0 <= batch <= UNITS for batch in batches) and len(set(batches)) > 1
    assert all(0 < line["private_loss"] < 20 for line in lines[1:] if line["private_batch"] > 0)
    said = report(run)
    assert said["released_outputs"]["nonprivate_metrics"] is True
    assert "whoever saw them has no guarantee" in said["guarantee"]["statement"]
    assert "NOT covered" in json.dumps(said["released_outputs"])
    assert "warning: losses and batch sizes of the private data, times and memory" in ranks[0].err
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds) and seconds[-1] > 0
    assert "times and memory" in json.dumps(said["released_outputs"]) and "Time: " in ranks[0].out and "MiB" in ranks[0].out


TIMES = re.compile(r"seconds|tokens/s|texts/s|/step|MiB|memory [0-9]|[0-9]:[0-5][0-9]\b")


@pytest.mark.parametrize("flags", [{}, {"noise_key_file": "key", "checkpoint_every": "2"}], ids=["plain", "checkpoints"])
def test_by_default_no_time_and_no_memory_is_on_standard_output_or_in_a_file(program, flags):
    write_key(program.folder)
    done = program.run(arguments(PRIVATE, eval_data="public.safetensors", **flags))
    assert done.code == 0
    shown = {"standard output": done.out, **{
        name: content.decode(errors="replace") for name, content in everything_in(program.folder / "run").items()
        if content and not name.endswith((".safetensors", ".html"))
    }}  # fmt: skip
    for name, text in shown.items():
        assert not TIMES.search(text), (name, TIMES.search(text))
    assert "s/step" in done.err and "peak memory" in done.err  # standard error is the operator's


def without_hashes(content: bytes) -> bytes:
    """Run ids, commitments, tags and hashes are drawn anew or follow from what was."""
    return re.sub(rb"\b[0-9a-f]{32}(?:[0-9a-f]{32})?\b", b"HASH", content)


@pytest.mark.parametrize("ranks", [1, 2])
def test_without_one_text_nothing_but_the_noised_weights_differs(program, ranks):
    """The longest text, and the same data with an empty one in its place: under one key file, in all that is released."""
    write_key(program.folder)
    flags = {"noise_key_file": "key", "checkpoint_every": "1", "expected_batch": "12", "output": "run"}
    released = []
    for units in (texts(LENGTHS), [[] if len(text) == max(LENGTHS) else text for text in texts(LENGTHS)]):
        write_data(program.folder / "data.safetensors", units)
        done = program.run_ranks(*[arguments(PRIVATE, **flags)] * ranks)
        assert [rank.code for rank in done] == [0] * ranks, done
        files = everything_in(program.folder / "run")
        tensors = {name: len(content) for name, content in files.items() if name.endswith(".safetensors")}
        shown = {name: without_hashes(content) for name, content in files.items() if content and name not in tensors}
        released.append((without_hashes(done[0].out.encode()), [rank.out for rank in done[1:]], files.keys(), tensors, shown))
        shutil.rmtree(program.folder / "run")
    for one, other in zip(*released, strict=True):
        assert one == other


NOT_PUBLIC = {
    "declared_private": ("private", [[1, 2, 3]], "declared private"),
    "not_declared": (None, [[1, 2, 3]], "must be declared public: prepare the file with --declare public"),
    "the_private_file_itself": ("public", None, "its text 1 is text 1 there"),
    "one_common_text": ("public", [[3, 2, 1, 9], texts(LENGTHS)[5]], "its text 1 is text 5 there"),
}


@pytest.mark.parametrize("declared, units, message", NOT_PUBLIC.values(), ids=NOT_PUBLIC.keys())
def test_only_texts_declared_public_and_not_private_too_are_evaluated(program, declared, units, message):
    """`ghostshard.texts prepare` writes down what a file was declared to be."""
    write_data(program.folder / "public.safetensors", texts(LENGTHS) if units is None else units, declared)
    done = program.run(arguments(PRIVATE, eval_data="public.safetensors"))
    assert done.code == 2
    assert "public.safetensors" in done.err and message in done.err
    assert not (program.folder / "run").exists()


def test_a_text_without_a_prediction_may_stand_in_both(program):
    write_data(program.folder / "public.safetensors", [*texts([1, 9], seed=7), texts(LENGTHS)[0]], "public")
    assert program.run(arguments(PRIVATE, eval_data="public.safetensors")).code == 0


# ---------------------------------------------------------------------------------------------------------------------
# Ranks that were started differently


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


# ---------------------------------------------------------------------------------------------------------------------
# When something breaks midway

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
    "data": (broken_data, "the header must"),
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


# ---------------------------------------------------------------------------------------------------------------------
# Generating text


@pytest.fixture(scope="module")
def speaking_model(binary, run_module, tmp_path_factory):
    """A model/ with its tokenizer, trained on a text it can learn by heart, made by the commands of the README."""
    folder = tmp_path_factory.mktemp("speaking") / "work"
    folder.mkdir()
    (folder / "texts.txt").write_text("the cat sat on the mat\n" * 40)
    prepared = "--format text --input texts.txt"
    for command in (
        f"tokenizer {prepared} --vocab-size 264 --output start",
        f"prepare {prepared} --tokenizer start --max-length 24 --output texts.safetensors --begin-with-end-of-text",
    ):
        done = run_module("ghostshard.texts", *command.split(), cwd=folder)
        assert done.code == 0, done.err
    size = json.loads((folder / "start" / "vocab.json").read_text())
    write_model(folder / "start", {"vocab_size": len(size), "n_positions": 32, "bos_token_id": 263, "eos_token_id": 263})
    program = Program(binary, folder)
    done = program.run(arguments(PLAIN, model="start", data="texts.safetensors", learning_rate="0.01", steps="60"))
    assert done.code == 0, done.err
    return folder / "run" / "model"


def test_the_saved_folder_has_the_tokenizer(speaking_model):
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        assert (speaking_model / name).read_bytes() == (speaking_model.parents[1] / "start" / name).read_bytes()


@pytest.fixture(scope="module")
def continued(speaking_model):
    """What transformers' own greedy generation makes of a prompt."""

    def text(prompt: str) -> str:
        return generate(speaking_model, prompt, sampling=Sampling(temperature=0), backend="transformers")

    return {prompt: text(prompt) for prompt in ("the cat", "")}


def test_the_model_learned_its_text(continued):
    assert continued[""] == "the cat sat on the mat"
    assert continued["the cat"].startswith("the cat ") and len(continued["the cat"]) > 15


@pytest.mark.parametrize("prompt", ["the cat", ""], ids=["a_prompt", "an_empty_prompt"])
def test_generate_continues_as_transformers_does(speaking_model, continued, run_module, binary, prompt):
    words = ["--model", speaking_model, "--prompt", prompt, "--temperature", "0", "--binary", binary]
    done = run_module("ghostshard.generate", *words)
    assert (done.code, done.out) == (0, continued[prompt] + "\n")


def test_the_program_itself_takes_no_text(program):
    """It has no tokenizer: texts are generated by ghostshard.generate."""
    done = program.run(["--model", "model", "--generate", "the cat"])
    assert done.code == 2 and "--generate" in done.err


def test_sampled_tokens_follow_the_seed(program):
    def sample(seed: str) -> str:
        words = ["--model", "model", "--generate-tokens", "1,2", "--max-new-tokens", "10", "--temperature", "5", "--seed", seed]
        done = program.run(words)
        assert done.code == 0
        return done.out

    assert sample("1") == sample("1") != sample("2")


def test_a_prompt_longer_than_the_context_goes_on_from_its_end(program):
    """Positions beyond the model's are dropped from the front."""
    tail = "3,4,5,6,7,8,9,10,11,12,13,14"  # n_positions tokens
    words = ["--model", "model", "--max-new-tokens", "1", "--temperature", "0", "--generate-tokens"]
    long = program.run([*words, f"1,2,{tail}"])
    assert long.code == 0 and long.out == program.run([*words, tail]).out


def test_generating_needs_no_more_than_the_folder(program):
    shutil.copytree(program.folder / "model", program.folder / "copy")
    before = everything_in(program.folder)
    assert program.run(["--model", "copy", "--generate-tokens", "1", "--max-new-tokens", "2"]).code == 0
    assert everything_in(program.folder) == before
