"""`ghostshard tune`: what it tries, that it goes on where it stopped, that it reads public texts alone; with a stand-in for the
program, and once with the program itself."""

import json
import os
import subprocess
import sys
import tomllib

import pytest
from program import CONFIG, LENGTHS, arguments, report, texts, wait_until, write_data, write_model

from ghostshard import tune
from ghostshard.errors import UserError

# Notes its flags; the loss is least at a learning rate of 0.002, and a little lower with bands.
STAND_IN = r"""
echo "$*" >> "$NOTES"
while [ $# -gt 0 ]; do
  case "$1" in --output) out=$2;; --learning-rate) rate=$2;; --noise-bands) bands=$2;; --steps) steps=$2;; esac
  shift
done
runs=$(wc -l < "$NOTES")
[ "$runs" = "${STOP_AT:-0}" ] && exit 3
mkdir -p "$out"
awk -v r="$rate" -v b="${bands:-1}" -v s="$steps" 'BEGIN {
  d = log(r / 0.002); printf "{\"step\": %d, \"eval_loss\": %.6f, \"eval_standard_error\": 0.01}\n", s, 3 + d * d - 0.01 * b
}' > "$out/metrics.jsonl"
"""


@pytest.fixture
def tuning(tmp_path, fake_binary, monkeypatch):
    """tuning(*words, **changed flags): runs the command; .notes() are the program's command lines."""
    write_data(tmp_path / "public.safetensors", texts([5] * 40), declared="public")
    write_data(tmp_path / "eval.safetensors", texts([6] * 4, seed=2), declared="public")
    notes = tmp_path / "notes"
    fake_binary(STAND_IN)
    monkeypatch.setenv("NOTES", str(notes))
    monkeypatch.chdir(tmp_path)
    given = {
        "--data": "public.safetensors", "--eval-data": "eval.safetensors", "--output": "tuned", "--units": "100",
        "--target-epsilon": "8", "--expected-batch": "10", "--steps": "12", "--model": "m",
    }  # fmt: skip

    def run(*words, **changes):
        tune.main([*arguments(given, **changes), *words])

    run.notes = lambda: [dict(zip(line.split()[::2], line.split()[1::2], strict=True)) for line in notes.read_text().splitlines()]
    run.folder = tmp_path / "tuned"
    return run


RATES = ["--try", "learning-rate=0.001,0.002,0.004,0.016"]


def test_the_better_half_goes_on_and_the_best_is_in_the_recipe(tuning):
    tuning(*RATES)
    runs = tuning.notes()
    assert [(run["--steps"], run["--learning-rate"]) for run in runs] == [
        ("3", "0.001"), ("3", "0.002"), ("3", "0.004"), ("3", "0.016"), ("6", "0.002"), ("6", "0.001"), ("12", "0.002"),
    ]  # fmt: skip
    recipe = tomllib.loads((tuning.folder / "recipe.toml").read_text())
    assert recipe["learning-rate"] == 0.002 and recipe["steps"] == 12 and recipe["expected-batch"] == 10
    assert recipe["target-epsilon"] == 8 and recipe["delta"] == 1e-6
    assert "private texts were not read" in recipe["tuning-note"] and "model" not in recipe and "data" not in recipe
    tried = [line for line in (tuning.folder / "recipe.toml").read_text().splitlines() if "learning-rate 0" in line]
    assert len(tried) == 7 and "learning-rate 0.002" in tried[0] and not list(tuning.folder.glob("trial-*[0-9]"))


def test_trials_have_the_private_runs_noise_batch_and_delta(tuning, account):
    tuning("--try", "noise-bands=1,4", "--learning-rate", "0.002", "--warmup-steps", "4")
    expected = {}
    for bands, steps in ((1, 12), (4, 3)):
        words = ("--epsilon", 8, "--delta", 1e-6, "--sampling-rate", f"{10 * bands}/100", "--steps", steps, "--json")
        expected[str(bands)] = json.loads(account("noise", *words).stdout)["noise_multiplier"]
    assert expected["4"] > expected["1"]
    for run in tuning.notes():
        assert float(run["--noise-multiplier"]) == expected[run["--noise-bands"]], "the whole run's, however few steps a trial has"
        assert run["--expected-batch"] == "10" and float(run["--delta"]) == 1e-6
        assert int(run["--warmup-steps"]) == {"3": 1, "4": 1, "6": 2, "12": 4}[run["--steps"]]
    assert tomllib.loads((tuning.folder / "recipe.toml").read_text())["noise-bands"] == 4


