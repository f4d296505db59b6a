"""--budget-register: runs on the same texts add up, and one that would break their limit does not begin."""

import json
import re
import shutil
import signal
import subprocess

import pytest
from program import PRIVATE, arguments, everything_in, json_lines, report, texts, wait_until, write_data

from ghostshard.accountants import ContourAccountant

REGISTERED = {**PRIVATE, "--budget-register": "budgets.jsonl", "--budget-limit": "LIMIT", "--delta": "1e-6"}
RATE = 4 / 24


def epsilon_of(steps: int) -> float:
    accountant = ContourAccountant()
    for _ in range(steps):
        accountant.step(noise_multiplier=1.0, sample_rate=RATE)
    return accountant.get_epsilon(delta=1e-6)


def words(limit_steps: int, **changes) -> list[str]:
    return arguments({**REGISTERED, "--budget-limit": repr(epsilon_of(limit_steps) * (1 + 1e-9))}, **changes)


@pytest.fixture
def shown(binary, program):
    def show(*options: str) -> dict:
        account = binary.with_name("ghostshard-account")
        done = subprocess.run([account, "register", "budgets.jsonl", "--json", *options], cwd=program.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return show


def test_runs_add_up_and_the_one_beyond_the_limit_does_not_begin(program, shown):
    assert program.run(words(7, output="one")).code == 0
    second = program.run(words(7, output="two"))
    assert second.code == 0 and "all runs         2 on this data in the register" in second.out
    register = (program.folder / "budgets.jsonl").read_bytes()
    refused = program.run(words(7, output="three", steps="2"))
    assert refused.code == 2
    assert "2 run(s) are registered" in refused.err and refused.err.count("\n") == 1
    assert not (program.folder / "three").exists()
    assert (program.folder / "budgets.jsonl").read_bytes() == register
    assert program.run(words(7, output="three", steps="1")).code == 0
    (data,) = shown()["data_sets"]
    assert data["runs"] == 3 and data["epsilon_charged"]["upper"] == pytest.approx(epsilon_of(7), rel=1e-9)


@pytest.mark.parametrize("kind", ["noise_bands", "noise_chain"])
def test_of_groups_the_rounds_of_one_are_charged(program, shown, kind):
    """A text is in the steps of its own group alone: the register counts what the run's own report claims."""
    assert program.run(words(200, output="one", steps="9", **{kind: "4"})).code == 0
    (data,) = shown()["data_sets"]
    (charged,) = data["sessions"][0]["charged"]
    assert charged["count"] == data["sessions"][0]["plan"]["count"] == 3  # of 9 steps among 4 groups
    claimed = report(program.folder / "one")["guarantee"]["epsilon"]["upper"]
    assert data["epsilon_charged"]["upper"] == pytest.approx(claimed, rel=1e-9)


def test_a_run_with_groups_that_goes_on_is_charged_at_least_what_it_spent(program, shown):
    flags = {"noise_bands": "4", "steps": "10", "checkpoint_every": "3", "keep_checkpoints": "9"}
    assert program.run(words(200, **flags)).code == 0
    run = program.folder / "run"
    (run / "privacy_report.json").unlink()
    shutil.rmtree(run / "model")
    for step in (9, 10):
        shutil.rmtree(run / "checkpoints" / f"step-{step:012}")
    done = program.run(words(200, **flags, resume=""))
    assert done.code == 0, done.err
    first, second = ([charge["count"] for charge in session["charged"]] for session in shown()["data_sets"][0]["sessions"])
    assert (first, second) == ([3], [1])  # 10 steps, then 4 more, among 4 groups
    assert report(run)["guarantee"]["epsilon"]["upper"] <= shown()["data_sets"][0]["epsilon_charged"]["upper"] * (1 + 1e-9)


def test_the_report_names_all_runs_and_the_data_by_its_keyed_fingerprint(program, shown):
    program.run(words(20, output="one"))
    done = program.run(words(20, output="two"))
    made = report(program.folder / "two")
    (data,) = shown()["data_sets"]
    assert made["provenance"]["data_fingerprint"] == data["data_set"]
    everyone = made["tuning"]["budget_register"]
    assert everyone["runs_on_this_data"] == 2
    assert everyone["epsilon_of_all_runs_at_most"] == pytest.approx(epsilon_of(6), rel=1e-9)
    assert made["guarantee"]["epsilon"]["upper"] == pytest.approx(epsilon_of(3), rel=1e-9)
    assert made["further_facts"]["hyper_parameters"]["expected-batch"] == "4"
    assert made["provenance"]["weights_before"] != made["provenance"]["weights_after"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", made["provenance"]["begun_on"])
    key = (program.folder / "budgets.jsonl.key").read_bytes().hex()
    files = [content for content in everything_in(program.folder / "two").values() if content]
    assert not any(key.encode() in content for content in files) and key not in done.out + done.err


def test_other_texts_have_a_budget_of_their_own(program, shown):
    write_data(program.folder / "other.safetensors", texts([5] * 24, seed=7))
    assert program.run(words(3, output="one")).code == 0
    unknown = program.run(words(3, output="two", data="other.safetensors", budget_limit=None))
    assert unknown.code == 2 and "its first run must give a limit (--budget-limit EPSILON)" in unknown.err
    assert program.run(words(3, output="two", data="other.safetensors")).code == 0
    assert [data["runs"] for data in shown()["data_sets"]] == [1, 1]


def test_a_run_that_was_killed_goes_on_as_itself(program, shown):
    """Its plan stays its own: the limit has room for this one run and for nothing beside it."""
    flags = {"steps": "20000", "checkpoint_every": "3"}
    run = program.folder / "run"
    rank = program.start(words(20000, **flags))
    wait_until(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_bytes().count(b"\n") > 8)
    beside = program.run(words(20000, output="beside", steps="1"))
    assert beside.code == 2 and "planned)" in beside.err
    rank.process.send_signal(signal.SIGKILL)
    rank.process.wait()
    charged = len([line for line in json_lines(run / "ledger.jsonl") if line["type"] == "release"])
    again = program.start(words(20000, **flags, resume=""))
    wait_until(lambda: (run / "ledger.jsonl").read_bytes().count(b"\n") > charged + 8)
    again.process.send_signal(signal.SIGTERM)
    assert again.wait(60).code == 3
    made = len([line for line in json_lines(run / "ledger.jsonl") if line["type"] == "release"])
    (data,) = shown()["data_sets"]
    assert data["runs"] == 1 and len(data["sessions"]) == 2
    first, second = (session["charged"][0]["count"] for session in data["sessions"])
    assert charged <= first <= charged + 200, "a hundredth of the plan is charged ahead"
    assert second == made - charged, "a session that ends gives back what it did not use"
    assert [session["ended"] for session in data["sessions"]] == [False, True]


def test_every_rank_is_refused(program):
    flags = words(2, output="one")
    for rank in program.run_ranks(flags, flags):
        assert rank.code == 2 and "with this run it would be" in rank.err
    assert not (program.folder / "one").exists()


def test_a_resumed_run_cannot_leave_its_register(program):
    assert program.run(words(9, noise_key_file=None)).code == 0
    (program.folder / "run" / "privacy_report.json").unlink()
    left = program.run(arguments(PRIVATE, delta="1e-6", resume=""))
    assert left.code == 2 and "budget register must be what the run began with" in left.err


def test_a_resumed_run_needs_the_register_that_it_began_with(program):
    assert program.run(words(9, checkpoint_every="2")).code == 0
    (program.folder / "run" / "privacy_report.json").unlink()
    for name in ("budgets.jsonl", "budgets.jsonl.key"):
        (program.folder / name).unlink()
    other = program.run(words(9, checkpoint_every="2", resume="", epsilon_limit="100"))
    assert other.code == 2 and "does not know the run" in other.err


@pytest.mark.parametrize("kind", [{}, {"noise_bands": "4"}, {"sampling": "balls-in-bins"}], ids=["plain", "groups", "passes"])
def test_a_register_that_was_put_back_is_not_gone_on_with(program, kind):
    """All runs would be said to have spent less than this one alone."""
    flags = {"steps": "12", "checkpoint_every": "3", "keep_checkpoints": "9", **kind}
    assert program.run(words(300, **flags)).code == 0
    run, register = program.folder / "run", program.folder / "budgets.jsonl"
    (run / "privacy_report.json").unlink()
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoints" / "step-000000000012")
    whole = register.read_bytes()
    lines = whole.splitlines(keepends=True)
    register.write_bytes(b"".join(lines[: next(number for number, line in enumerate(lines) if b'"charge"' in line)]))
    before = everything_in(program.folder)
    done = program.run(words(300, **flags, resume=""))
    assert done.code == 2 and "it was put back to an earlier state" in done.err and done.err.count("\n") == 1, done
    assert everything_in(program.folder) == before
    register.write_bytes(whole)
    assert program.run(words(300, **flags, resume="")).code == 0


def test_a_damaged_checkpoint_is_refused_before_the_register_is_written(program):
    flags = {"steps": "9", "checkpoint_every": "2", "keep_checkpoints": "9"}
    assert program.run(words(30, **flags)).code == 0
    run = program.folder / "run"
    (run / "privacy_report.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-000000000009")
    tensors = run / "checkpoints" / "step-000000000008" / "rank-00000-of-00001.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-9] ^= 1
    tensors.write_bytes(content)
    before = everything_in(program.folder)
    refused = program.run(words(30, **flags, resume="", epsilon_limit="100"))
    assert refused.code == 2 and "is damaged" in refused.err and refused.err.count("\n") == 1
    assert everything_in(program.folder) == before


def test_limits_are_changed_and_plans_given_up_on_purpose(program, shown):
    assert program.run(words(3, output="one")).code == 0
    (data,) = shown()["data_sets"]
    other = program.run(words(6, output="two"))
    assert other.code == 2 and (hint := re.search(r"ghostshard account register (.*)$", other.err))
    shown(*hint[1].split()[1:])
    assert program.run(words(6, output="two", budget_limit=None)).code == 0
    account = [str(program.binary.with_name("ghostshard-account")), "register", "budgets.jsonl"]
    for wrong, sentence in (
        (["--limit", "3"], "--limit needs --data-set"),
        (["--data-set", "0" * 64], "--data-set must be in the register"),
        (["--close", "0" * 32], "keeps a plan"),
        (["--data-set", data["data_set"], "--limit", "-1"], "epsilon must be finite"),
    ):
        done = subprocess.run([*account, *wrong], cwd=program.folder, capture_output=True, text=True)
        assert done.returncode == 2 and sentence in done.stderr and done.stderr.count("\n") == 1


BAD = {
    "limit_alone": ({"budget_register": None, "budget_limit": "3"}, "--budget-limit is the limit of a register"),
    "limit_of_nothing": ({"budget_limit": "0"}, "--budget-limit must be finite and > 0"),
    "without_privacy": ({"non_private": "", "noise_multiplier": None, "delta": None}, "--budget-register"),
    "no_register": ({"budget_register": "data.safetensors"}, "data.safetensors is there without its key"),
}


@pytest.mark.parametrize("changes, sentence", BAD.values(), ids=BAD.keys())
def test_bad_input_is_a_sentence(program, changes, sentence):
    before = everything_in(program.folder)
    done = program.run(words(3, **changes))
    assert done.code == 2 and sentence in done.err and done.err.count("\n") == 1
    assert everything_in(program.folder) == before
