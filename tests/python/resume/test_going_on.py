"""A run that is stopped or has lost steps goes on from its checkpoint; the ledger holds at least what was used."""

import hashlib
import shutil
import signal
from pathlib import Path

import numpy
import pytest
from program import PLAIN, PRIVATE, UNITS, Program, arguments, everything_in, metrics, report, same_weights, wait_until, weights, write_key  # fmt: skip
from resumable import KEY, KEYED, QUIET, STEPS, as_if_ended, checkpoints, ledger_lines, releases, resumed, run_all, steps_shown


def test_checkpoints_come_every_k_steps_and_say_where_the_ledger_stood(undisturbed):
    run = undisturbed / "run"
    found = checkpoints(run)
    assert list(found) == [5, 10, 15, 20]
    hashes = [hashlib.sha256(line).hexdigest() for line in (run / "ledger.jsonl").read_bytes().split(b"\n")]
    for step, manifest in found.items():
        assert manifest["about"]["ledger"] == {"header_hash": hashes[0], "head": hashes[step], "releases": step}


def test_only_the_newest_are_kept(keyed):
    assert keyed.run(arguments(KEYED, keep_checkpoints="2")).code == 0
    assert list(checkpoints(keyed.folder / "run")) == [15, 20]


def test_a_short_run_has_one_of_its_end(program):
    """All its steps would be lost if it ended before its model is saved."""
    assert program.run(arguments(PRIVATE)).code == 0
    (step,) = checkpoints(program.folder / "run")
    run = program.folder / "run"
    model = weights(run)
    (run / "model" / "model.safetensors").unlink()
    done = program.run(resumed(PRIVATE))
    assert done.code == 0, done.err
    assert all(numpy.array_equal(model[name], found) for name, found in weights(run).items())
    assert len(releases(run)) == step


def test_neither_key_nor_data_nor_a_plain_hash_of_them_is_in_a_checkpoint(undisturbed):
    data = (undisturbed / "data.safetensors").read_bytes()
    secrets = [KEY, KEY.hex().encode(), data[-40:], *(hashlib.sha256(part).hexdigest().encode() for part in (data, KEY))]
    for content in everything_in(undisturbed / "run").values():
        assert content is None or not any(secret in content for secret in secrets)


def run_ids(run: Path) -> list[str]:
    """Of the run and of each session that went on with it."""
    return [line["run_id"] for line in ledger_lines(run) if line["type"] in ("header", "epoch")]


@pytest.mark.parametrize("step", [5, 15])
def test_a_resumed_run_goes_on_under_a_run_id_of_its_own(ended, undisturbed, step):
    """Also with the key: two copies of this folder must never draw the same noise."""
    program = ended(step)
    done = program.run(resumed(KEYED))
    assert done.code == 0, done.err
    assert f"Resuming after step {step} from run/checkpoints/step-{step:012}" in done.err
    assert "From here on sampling and noise follow from a new run id (epoch 1 in the ledger)" in done.err
    run, other = program.folder / "run", undisturbed / "run"
    assert run_ids(run)[:1] == run_ids(other) and len(set(run_ids(run))) == 2
    assert releases(run) == releases(other)
    (epoch,) = [line for line in ledger_lines(run) if line["type"] == "epoch"]
    assert epoch["key"]["origin"] == "key file" and epoch["step"] == step
    assert metrics(run)[: step + 1] == metrics(other)[: step + 1]
    assert [line["epsilon"] for line in metrics(run)] == [line["epsilon"] for line in metrics(other)]
    assert report(run)["guarantee"] == report(other)["guarantee"]
    assert report(run)["provenance"]["resumed"] == f"after step {step} from this run's own checkpoint"
    first, last = (metrics(run)[i]["eval_loss"] for i in (0, -1))
    assert f"Public evaluation loss: {first:.4f} before, {last:.4f} after" in done.out
    a, b = weights(run), weights(other)
    assert all((a[name] != b[name]).mean() > 0.9 for name in a)