def test_a_noise_chain_has_the_noise_of_as_many_bands(tuning, account):
    tuning("--try", "noise-chain=1,4", "--learning-rate", "0.002", "--rungs", "1")
    words = ("--epsilon", 8, "--delta", 1e-6, "--sampling-rate", "40/100", "--steps", 3, "--json")
    expected = json.loads(account("noise", *words).stdout)["noise_multiplier"]
    assert [float(run["--noise-multiplier"]) for run in tuning.notes() if run["--noise-chain"] == "4"] == [expected]


def test_a_stopped_tuning_goes_on_where_it_was(tuning, monkeypatch):
    monkeypatch.setenv("STOP_AT", "3")
    with pytest.raises(KeyboardInterrupt):
        tuning(*RATES)
    with (tuning.folder / "trials.jsonl").open("a") as stream:
        stream.write('{"trial": 2, "ru')  # as a crash may leave it
    tuning(*RATES)
    assert [run["--learning-rate"] for run in tuning.notes()] == ["0.001", "0.002", "0.004", "0.004", "0.016", "0.002", "0.001", "0.002"]
    assert len((tuning.folder / "trials.jsonl").read_text().splitlines()) == 7
    with pytest.raises(UserError, match="trials of another tuning"):
        tuning(*RATES, target_epsilon="3")


@pytest.mark.parametrize("declared", ["private", None])
@pytest.mark.parametrize("flag", ["data", "eval_data"])
def test_texts_that_are_not_declared_public_are_refused_before_a_trial_runs(tuning, tmp_path, declared, flag):
    write_data(tmp_path / "secret.safetensors", texts([5] * 40), declared=declared)
    with pytest.raises(UserError, match="secret.safetensors: tuning reads only texts declared public"):
        tuning(*RATES, **{flag: "secret.safetensors"})
    assert not (tmp_path / "notes").exists() and not tuning.folder.exists()


