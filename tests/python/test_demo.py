"""`make finetune` without the C++ program: data, cache, flags, closing words. A stand-in plays the program."""

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ghostshard.texts.packed import read_packed
from ghostshard.texts.vocabulary import load_vocabulary

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "gpt2" / "demo"))
import demo as demo_module
from demo import _up, flags, main

FLAGS = {
    "values": ({"steps": 3, "learning-rate": 0.001}, ["--steps", "3", "--learning-rate", "0.001"]),
    "switches": ({"untied": True, "non-private": False, "delta": None}, ["--untied"]),
    "lists_repeat": ({"freeze": ["a*", "b"]}, ["--freeze", "a*", "--freeze", "b"]),
}


@pytest.mark.parametrize("values, expected", FLAGS.values(), ids=FLAGS.keys())
def test_settings_become_flags(values, expected):
    assert flags(values) == expected


@pytest.mark.parametrize("epsilon, shown", [(7.991, "8.00"), (8.0, "8.00"), (0.0001, "0.01"), (None, "infinity")])
def test_a_printed_epsilon_is_never_smaller_than_the_true_one(epsilon, shown):
    assert _up(epsilon) == shown
    assert epsilon is None or float(shown) >= epsilon or math.isclose(float(shown), epsilon)


# Rank 0 writes what the real program would, and a line per run into a log.
PROGRAM = r"""
for ((i = 1; i <= $#; i++)); do
  [ "${!i}" = --output ] && j=$((i + 1)) && output=${!j}
  [ "${!i}" = --generate-tokens ] && echo "tokens: 104,105" && exit 0
done
[ "$RANK" = 0 ] || exit 0
echo "$WORLD_SIZE $*" >> "${0%/*}/log"
mkdir -p "$output/model"
echo '{"model_type": "gpt2"}' > "$output/model/config.json"
echo '{"guarantee": {"epsilon": {"lower": 7.1, "estimate": 7.5, "upper": 7.913}, "delta": 1e-06}}' > "$output/privacy_report.json"
touch "$output/ledger.jsonl"
"""


