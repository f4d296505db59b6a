"""Whole runs, as a user starts and finds them: what they write, what is the same in two of them, and what never is."""

import hashlib
import json
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy
import pytest
from opacus.accountants import PRVAccountant, RDPAccountant
from program import CONFIG, PLAIN, PRIVATE, UNITS, Program, arguments, everything_in, json_lines, metrics, report, same_weights, write_data, write_inputs  # fmt: skip

TARGET = 3.0
STEPS = 20
KEY = bytes(range(100, 132))


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
    assert {name for name in everything_in(run) if not name.startswith("checkpoints")} == {
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
