"""--clipping adaptive: the clip norm follows a quantile of the texts' norms, by numbers that the ledger, the metrics and the report
show; and --clipping automatic."""

import json
import math

import pytest
from program import PRIVATE, arguments, json_lines, metrics, report, write_key

ADAPTIVE = {**PRIVATE, "--clipping": "adaptive", "--count-noise": "3", "--noise-multiplier": "1", "--steps": "8",
            "--checkpoint-every": "3", "--keep-checkpoints": "5", "--noise-key-file": "key"}  # fmt: skip


@pytest.fixture
def keyed(program):
    write_key(program.folder)
    return program


def releases(run) -> list[dict]:
    return [line for line in json_lines(run / "ledger.jsonl") if line["type"] == "release"]


def test_every_clip_norm_is_in_the_ledger_and_follows_from_the_share_that_was_released(keyed, account):
    done = keyed.run(arguments(ADAPTIVE))
    assert done.code == 0, done.err
    run = keyed.folder / "run"
    header = json_lines(run / "ledger.jsonl")[0]
    assert header["clip_norm"] == 1.0
    assert header["clip_quantile"] == {"target": 0.5, "rate": 0.2, "count_noise": 3.0, "least": 0.001, "most": 1000.0}
    gradients = header["noise_multiplier"]
    assert 1 / math.hypot(1 / gradients, 1 / (2 * 3)) == pytest.approx(1, rel=1e-12)
    lines, shown = releases(run), metrics(run)[1:]
    assert all(line["event"] == {"type": "poisson_adaptive_clipping", "noise_multiplier": gradients, "count_noise": 3.0,
                                 "sampling_rate": header["sampling_rate"]} for line in lines)  # fmt: skip
    assert [line["clip_norm"] for line in lines] == [line["clip_norm"] for line in shown]
    assert len({line["clip_norm"] for line in lines}) > 1
    batch = header["expected_batch"]
    for now, then in zip(shown, shown[1:]):
        share = now["share_below_clip_norm"]
        assert 2 * batch * (share - 0.5) == pytest.approx(round(2 * batch * (share - 0.5)), abs=1e-9), "halves over the batch"
        assert then["clip_norm"] == pytest.approx(now["clip_norm"] * math.exp(-0.2 * (share - 0.5)), rel=1e-14)
    made = report(run)
    assert made["guarantee"]["applies"] is True and all(each.get("holds", True) for each in made["assumptions"])
    assert made["mechanism"]["clip_norms"]["last"] == lines[-1]["clip_norm"]
    assert any("clip norm of every step" in each for each in made["released_outputs"]["released"])
    # Both parts together cost what one Gaussian of the noise multiplier that was given costs.
    words = ("--delta", made["guarantee"]["delta"], "--sampling-rate", repr(header["sampling_rate"]), "--noise-multiplier", 1,
             "--steps", 8, "--json")  # fmt: skip
    alone = json.loads(account("epsilon", *words).stdout)
    assert made["guarantee"]["epsilon"]["upper"] == pytest.approx(alone["upper"], rel=1e-6)
    verified = account("verify", "--ledger", run / "ledger.jsonl", "--report", run / "privacy_report.json")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_run_goes_on_with_the_clip_norm_of_its_checkpoint(keyed):
    assert keyed.run(arguments(ADAPTIVE)).code == 0
    run = keyed.folder / "run"
    whole = releases(run)
    for file, count in (("ledger.jsonl", 6), ("metrics.jsonl", 6)):  # killed after step 5; checkpoints of 6 and 8 never were
        lines = (run / file).read_bytes().split(b"\n")[:count]
        (run / file).write_bytes(b"\n".join(lines) + b"\n")
    for folder in (run / "checkpoints").glob("step-*"):
        if int(folder.name.removeprefix("step-")) > 3:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
    (run / "privacy_report.json").unlink()
    done = keyed.run(arguments(ADAPTIVE, resume=""))
    assert done.code == 0, done.err
    lines = releases(run)
    assert [(line["step"], line["attempt"]) for line in lines[3:7]] == [(3, 0), (4, 0), (3, 1), (4, 1)]
    assert lines[5]["clip_norm"] == whole[3]["clip_norm"], "the checkpoint's"
    # Noised counts are multiples of 1/2 with a deviation of 3: one alone meets the first attempt's in one run of twenty.
    assert [line["clip_norm"] for line in lines[6:]] != [line["clip_norm"] for line in whole[4:]], "new coins and new noise"


def test_ranks_have_the_clip_norms_of_each_other(keyed):
    done = keyed.run_ranks(*[arguments(ADAPTIVE)] * 2)
    assert [rank.code for rank in done] == [0, 0], done
    assert len({line["clip_norm"] for line in releases(keyed.folder / "run")}) > 1


REFUSED = {
    "flag_of_another_clipping": ({"clipping": "flat"}, "--count-noise is for --clipping adaptive"),
    "quantile_of_one": ({"clip_quantile": "1"}, "must lie strictly between 0 and 1, got 1"),
    "negative_rate": ({"clip_rate": "-1"}, "--clip-rate must be finite and > 0, got -1"),
    "count_noise_too_small": ({"count_noise": "0.5"}, "must be more than half the noise multiplier of 1.0"),
    "limits": ({"min_clip_norm": "2"}, "within its limits, from 2.0 to 1000.0, got 1.0"),
    "noise_bands": ({"noise_bands": "2"}, "noise bands are derived for one clip norm"),
    "second_moment_floor": ({"second_moment_floor": "0.1"}, "cannot be combined with --clipping adaptive"),
    "no_privacy": ({"non_private": "", "noise_multiplier": None, "noise_key_file": None}, "--non-private has none"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_be_combined_with_is_refused(keyed, name):
    changes, message = REFUSED[name]
    done = keyed.run(arguments(ADAPTIVE, **changes))
    assert done.code == 2 and message in done.err, done.err
    assert not (keyed.folder / "run").exists()


def test_a_run_is_resumed_with_its_own_quantile(keyed):
    assert keyed.run(arguments(ADAPTIVE, steps="4")).code == 0
    for changes in ({"clip_quantile": "0.6"}, {"count_noise": "4"}, {"clipping": "flat", "count_noise": None}):
        done = keyed.run(arguments(ADAPTIVE, resume="", steps="4", **changes))
        assert done.code == 2, changes


def test_automatic_clipping_is_written_down_and_costs_the_same(keyed):
    for clipping in ("flat", "automatic"):
        done = keyed.run(arguments(ADAPTIVE, clipping=clipping, count_noise=None, output=clipping))
        assert done.code == 0, done.err
    made = {clipping: report(keyed.folder / clipping) for clipping in ("flat", "automatic")}
    assert made["automatic"]["mechanism"]["clipping_style"].startswith("automatic, per unit")
    assert made["automatic"]["guarantee"]["epsilon"] == made["flat"]["guarantee"]["epsilon"]