@pytest.mark.parametrize(("words", "changes", "message"), [
    (["--try", "lr=1,2"], {}, "--try lr: it must be one of"),
    (["--try", "learning-rate"], {}, "must be FLAG=V1,V2"),
    (["--try", "learning-rate=1,1"], {}, "with different values"),
    ([*RATES, "--learning-rate", "1"], {}, "given twice"),
    ([*RATES, "--noise-multiplier", "1"], {}, "follows from --target-epsilon"),
    ([*RATES, "--resume"], {}, "not for tuning"),
    ([*RATES, "--tuning-note", "mine"], {}, "the recipe says itself"),
    ([*RATES, "--version"], {}, "it trains nothing"),
    ([*RATES, "--sample-prompt", "Once", "--tokenizer", "gpt2"], {}, "a recipe cannot hold it"),
    ([*RATES, "--public-note", "two\nlines"], {}, "a recipe cannot; give it to the private run"),
    ([*RATES, "--noise-blt", "2"], {}, "--noise-blt is not for tuning"),
    ([*RATES, "--max-batch", "10"], {}, "--max-batch must be auto for tuning, got 10"),
    ([*RATES, "--budget-register", "spent.jsonl"], {}, "trials spend nothing"),
    (RATES, {"steps": "many"}, "--steps must be a whole number >= 1, got many"),
    (RATES, {"steps": None}, "--steps must be a whole number >= 1, got none"),
    (RATES, {"expected_batch": "41"}, "at most the number of public and of private units (40 and 100)"),
    (["--try", "noise-bands=5,6"], {}, "it is more in every trial"),
    (RATES, {"target_epsilon": "0"}, "--target-epsilon must be > 0"),
    (RATES, {"data": "nothing.safetensors"}, "nothing.safetensors must be a file written by"),
    (["word"], {}, "flags begin with --, got 'word'"),
])  # fmt: skip
def test_mistakes_are_named(tuning, words, changes, message):
    with pytest.raises(UserError) as caught:
        tuning(*words, **changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(("flag", "name"), [
    ("--model", "m/model.safetensors"), ("--model-config", "shape.json"), ("--optimizer-groups", "groups.toml"),
])  # fmt: skip
def test_trials_that_began_with_other_files_are_not_mixed(tuning, monkeypatch, tmp_path, flag, name):
    (tmp_path / "m").mkdir()
    (tmp_path / name).write_text("before")
    words = [*RATES, *([] if flag == "--model" else [flag, name])]
    monkeypatch.setenv("STOP_AT", "3")
    with pytest.raises(KeyboardInterrupt):
        tuning(*words)
    (tmp_path / name).write_text("after")
    with pytest.raises(UserError, match="other flags, texts or starting weights"):
        tuning(*words)


def test_two_tunings_do_not_share_a_folder(tuning, fake_binary, tmp_path):
    tuning(*RATES, "--rungs", "1")
    (tuning.folder / "trials.jsonl").unlink()
    with tune._alone_in(tuning.folder), pytest.raises(UserError, match="another tuning is at work in tuned"):
        tuning(*RATES, "--rungs", "1")
    tuning(*RATES, "--rungs", "1")


def test_combinations_that_the_data_do_not_allow_are_left_out(tuning, capsys):
    tuning("--try", "noise-bands=1,4,8", "--learning-rate", "0.002", "--rungs", "1")
    assert {run["--noise-bands"] for run in tuning.notes()} == {"1", "4"}
    assert "1 combinations are left out" in capsys.readouterr().err


def test_the_programs_own_mistakes_end_the_tuning(tuning, fake_binary):
    fake_binary('echo "error: --learning-rate must be finite" >&2; exit 2')
    with pytest.raises(UserError, match="trial learning-rate 0.001: --learning-rate must be finite"):
        tuning(*RATES)


def test_a_recipe_is_what_the_program_takes(tmp_path, program, monkeypatch):
    """A real trial on public texts, and a private run by its recipe."""
    monkeypatch.setenv("GHOSTSHARD_BINARY", str(program.binary))
    monkeypatch.chdir(program.folder)
    write_model(program.folder / "model", CONFIG)
    write_data(program.folder / "open.safetensors", texts(LENGTHS, seed=4), declared="public")
    tune.main([
        "--data", "open.safetensors", "--eval-data", "public.safetensors", "--output", "tuned", "--units", "24", "--model", "model",
        "--target-epsilon", "20", "--delta", "1e-5", "--expected-batch", "6", "--steps", "4", "--rungs", "1", "--freeze", "transformer.wpe*",
        "--public-note", 'the "Übersicht", it\'s [1, 2]', "--try", "learning-rate=0.01", "--try", "noise-bands=2",
    ])  # fmt: skip
    done = program.run(["--config", "tuned/recipe.toml", "--model", "model", "--data", "data.safetensors", "--output", "run"])
    assert done.code == 0, done.err
    made = report(program.folder / "run")
    assert made["sampler"]["executed"] == "cyclic-poisson" and made["population_and_steps"]["groups"]["rounds"] == [2, 2]
    assert made["guarantee"]["epsilon"]["upper"] <= 20 and "private texts were not read" in made["tuning"]["how"]
    assert 'the "Übersicht", it\'s [1, 2]' in json.dumps(made, ensure_ascii=False).replace('\\"', '"')


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_tuning_that_is_killed_takes_its_trial_with_it(tuning, fake_binary, tmp_path, ranks):
    """It would train on beside the same command started again, into the same folder."""
    fake_binary('echo $$ > "$NOTES-${RANK:-0}.new"; mv "$NOTES-${RANK:-0}.new" "$NOTES-${RANK:-0}"; exec sleep 600')
    words = "tune --data public.safetensors --eval-data eval.safetensors --output tuned --units 100 --target-epsilon 8".split()
    words += ["--expected-batch", "10", "--steps", "12", "--model", "m", "-n", ranks, *RATES]
    process = subprocess.Popen([sys.executable, "-m", "ghostshard.launcher", *words], stderr=subprocess.DEVNULL)
    notes = [tmp_path / f"notes-{rank}" for rank in range(int(ranks))]
    wait_until(lambda: all(note.exists() for note in notes), 60)
    process.kill()
    process.wait()
    wait_until(lambda: not any(os.path.exists(f"/proc/{note.read_text().strip()}") for note in notes), 60)