def test_of_a_copied_folder_each_copy_draws_noise_of_its_own(program):
    """Resumed without a checkpoint under one key file: the difference of what they release is noise, not that of sums."""
    write_key(program.folder)
    sigma, steps = 5.0, 2
    flags = {**PRIVATE, "--noise-multiplier": str(sigma), "--expected-batch": str(UNITS), "--optimizer": "sgd",
             "--learning-rate": "1", "--steps": str(steps), "--noise-key-file": "key"}  # fmt: skip
    assert program.run(arguments(flags)).code == 0
    as_if_ended(program.folder, 0, 1)
    copies = [program.folder / name for name in ("run", "copy")]
    shutil.copytree(*copies)
    for copy in copies:
        assert program.run(resumed(flags, output=copy.name, epsilon_limit="1e6")).code == 0
        assert releases(copy) == [(0, 0), (0, 1), (1, 0)]
    assert run_ids(copies[0])[0] == run_ids(copies[1])[0] and run_ids(copies[0])[1] != run_ids(copies[1])[1]
    a, b = map(weights, copies)
    apart = numpy.concatenate([(a[name] - b[name]).ravel() for name in a])
    # Two releases each, divided by the expected batch; some 7,000 values: 4 % is five standard errors.
    assert apart.std() == pytest.approx((2 * steps) ** 0.5 * sigma / UNITS, rel=0.04)


def quiet_difference(one: Path, other: Path) -> float:
    a, b = weights(one), weights(other)
    return max(float(numpy.abs(a[name] - b[name]).max()) for name in a)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_goes_on_from_the_very_state_at_which_it_stopped(keyed, ranks):
    flags = {**KEYED, **QUIET, "--eval-data": None, "--keep-checkpoints": "9"}
    assert keyed.run(arguments(flags)).code == 0
    shutil.copytree(keyed.folder / "run", keyed.folder / "straight")
    as_if_ended(keyed.folder, 10)
    assert run_all(keyed, ranks, resumed(flags)).code == 0
    run = keyed.folder / "run"
    assert checkpoints(run)[20]["world_size"] == ranks and checkpoints(run)[10]["world_size"] == 1
    # float32 sums in another order, and noise of 1e-9 C: far below what a momentum lost (0.05 after one step) would move.
    assert quiet_difference(run, keyed.folder / "straight") < 1e-5


@pytest.mark.parametrize("ranks", [1, 2])
def test_sigterm_ends_in_a_checkpoint_from_which_the_run_goes_on(keyed, ranks):
    """Two futures of one beginning: one goes straight to the end, the other is stopped once more."""
    flags = {**KEYED, "--steps": "100", "--checkpoint-every": "1000", "--eval-data": None}
    run, other = keyed.folder / "run", keyed.folder / "other"

    def stop_after(folder: Path, steps: int, words: list[str]) -> int:
        started = keyed.start_ranks(*[words] * ranks) if ranks > 1 else [keyed.start(words)]
        wait_until(lambda: steps_shown(folder) >= steps)
        started[-1].process.send_signal(signal.SIGTERM)
        done = [rank.wait(30) for rank in started]
        assert [rank.code for rank in done] == [3] * ranks, done
        newest = max(checkpoints(folder))
        assert f"Stopped after step {newest} of 100" in done[0].out and "--resume goes on." in done[0].out
        assert len(releases(folder)) == newest == steps_shown(folder) < 100
        assert not (folder / "model").exists()
        return newest

    first = stop_after(run, 5, arguments(flags))
    shutil.copytree(run, other)
    assert stop_after(other, first + 5, resumed(flags, output="other")) > first
    for folder in (run, other):
        assert run_all(keyed, ranks, resumed(flags, output=folder.name)).code == 0
        assert releases(folder) == [(step, 0) for step in range(100)]
    assert (len(set(run_ids(run))), len(set(run_ids(other)))) == (2, 3)
    assert not same_weights(run, other)


def test_a_finished_run_says_that_it_is_done(undisturbed, binary, tmp_path):
    work = tmp_path / "whole"
    shutil.copytree(undisturbed, work)
    before = everything_in(work)
    done = Program(binary, work).run(resumed(KEYED))
    assert done.code == 0 and "This run is done" in done.out
    assert everything_in(work) == before


def test_a_run_that_lost_only_its_outputs_writes_them_again(ended, undisturbed):
    program = ended(20)
    assert program.run(resumed(KEYED)).code == 0
    assert same_weights(program.folder / "run", undisturbed / "run")
    assert len(releases(program.folder / "run")) == STEPS