@pytest.fixture
def demo(tmp_path, fake_binary, monkeypatch):
    """A small demo of 60 texts; returns a function that runs it and the folder it lies in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").write_text("\n%\n".join(f"text number {i} about cats" for i in range(60)))
    (tmp_path / "model.json").write_text(json.dumps({"vocab_size": 280, "n_positions": 32}))
    (tmp_path / "demo.json").write_text(json.dumps({
        "input": "texts", "format": "fortunes", "model_config": "model.json", "ranks": 2,
        "data": {"split_seed": 1, "public_units": 20, "eval_units": 10, "max_length": 32},
        "warm_start": {"steps": 2}, "private": {"target-epsilon": 8, "steps": 3},
        "sample": {"prompt": "", "max_new_tokens": 4},
    }))  # fmt: skip
    program = fake_binary(PROGRAM)

    def run() -> list[str]:
        log = program.parent / "log"
        log.unlink(missing_ok=True)
        assert main(["--config", "demo.json", "--cache", "cache", "--runs", "runs"]) == 0
        return log.read_text().splitlines()

    return run


def test_warm_start_runs_once_and_the_private_phase_each_time(demo, tmp_path, capfd):
    warm, private = demo()
    assert warm.startswith("2 --steps 2 --non-private --model-config model.json --data cache/data-")
    assert "public-train.safetensors" in warm and "private.safetensors" not in warm
    assert private.startswith("2 --target-epsilon 8 --steps 3 --public-note 20 of the 60 texts")
    assert "/private.safetensors" in private and "public-eval.safetensors" in private
    assert private.endswith("--output runs/finetune-1")
    shown = capfd.readouterr().out
    assert "epsilon <= 7.92 at delta = 1e-06" in shown
    assert "A text by the fine-tuned model:\n    " in shown
    assert "runs/finetune-1/privacy_report.json" in shown
    assert (tmp_path / "runs" / "finetune-1" / "model" / "tokenizer.json").is_file()

    (again,) = demo()
    assert again.endswith("--output runs/finetune-2")


def test_it_takes_the_recipe_and_finds_a_new_one_on_the_public_texts(demo, tmp_path, monkeypatch, capfd):
    settings = json.loads((tmp_path / "demo.json").read_text())
    tuning = {"target-epsilon": 8, "steps": 3, "try": ["learning-rate=1,2"]}
    (tmp_path / "demo.json").write_text(json.dumps({**settings, "recipe": "recipe.toml", "tune": tuning}))
    words = []

    def found(arguments):
        words.extend(arguments)
        folder = Path(arguments[arguments.index("--output") + 1])
        folder.mkdir(parents=True)
        (folder / "recipe.toml").write_text("learning-rate = 2\n")

    monkeypatch.setattr(demo_module, "find_recipe", found)
    assert main(["--config", "demo.json", "--cache", "cache", "--runs", "runs", "--tune"]) == 0
    assert (tmp_path / "recipe.toml").read_text() == "learning-rate = 2\n" and not (tmp_path / "runs").exists()
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given["--units"] == "30" and given["--data"].endswith("public-train.safetensors") and given["--try"] == "learning-rate=1,2"
    (private,) = demo()
    assert private.startswith("2 --config recipe.toml --public-note")


def test_the_parts_are_disjoint_and_the_vocabulary_fits_the_model(demo, tmp_path):
    demo()
    (folder,) = (tmp_path / "cache").glob("data-*")
    vocabulary = load_vocabulary(str(folder / "tokenizer"))
    assert vocabulary.size <= 280
    parts = {part: read_packed(folder / f"{part}.safetensors") for part in ("public-train", "public-eval", "private")}
    texts = {part: {vocabulary.decode(data.unit(i)) for i in range(data.units)} for part, data in parts.items()}
    assert {part: len(found) for part, found in texts.items()} == {"public-train": 20, "public-eval": 10, "private": 30}
    assert len(set.union(*texts.values())) == 60
    assert {part: data.metadata["declared"] for part, data in parts.items()} == {
        "public-train": "public", "public-eval": "public", "private": "private",
    }  # fmt: skip


def test_texts_that_are_one_to_the_model_are_in_one_part_alone(demo, tmp_path):
    """The cut takes away what sets two texts apart; the program refuses public texts that are private too."""
    long = "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3
    (tmp_path / "texts").write_text("\n%\n".join(f"{long}{i % 7} and {i}" if i % 3 else f"text {i}" for i in range(60)))
    demo()
    (folder,) = (tmp_path / "cache").glob("data-*")
    parts = [read_packed(folder / f"{part}.safetensors") for part in ("public-train", "public-eval", "private")]
    texts = [{tuple(data.unit(i)) for i in range(data.units)} for data in parts]
    assert not texts[0] & texts[1] and not texts[2] & (texts[0] | texts[1]) and all(texts)


CHANGES = {
    "other_texts": ("texts", "cats", "dogs", 2),
    "another_split": ("demo.json", '"split_seed": 1', '"split_seed": 2', 2),
    "another_warm_start": ("demo.json", '"steps": 2', '"steps": 4', 2),
    "another_budget": ("demo.json", '"target-epsilon": 8', '"target-epsilon": 4', 1),
}


@pytest.mark.parametrize("file, old, new, runs", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_renews_exactly_what_depends_on_it(demo, tmp_path, file, old, new, runs):
    assert len(demo()) == 2
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    assert len(demo()) == runs


def test_a_failed_warm_start_leaves_nothing_in_the_cache(demo, tmp_path, fake_binary, capfd):
    fake_binary("exit 1")
    assert main(["--config", "demo.json", "--cache", "cache", "--runs", "runs"]) == 1
    assert "the warm start ended with status" in capfd.readouterr().err
    assert [path.name[:5] for path in (tmp_path / "cache").iterdir()] == ["data-"]


@pytest.mark.parametrize("phase", ["warm start", "private phase"])
def test_sigterm_reaches_the_ranks_and_the_demo_ends_as_they_do(demo, repository, tmp_path, fake_binary, phase):
    """With 3: stopped with a checkpoint. A rank that heard nothing would go on alone."""
    if phase == "private phase":
        demo()
    script = 'trap "touch ${0%/*}/heard-$RANK; exit 3" TERM; touch "${0%/*}/up-$RANK"; for ((i = 0; i < 300; i++)); do sleep 0.1; done'
    folder = fake_binary(script).parent
    program = repository / "examples" / "gpt2" / "demo" / "demo.py"
    process = subprocess.Popen([sys.executable, program, "--config", "demo.json", "--cache", "cache", "--runs", "runs"], cwd=tmp_path)
    deadline = time.monotonic() + 60
    while len(list(folder.glob("up-*"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 3
    assert len(list(folder.glob("heard-*"))) == 2
    left = [path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith("data-")]
    assert (left == []) if phase == "warm start" else (len(left) == 1 and "." not in left[0])


def test_the_warm_start_names_the_place_where_it_stays(demo, tmp_path):
    warm, _ = demo()
    output = warm.split("--output ")[1].split()[0]
    assert output.startswith("cache/warm-start-") and "." not in output and (tmp_path / output / "model").is_dir()


def test_a_warm_start_that_was_killed_is_made_anew(demo, tmp_path):
    assert len(demo()) == 2
    (folder,) = (tmp_path / "cache").glob("warm-start-*")
    (tmp_path / "cache" / f"{folder.name}.unfinished").touch()  # as SIGKILL leaves it
    (folder / "half").touch()
    assert len(demo()) == 2 and not (folder / "half").exists()
    assert len(demo()) == 1


def test_only_the_number_of_private_texts_is_printed(demo, capfd):
    demo()
    captured = capfd.readouterr()
    assert "30 private texts" in captured.err
    assert "cut to" not in captured.err + captured.out


def test_the_shipped_settings_fit_together(repository):
    folder = repository / "examples" / "gpt2" / "demo"
    config = json.loads((folder / "demo.json").read_text())
    model = json.loads((folder / config["model_config"]).read_text())
    assert model["n_embd"] % model["n_head"] == 0
    assert config["data"]["max_length"] <= model["n_positions"] + 1
    assert config["private"]["target-epsilon"] == config["tune"]["target-epsilon"] == 8 and config["ranks"] == 2
    assert model["eos_token_id"] == model["bos_token_id"] == model["vocab_size"] - 1
