"""How the program starts: variables of the launcher, delta beside the number of texts, files of options, help, what it may overwrite."""

import json
import os
import stat

import pytest
from program import PLAIN, PRIVATE, UNITS, arguments, everything_in, metrics

PLACES = {
    "rank_outside": ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK must be an integer from 0 to 1, got '2'"),
    "size_no_number": ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE must be an integer from 1 to"),
    "no_port": ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "MASTER_PORT must be an integer"),
}


@pytest.mark.parametrize("environment, message", PLACES.values(), ids=PLACES.keys())
def test_a_broken_launch_names_the_variable(program, monkeypatch, environment, message):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    done = program.start(arguments(PRIVATE), environment).wait(20)
    assert message in done.err and done.err.count("\n") == 1
    assert done.code == 2
    assert not (program.folder / "run").exists()


def test_a_delta_not_below_one_over_n_warns_and_runs(program):
    at_n = str(1 / UNITS)
    done = program.run(arguments(PRIVATE, delta=at_n))
    assert done.code == 0
    assert "warning: delta should be well below 1/n" in done.err and "at 0.0416667" in done.err
    report = json.loads((program.folder / "run" / "privacy_report.json").read_text())
    assert report["guarantee"]["delta"] == float(at_n)
    assert report["guarantee"]["delta_below_one_over_units"] is False


def test_a_delta_below_one_over_n_does_not_warn(program):
    done = program.run(arguments(PRIVATE, delta="0.01"))
    assert done.code == 0 and "warning" not in done.err


def test_a_config_file_takes_the_flags_names(program):
    """The same run by flags and by file: without privacy it repeats to the bit."""
    by_flags = arguments(PLAIN, eval_data="public.safetensors", freeze="transformer.w*", optimizer="sgd", momentum="0.5")
    assert program.run(by_flags).code == 0
    (program.folder / "run.toml").write_text(
        "model = 'model'\ndata = 'data.safetensors'\neval-data = 'public.safetensors'\noutput = 'other'\n"
        "non-private = true\nexpected-batch = 4\nsteps = 3\nfreeze = ['transformer.w*']\noptimizer = 'sgd'\nmomentum = 0.5\n"
    )
    assert program.run(["--config", "run.toml"]).code == 0
    one, other = program.folder / "run", program.folder / "other"
    assert (one / "model" / "model.safetensors").read_bytes() == (other / "model" / "model.safetensors").read_bytes()
    assert [line["eval_loss"] for line in metrics(one) if "eval_loss" in line] == [
        line["eval_loss"] for line in metrics(other) if "eval_loss" in line
    ]


def test_a_flag_wins_over_the_config_file(program):
    (program.folder / "run.toml").write_text("steps = 7\n")
    assert program.run(arguments(PRIVATE, config="run.toml")).code == 0
    assert metrics(program.folder / "run")[-1]["step"] == 3


def test_an_empty_output_folder_may_exist(program):
    (program.folder / "run").mkdir()
    assert program.run(arguments(PRIVATE)).code == 0


def test_a_finished_run_is_never_overwritten(program):
    assert program.run(arguments(PRIVATE)).code == 0
    before = everything_in(program.folder)
    assert program.run(arguments(PRIVATE)).code == 2
    assert everything_in(program.folder) == before


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_answer_on_the_standard_output(program, flag):
    done = program.run([flag])
    assert (done.code, done.err) == (0, "")
    assert "ghostshard-finetune-gpt2" in done.out


def test_what_is_written_has_ordinary_modes(program):
    """The model is meant to be shared, unlike the key."""
    mask = os.umask(0o022)
    try:
        assert program.run(arguments(PRIVATE)).code == 0
    finally:
        os.umask(mask)
    for name in ("privacy_report.json", "ledger.jsonl", "metrics.jsonl", "model/model.safetensors", "model/config.json"):
        assert stat.S_IMODE((program.folder / "run" / name).stat().st_mode) == 0o644
