"""While a run goes: evaluation and samples on a schedule, and `ghostshard metrics` for CSV and TensorBoard."""

import csv
import io
import json
import math

import pytest
from program import PRIVATE, VOCABULARY, arguments, json_lines, report

SAMPLED = {**PRIVATE, "--steps": "4", "--eval-data": "public.safetensors", "--eval-every": "2", "--sample-tokens": "3,1",
           "--sample-every": "3", "--max-new-tokens": "5"}  # fmt: skip


@pytest.fixture
def run(program):
    done = program.run(arguments(SAMPLED))
    assert done.code == 0, done.err
    return program.folder / "run"


def test_samples_and_evaluation_keep_their_schedules(run):
    samples = json_lines(run / "samples.jsonl")
    assert [line["step"] for line in samples] == [0, 3, 4]
    assert all(line["prompt"] == [3, 1] and len(line["tokens"]) <= 5 for line in samples)
    assert all(0 <= token < VOCABULARY for line in samples for token in line["tokens"])
    assert [line["step"] for line in json_lines(run / "metrics.jsonl") if "eval_loss" in line] == [0, 2, 4]
    assert any("prompt declared public" in text for text in report(run)["released_outputs"]["released"])


def test_two_ranks_sample_as_one(program, run):
    words = arguments(SAMPLED, output="two")
    assert [rank.code for rank in program.run_ranks(words, words)] == [0, 0]
    one, two = (json_lines(folder / "samples.jsonl") for folder in (run, program.folder / "two"))
    assert one[0] == two[0], "before the first step the weights are the same"


def test_a_resumed_run_has_each_sample_once(program):
    assert program.run(arguments(SAMPLED, checkpoint_every="2", steps="4")).code == 0
    run = program.folder / "run"
    for file in (run / "privacy_report.json", run / "model" / "model.safetensors"):
        file.unlink()
    assert program.run(arguments(SAMPLED, checkpoint_every="2", steps="4", resume="")).code == 0
    assert [line["step"] for line in json_lines(run / "samples.jsonl")] == [0, 3, 4]


BAD = {
    "prompt_outside_the_vocabulary": ({"sample_tokens": str(VOCABULARY)}, "token ids must lie in [0, 32)"),
    "prompt_of_letters": ({"sample_tokens": "a"}, "token ids must be whole numbers"),
    "schedule_alone": ({"sample_tokens": None}, "--sample-every needs --sample-tokens"),
}


@pytest.mark.parametrize("changes, sentence", BAD.values(), ids=BAD.keys())
def test_bad_samples_are_a_sentence(program, changes, sentence):
    done = program.run(arguments(SAMPLED, **changes))
    assert done.code == 2 and sentence in done.err and not (program.folder / "run").exists()


# ---------------------------------------------------------------------------------------------------------------------
# ghostshard metrics


@pytest.fixture
def written(tmp_path):
    """A run's folder with numbers that are not public among the others, and a last line that is being written."""
    lines = [{"step": step, "epsilon": step / 2, "learning_rate": 0.5, "private_loss": 9.5, "private_batch": 7, "seconds": 3} for step in range(4)]
    lines[2] |= {"eval_loss": 2.5, "eval_standard_error": 0.25}
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4, "eps'
    (tmp_path / "metrics.jsonl").write_text(text)
    (tmp_path / "samples.jsonl").write_text('{"step": 2, "prompt": [464], "tokens": [3290]}\n')
    return tmp_path


def test_csv_holds_public_numbers_alone(run_module, written):
    done = run_module("ghostshard.launcher", "metrics", written, "--csv", written / "out.csv")
    assert done.code == 0, done.err
    text = (written / "out.csv").read_text()
    assert "9.5" not in text and "private" not in text and "seconds" not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["step"] for row in rows] == ["0", "1", "2", "3"]
    assert rows[2] == {"step": "2", "epsilon": "1.0", "learning_rate": "0.5", "eval_loss": "2.5", "eval_standard_error": "0.25"}
    assert run_module("ghostshard.metrics", written).out.splitlines() == text.splitlines()


def test_tensorboard_shows_numbers_and_texts(run_module, written):
    done = run_module("ghostshard.metrics", written, "--tensorboard", written / "board", "--tokenizer", "gpt2")
    assert done.code == 0, done.err
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(written / "board"))
    board.Reload()
    assert set(board.Tags()["scalars"]) == {"epsilon", "learning_rate", "eval_loss", "eval_standard_error"}
    assert [(at.step, at.value) for at in board.Scalars("epsilon")] == [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5)]
    (sample,) = board.Tensors("sample/text_summary")
    assert sample.step == 2 and sample.tensor_proto.string_val == [b"The dog"]
    again = run_module("ghostshard.metrics", written, "--tensorboard", written / "board")
    assert again.code == 2 and "new or empty folder" in again.err


def test_following_ends_with_the_run(run_module, written):
    (written / "privacy_report.json").write_text("{}")
    done = run_module("ghostshard.metrics", written, "--csv", written / "out.csv", "--follow")
    assert done.code == 0 and math.isfinite(float((written / "out.csv").read_text().splitlines()[1].split(",")[1]))


def test_a_folder_that_is_none_is_a_sentence(run_module, tmp_path):
    done = run_module("ghostshard.metrics", tmp_path / "nowhere")
    assert done.code == 2 and "RUN must be the folder of a run" in done.err and done.err.count("\n") == 1


def test_the_launcher_turns_a_prompt_into_tokens(monkeypatch):
    from ghostshard import launcher
    from ghostshard.errors import UserError

    words = ["--model", "m", "--sample-prompt=The dog", "--tokenizer", "gpt2", "--steps", "3"]
    assert launcher.with_sample_tokens(words) == ["--model", "m", "--steps", "3", "--sample-tokens", "464,3290"]
    assert launcher.with_sample_tokens(["--steps", "3"]) == ["--steps", "3"]
    with pytest.raises(UserError, match="go together"):
        launcher.with_sample_tokens(["--sample-prompt", "The dog"])