def test_a_run_without_privacy_goes_on_to_the_bit(program):
    flags = {**PLAIN, "--steps": "12", "--checkpoint-every": "4", "--keep-checkpoints": "9"}
    assert program.run(arguments(flags)).code == 0
    run, other = program.folder / "run", program.folder / "other"
    shutil.copytree(run, other)
    for step in (8, 12):
        shutil.rmtree(other / "checkpoints" / f"step-{step:012}")
    shutil.rmtree(other / "model")
    assert program.run(resumed(flags, output="other")).code == 0
    assert same_weights(run, other)
    assert [line["step"] for line in metrics(other)] == list(range(13))


def as_if_killed_before_its_model(folder: Path) -> None:
    """After the report."""
    (folder / "run" / "model" / "model.safetensors").unlink()


def test_a_run_without_model_and_checkpoint_is_redone_and_charged_again(keyed):
    flags = {**KEYED, "--checkpoint-every": "0"}
    assert keyed.run(arguments(flags)).code == 0
    as_if_killed_before_its_model(keyed.folder)
    done = keyed.run(resumed(flags))
    assert done.code == 0, done.err
    assert f"{STEPS} step(s) after it were charged, but their results are lost" in done.err
    run = keyed.folder / "run"
    assert len(releases(run)) == 2 * STEPS
    facts = report(run)["provenance"]
    assert facts["weights_after"] != facts["weights_before"]


TARGETED = {**KEYED, "--noise-multiplier": None, "--target-epsilon": "8"}


def test_a_run_that_cannot_be_redone_within_its_promise_is_refused(keyed):
    """Nothing is written: the weights at hand are those before the first step."""
    flags = {**TARGETED, "--checkpoint-every": "0"}
    assert keyed.run(arguments(flags)).code == 0
    as_if_killed_before_its_model(keyed.folder)
    before = everything_in(keyed.folder / "run")
    done = keyed.run(resumed(flags))
    assert done.code == 2 and "neither its model nor a checkpoint is there" in done.err, done.err
    assert everything_in(keyed.folder / "run") == before


def test_lost_steps_are_new_attempts_charged_again_and_the_run_ends_within_its_promise(keyed):
    assert keyed.run(arguments(TARGETED)).code == 0
    promised = report(keyed.folder / "run")["guarantee"]["epsilon"]
    run = as_if_ended(keyed.folder, 10, charged=14)
    done = keyed.run(resumed(TARGETED))
    assert done.code == 0, done.err
    assert "4 step(s) after it were charged, but their results are lost" in done.err
    assert "(promised: 8.0000)" in done.err and "the run will end after step 16 of 20" in done.err
    again = [(10, 1), (11, 1), (12, 1), (13, 1), (14, 0), (15, 0)]
    assert releases(run) == [(step, 0) for step in range(14)] + again
    said = report(run)
    assert said["guarantee"]["epsilon"] == promised
    steps = said["population_and_steps"]
    assert (steps["steps_executed"], steps["releases_charged"], steps["releases_of_later_attempts"]) == (16, 20, 4)
    assert "ended_early" in steps and "Ended after step 16 of 20" in done.out
    assert metrics(run)[-1]["step"] == 16 and "eval_loss" in metrics(run)[-1]
    # It is done until the promise is raised.
    assert "This run is done" in keyed.run(resumed(TARGETED)).out
    assert keyed.run(resumed(TARGETED, epsilon_limit="50")).code == 0
    assert releases(run)[20:] == [(step, 0) for step in range(16, 20)]
    assert report(run)["guarantee"]["epsilon"]["upper"] > said["guarantee"]["epsilon"]["upper"]
    assert report(run)["population_and_steps"]["steps_executed"] == 20


