"""What cannot be proven about an earlier run is refused, and nothing is touched."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from program import CONFIG, PLAIN, PRIVATE, arguments, everything_in, texts, write_data, write_key, write_model
from resumable import KEYED, as_if_ended, resumed


def edit_ledger(change):
    def spoil(work: Path) -> None:
        path = work / "run" / "ledger.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1]
        path.write_bytes(b"\n".join(change(lines)) + b"\n")

    return spoil


def other_ledger(work: Path) -> None:
    ledger = work / "run" / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    lines[0]["run_id"], previous, text = "0" * 32, "0" * 64, ""
    for line in lines:
        line["previous"] = previous
        content = json.dumps(line, separators=(",", ":"), sort_keys=True)
        previous = hashlib.sha256(content.encode()).hexdigest()
        text += content + "\n"
    ledger.write_text(text)


def damage(work: Path) -> None:
    path = work / "run" / "checkpoints" / "step-000000000010" / "rank-00000-of-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(bytes(content))


def cut_without_witness(work: Path) -> None:
    """Ledger and checkpoints put back to step 5, the metrics forgotten."""
    as_before = (work / "run" / "metrics.jsonl").read_bytes()
    as_if_ended(work, 5)
    (work / "run" / "metrics.jsonl").write_bytes(as_before)


def loop(name: str):
    """A link that leads to itself, where the run has a file or a folder."""

    def spoil(work: Path) -> None:
        place = work / "run" / name
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        place.symlink_to(name)

    return spoil


REFUSED = {
    "ledger_behind": (edit_ledger(lambda lines: lines[:-1]), {}, "it is behind the checkpoint, was cut or was rewritten"),
    "ledger_emptied": (edit_ledger(lambda lines: lines[:1]), {}, "behind the checkpoint"),
    "ledger_edited": (edit_ledger(lambda lines: [*lines[:3], lines[3].replace(b'"step":2', b'"step":9'), *lines[4:]]), {},
                      "previous must be the SHA-256"),
    "ledger_of_another_run": (other_ledger, {}, "another run's than the checkpoint's"),
    "ledger_gone": (lambda work: (work / "run" / "ledger.jsonl").unlink(), {}, "no ledger.jsonl"),
    "metrics_know_more": (cut_without_witness, {}, "metrics.jsonl has 6 steps, but the ledger"),
    "checkpoint_damaged": (damage, {}, "is damaged"),
    "checkpoint_without_manifest": (lambda work: (work / "run/checkpoints/step-000000000010/checkpoint.json").unlink(), {},
                                    "the manifest must be there"),
    "checkpoints_a_loop": (loop("checkpoints"), {}, "checkpoints cannot be used: Too many levels of symbolic links"),
    "ledger_a_loop": (loop("ledger.jsonl"), {}, "ledger.jsonl cannot be used: Too many levels of symbolic links"),
    "metrics_a_loop": (loop("metrics.jsonl"), {}, "metrics.jsonl cannot be used: Too many levels of symbolic links"),
    "another_learning_rate": (None, {"learning_rate": "0.01"}, "--learning-rate must be what the run began with (0.001), is 0.01"),
    "another_optimizer": (None, {"optimizer": "sgd"}, "--optimizer must be what the run began with"),
    "another_gather_dtype": (None, {"gather_dtype": "int8"}, "--gather-dtype must be what the run began with (compute), is int8"),
    "another_freeze": (None, {"freeze": "*.wpe.*"}, "--freeze must be what the run began with (not given)"),
    "private_metrics_now_shown": (None, {"allow_nonprivate_metrics": ""}, "--allow-nonprivate-metrics must be"),
    "another_clip_norm": (None, {"clip_norm": "2"}, "clip_norm is 1.0, here it would be 2.0"),
    "another_clipping": (None, {"clipping": "per-layer"}, "the ledger's clipping is \"flat, per unit"),
    "another_noise": (None, {"noise_multiplier": "0.5"}, "noise_multiplier is 1.0, here it would be 0.5"),
    "another_batch": (None, {"expected_batch": "5"}, "expected_batch is 4, here it would be 5"),
    "more_steps": (None, {"steps": "30"}, "planned_steps is 20, here it would be 30"),
    "more_texts": (lambda work: write_data(work / "data.safetensors", texts([3] * 25)), {}, "units is 24, here it would be 25"),
    "other_texts_under_the_same_key": (lambda work: write_data(work / "data.safetensors", texts([3] * 24)), {},
                                       "the texts in --data must be what the run began with"),
    "another_key": (lambda work: write_key(work, content=bytes(32)), {}, "does not hold the key of this run"),
    "another_model": (lambda work: (work / "model" / "config.json").write_text(json.dumps({**CONFIG, "n_head": 4})), {},
                      "config.json must be what the run began with"),
    "other_weights_to_start_from": (lambda work: write_model(work / "model", change=lambda t: t["transformer.ln_f.bias"].fill(1)), {},
                                    "the weights in --model must be what the run began with"),
    "public_texts_now_shown": (None, {"eval_data": None}, "--eval-data must be what the run began with (given), is not given"),
    "no_privacy_any_more": (None, {"non_private": "", "noise_multiplier": None, "noise_key_file": None},
                            "cannot go on with --non-private"),
    "no_such_run": (None, {"output": "elsewhere"}, "it must be the folder of an earlier run, there is none"),
}  # fmt: skip


@pytest.mark.parametrize("spoil, changes, message", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_proven_is_refused(ended, spoil, changes, message):
    program = ended(10)
    if spoil:
        spoil(program.folder)
    before = everything_in(program.folder)
    done = program.run(resumed(KEYED, **changes))
    assert done.code == 2 and message in done.err and done.err.count("\n") == 1, done
    assert everything_in(program.folder) == before


BINDING = ("another_learning_rate", "another_optimizer", "another_freeze", "private_metrics_now_shown", "another_clip_norm",
           "another_clipping", "another_noise", "another_batch", "more_texts", "other_texts_under_the_same_key", "another_key",
           "another_model", "other_weights_to_start_from", "public_texts_now_shown")  # fmt: skip


@pytest.mark.parametrize("name", BINDING)
def test_what_binds_a_run_binds_it_before_its_first_checkpoint_too(ended, name):
    spoil, changes, message = REFUSED[name]
    program = ended(0, charged=2)
    if spoil:
        spoil(program.folder)
    before = everything_in(program.folder)
    done = program.run(resumed(KEYED, epsilon_limit="1e6", **changes))
    assert done.code == 2 and message in done.err and done.err.count("\n") == 1, done
    assert everything_in(program.folder) == before


def test_a_ledger_that_binds_nothing_is_not_continued(ended):
    """As versions before the binding wrote it."""
    program = ended(0, charged=2)
    path = program.folder / "run" / "ledger.jsonl"
    lines, previous = [json.loads(line) for line in path.read_text().splitlines()], "0" * 64
    del lines[0]["binding"]
    text = ""
    for line in lines:
        content = json.dumps({**line, "previous": previous}, separators=(",", ":"), sort_keys=True)
        previous = hashlib.sha256(content.encode()).hexdigest()
        text += content + "\n"
    path.write_text(text)
    done = program.run(resumed(KEYED, epsilon_limit="1e6"))
    assert done.code == 2 and "must say what binds the run: an older version began it" in done.err


def test_every_rank_hears_of_a_refusal(ended):
    program = ended(10)
    edit_ledger(lambda lines: lines[:-1])(program.folder)
    for rank in program.run_ranks(*[resumed(KEYED)] * 2):
        assert rank.code == 2 and "behind the checkpoint" in rank.err


FREE = {"microbatch": "2", "timeout": "33", "eval_every": "3", "checkpoint_every": "0", "learning_rate": "1e-3"}


@pytest.mark.parametrize("name", FREE)
def test_pace_and_spelling_may_change(ended, name):
    assert ended(15).run(resumed(KEYED, **{name: FREE[name]})).code == 0


def test_a_new_run_does_not_overwrite_one_that_could_go_on(ended):
    program = ended(10)
    before = everything_in(program.folder)
    assert program.run(arguments(KEYED)).code == 2
    assert everything_in(program.folder) == before


@pytest.mark.parametrize("words, message", [
    (arguments(PRIVATE, epsilon_limit="9"), "--epsilon-limit raises the budget"),
    (arguments(PRIVATE, keep_checkpoints="0"), "--keep-checkpoints must be >= 1"),
    (arguments(PRIVATE, checkpoint_every="-1"), "--checkpoint-every"),
    (arguments(PLAIN, epsilon_limit="9", resume=""), "--epsilon-limit raises the budget"),
])  # fmt: skip
def test_flags_that_make_no_sense(program, words, message):
    done = program.run(words)
    assert done.code == 2 and message in done.err
    assert not (program.folder / "run").exists()
