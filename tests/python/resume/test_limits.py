"""--epsilon-limit holds whatever it is, a run's early end names its true cause, and a folder that cannot be written is refused."""

import json
import signal
import subprocess

import pytest
from program import arguments, everything_in, report, wait_until
from resumable import KEYED, STEPS, as_if_ended, checkpoints, releases, resumed

TARGETED = {**KEYED, "--noise-multiplier": None, "--target-epsilon": "8"}


def spent(run) -> float:
    return report(run)["guarantee"]["epsilon"]["upper"]


@pytest.mark.parametrize("flags", [KEYED, TARGETED], ids=["given_noise", "target"])
@pytest.mark.parametrize("charged", [10, 14], ids=["nothing_lost", "steps_lost"])
def test_a_limit_below_what_is_spent_is_refused(keyed, flags, charged):
    assert keyed.run(arguments(flags)).code == 0
    as_if_ended(keyed.folder, 10, charged=charged)
    before = everything_in(keyed.folder)
    done = keyed.run(resumed(flags, epsilon_limit="0.5"))
    assert done.code == 2 and done.err.count("\n") == 1
    assert "--epsilon-limit must be at least what the ledger has charged already, epsilon " in done.err and done.err.endswith("got 0.5\n")
    assert everything_in(keyed.folder) == before


def test_a_limit_below_the_target_ends_the_run_and_no_step_is_said_to_be_repeated(keyed):
    assert keyed.run(arguments(TARGETED)).code == 0
    run = as_if_ended(keyed.folder, 10)
    done = keyed.run(resumed(TARGETED, epsilon_limit="7"))
    assert done.code == 0, done.err
    steps = len(releases(run))
    assert 10 <= steps < STEPS and spent(run) <= 7
    assert f"Ended after step {steps} of {STEPS}: further steps would break the promised or given epsilon; --resume" in done.out
    assert "repeated" not in done.out
    early = report(run)["population_and_steps"]["ended_early"]
    assert early.startswith(f"after step {steps}: further steps would have broken")
    assert keyed.run(resumed(TARGETED)).code == 0
    assert len(releases(run)) == STEPS and 7 < spent(run) <= 8


def test_the_report_of_an_earlier_end_is_gone_once_the_run_goes_on(keyed):
    """It states less than is spent then."""
    flags, run = {**TARGETED, "--steps": "20000"}, keyed.folder / "run"
    for words in (arguments(flags), resumed(flags)):
        before = len(releases(run)) if run.exists() else 0
        going_on = keyed.start(words)
        wait_until(lambda before=before: (run / "ledger.jsonl").exists() and len(releases(run)) > before + 3)
        going_on.process.kill()
        assert going_on.wait(20).code == -signal.SIGKILL
        assert not list(run.glob("privacy_report.*"))
        for name in ("privacy_report.json", "privacy_report.html"):
            (run / name).write_text("{}")


def test_steps_that_were_repeated_are_the_cause_that_is_named(ended):
    program = ended(10, charged=14)
    planned = 1.0001 * spent_by_plan(program)
    done = program.run(resumed(KEYED, epsilon_limit=repr(planned)))
    assert done.code == 0 and "because steps were repeated" in done.out
    early = report(program.folder / "run")["population_and_steps"]["ended_early"]
    assert "steps redone after a crash were charged again" in early


def spent_by_plan(program) -> float:
    account = program.binary.with_name("ghostshard-account")
    rate = f"{KEYED['--expected-batch']}/24"
    words = ["epsilon", "-q", rate, "-s", KEYED["--noise-multiplier"], "-t", str(STEPS), "-d", "1e-6", "--json"]
    return json.loads(subprocess.run([account, *words], capture_output=True, text=True, check=True).stdout)["upper"]


def test_a_folder_that_may_not_be_written_is_refused_before_anything_is_done(ended):
    program = ended(10)
    script = 'mount --bind run run && mount -o remount,ro,bind run && exec "$0" "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script]
    if subprocess.run([*command, "true"], cwd=program.folder, capture_output=True).returncode != 0:
        pytest.skip("this machine allows no mounts")
    done = subprocess.run([*command, program.binary, *resumed(KEYED)], cwd=program.folder, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "a run that goes on must be able to write" in done.stderr and "Read-only file system" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("file", ["rank-00000-of-00001.safetensors", "checkpoint.json"])
def test_a_damaged_checkpoint_names_the_way_on(ended, file):
    program = ended(10)
    path = program.folder / "run" / "checkpoints" / "step-000000000010" / file
    content = bytearray(path.read_bytes())
    content[-9 if file.startswith("rank") else 0] ^= 1
    path.write_bytes(content)
    done = program.run(resumed(KEYED))
    assert done.code == 2 and done.err.count("\n") == 1
    assert "if it is damaged, remove its folder: the run then goes on from the newest other one, and what it repeats" in done.err


DIVERGING = {**KEYED, "--optimizer": "sgd", "--learning-rate": "1e20", "--checkpoint-every": "4"}


@pytest.mark.parametrize("changes", [{}, {"noise_multiplier": None, "noise_key_file": None, "non_private": ""}], ids=["private", "plain"])
def test_a_run_that_diverges_ends_and_keeps_no_such_weights(keyed, changes):
    done = keyed.run(arguments(DIVERGING, eval_data=None, **changes))
    assert done.code == 1
    assert "the weights must be finite and at most 1e12 in size, some after step 4 are not: the run diverged" in done.err
    assert "a new run with a lower --learning-rate" in done.err and "--resume goes on at the start" in done.err
    run = keyed.folder / "run"
    assert checkpoints(run) == {} and not (run / "model").exists()
    if not changes:
        assert len(releases(run)) == 4, "no step is charged that could not mend the weights"


def test_a_loss_on_public_texts_that_is_no_number_ends_it_too(keyed):
    done = keyed.run(arguments(DIVERGING, eval_every="1"))
    assert done.code == 1 and "the losses on --eval-data must be finite, those after step " in done.err


def test_a_run_that_diverged_goes_on_from_its_last_sound_checkpoint(keyed):
    """The rate climbs, so that the weights of the first steps are sound."""
    flags = {**DIVERGING, "--warmup-steps": "12", "--learning-rate": "1e13", "--checkpoint-every": "1", "--eval-data": None}
    done = keyed.run(arguments(flags))
    assert done.code == 1 and "the run diverged" in done.err
    newest = max(checkpoints(keyed.folder / "run"))
    assert f"--resume goes on from the checkpoint of step {newest}" in done.err
    assert f"Resuming after step {newest} from" in keyed.run(resumed(flags)).err