@pytest.mark.parametrize("kind", [{}, {"noise_bands": "4"}, {"sampling": "balls-in-bins"}], ids=["poisson", "bands", "bins"])
def test_given_noise_promises_no_epsilon_so_the_run_goes_to_its_end(keyed, kind):
    assert keyed.run(arguments(KEYED, **kind)).code == 0
    charged = len(releases(keyed.folder / "run"))
    planned = report(keyed.folder / "run")["guarantee"]["epsilon"]["upper"]
    run = as_if_ended(keyed.folder, 5, charged=min(9, charged))
    done = keyed.run(resumed(KEYED, **kind))
    assert done.code == 0, done.err
    if "sampling" not in kind:
        shown = f"{planned:.4f}"
        shown = shown if float(shown) >= planned else f"{planned + 1e-4:.4f}"  # rounded up
        assert f"(planned: {shown})" in done.err and "--noise-multiplier promises no epsilon" in done.err
    assert metrics(run)[-1]["step"] == STEPS and (run / "model").exists() and "Ended after" not in done.out
    said = report(run)
    assert said["population_and_steps"]["steps_executed"] == STEPS and "ended_early" not in said["population_and_steps"]
    assert said["guarantee"]["epsilon"]["upper"] > planned


def test_given_noise_ends_at_a_limit_that_is_given(ended, undisturbed):
    program = ended(10, charged=14)
    planned = report(undisturbed / "run")["guarantee"]["epsilon"]["upper"]
    done = program.run(resumed(KEYED, epsilon_limit=repr(planned)))
    assert done.code == 0 and "To keep the limit the run will end after step 16 of 20" in done.err
    assert report(program.folder / "run")["guarantee"]["epsilon"]["upper"] == planned
    assert program.run(resumed(KEYED)).code == 0
    assert report(program.folder / "run")["population_and_steps"]["steps_executed"] == STEPS


def test_without_a_checkpoint_everything_is_redone_and_the_promise_can_be_spent(keyed):
    assert keyed.run(arguments(TARGETED)).code == 0
    as_if_ended(keyed.folder, 0, charged=20)
    before = everything_in(keyed.folder)
    refused = keyed.run(resumed(TARGETED))
    assert refused.code == 2 and "--epsilon-limit raises it" in refused.err
    assert everything_in(keyed.folder) == before
    assert keyed.run(resumed(TARGETED, epsilon_limit="50")).code == 0
    assert releases(keyed.folder / "run")[20:] == [(step, 1) for step in range(20)]


def test_new_attempts_have_new_noise_and_new_coins(ended, undisturbed):
    """The same key, the same weights before: what follows differs in every weight."""
    one, other = ended(10, charged=11), ended(10)
    assert one.run(resumed(KEYED, epsilon_limit="50")).code == other.run(resumed(KEYED)).code == 0
    a, b = weights(one.folder / "run"), weights(other.folder / "run")
    assert all((a[name] != b[name]).mean() > 0.9 for name in a)


def test_without_the_key_a_resume_begins_an_epoch_of_its_own(ended, undisturbed):
    program = ended(10)
    done = program.run(resumed(KEYED, noise_key_file=None))
    assert done.code == 0 and "sampling and noise follow from a new key (epoch 1 in the ledger)" in done.err
    run = program.folder / "run"
    lines = ledger_lines(run)
    (epoch,) = [line for line in lines if line["type"] == "epoch"]
    assert (epoch["sequence"], epoch["epoch"], epoch["step"]) == (11, 1, 10)
    assert epoch["key"] == {"origin": "operating system"} and epoch["run_id"] != lines[0]["run_id"]
    assert releases(run) == [(step, 0) for step in range(STEPS)]
    epochs = report(run)["provenance"]["key_epochs"]
    assert [(e["epoch"], e["releases"]) for e in epochs] == [(0, 10), (1, 10)]
    assert not same_weights(run, undisturbed / "run")


def test_a_new_epochs_key_file_serves_the_next_resume(program):
    """Begun without a file, stopped, resumed with one, stopped, resumed with it: an epoch each."""
    write_key(program.folder)
    flags = {**PRIVATE, "--steps": "100000"}
    run = program.folder / "run"
    words = [arguments(flags), resumed(flags, noise_key_file="key"), resumed(flags, noise_key_file="key")]
    for number, word in enumerate(words):
        shown = steps_shown(run)
        started = program.start(word)
        wait_until(lambda shown=shown: steps_shown(run) > shown + 2)
        started.process.send_signal(signal.SIGINT)
        assert started.wait(20).code == 3
        assert sum(line["type"] == "epoch" for line in ledger_lines(run)) == number
    assert KEY not in b"".join(content for content in everything_in(run).values() if content)
