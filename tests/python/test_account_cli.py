"""ghostshard-account as a user calls it: answers, sentences for bad input, ledgers that were cut, reports that lie."""

import csv
import hashlib
import io
import json
import math
import re
from collections import Counter

import pytest
from ledgers import RATE, SIGMA, STEPS, answer, write_ledger

MNIST = ["--sampling-rate", "256/60000", "--noise-multiplier", "1.1", "--steps", "14063"]


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "ledger.jsonl"
    write_ledger(path)
    return path


# ---------------------------------------------------------------------------------------------------------------------
# Answers. True values: contour integrals in 40-digit arithmetic.


@pytest.mark.parametrize("accountant, width", [("contour", 1e-9), ("prv", 0.01)])
def test_epsilon_brackets_the_truth(account, accountant, width):
    found = answer(account("epsilon", *MNIST, "--delta", "1e-5", "--json", "--accountant", accountant))
    assert found["lower"] <= 2.381689726141649 <= found["upper"] <= found["lower"] + width
    assert found["lower"] <= found["estimate"] <= found["upper"]
    assert (found["delta"], found["accountant"], found["direction"]) == (1e-5, accountant, "remove")


def test_rdp_is_that_of_a_continuous_order(account):
    found = answer(account("epsilon", *MNIST, "--delta", "1e-5", "--json", "--accountant", "rdp"))
    assert found["upper"] == pytest.approx(2.5966419148565816, abs=1e-8)


LAPLACE = '1:{"type":"laplace","noise_multiplier":1,"sampling_rate":1}'


def test_a_release_beside_the_gradients_is_composed_with_them(account):
    run = ["epsilon", "--phase", "0.01:1:1000", "--delta", "1e-5", "--json"]
    found = answer(account(*run, "--event", LAPLACE))
    assert found["lower"] <= 2.743884 and 2.74387 <= found["upper"] <= found["lower"] + 2e-5  # dp_accounting: 2.743883
    assert answer(account(*run))["upper"] < 1.83


def test_a_run_goes_to_dp_accounting_and_back(account, tmp_path):
    written = account("events", "--phase", "0.01:1:1000", "--event", LAPLACE)
    event = json.loads(written.stdout)
    assert [one["event"]["class_name"] for one in event["events"]] == ["LaplaceDpEvent", "PoissonSampledDpEvent"]
    (tmp_path / "event.json").write_text(written.stdout)
    words = ["--delta", "1e-5", "--json"]
    back = answer(account("epsilon", "--dp-event", tmp_path / "event.json", *words))
    assert back["upper"] == answer(account("epsilon", "--phase", "0.01:1:1000", "--event", LAPLACE, *words))["upper"]


def test_a_receipt_of_other_releases_is_refused_by_name(account, tmp_path):
    event = {"type": "laplace", "sampling_rate": 1.0, "noise_multiplier": 1.0}
    path = tmp_path / "ledger.jsonl"
    lines = [{"type": "header", "schema": "ghostshard.ledger/1", "adjacency": "zero-out", "library_version": "0", "previous": "0" * 64}]
    head = hashlib.sha256(json.dumps(lines[0]).encode()).hexdigest()
    lines.append({"type": "release", "sequence": 1, "step": 0, "attempt": 0, "event": event, "previous": head})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = account("report", "--ledger", path, "--delta", "1e-6", "--output", tmp_path / "audit")
    assert done.returncode == 0, done.stderr
    assert "Each release of type laplace is of the mechanism" in (tmp_path / "audit" / "privacy_report.json").read_text()
    done = account("verify", "--ledger", path, "--report", tmp_path / "audit" / "privacy_report.json")
    assert done.returncode == 0, done.stdout
    done = account("report", "--ledger", path, "--delta", "1e-6", "--output", tmp_path / "b", "--receipt", tmp_path / "receipt.json")
    assert done.returncode == 2 and "got laplace" in done.stderr


def test_phases_add_up_in_any_order(account):
    words = ["--delta", "1e-5", "--json"]
    found = answer(account("epsilon", "--phase", "0.01:1.2:5000", "--phase", "0.02:0.9:1000", *words))
    assert found["lower"] <= 5.892513176225 + 1e-11 and found["upper"] >= 5.892513176225 - 1e-11
    other = answer(account("epsilon", "--phase", "0.02:0.9:1000", "--phase", "0.01:1.2:5000", *words))
    assert other["upper"] == pytest.approx(found["upper"], rel=1e-9)


def test_the_text_never_shows_less_than_the_bound(account):
    exact = answer(account("epsilon", *MNIST, "--delta", "1e-5", "--json"))["upper"]
    shown = account("epsilon", *MNIST, "--delta", "1e-5").stdout
    assert exact <= float(re.match(r"epsilon <= ([0-9.]+) at delta = 1e-05\n", shown)[1]) <= exact + 1e-4


def test_delta_is_the_way_back(account):
    run = ["--phase", "0.01:1:10000", "--json"]
    epsilon = answer(account("epsilon", *run, "--delta", "1e-5"))["upper"]
    assert answer(account("delta", *run, "--epsilon", epsilon))["upper"] == pytest.approx(1e-5, rel=1e-6)


BUDGET = ["--epsilon", "3", "--delta", "8e-6", "--json"]


def test_noise_is_on_the_private_side_within_a_millionth(account):
    found = answer(account("noise", *BUDGET, "--sampling-rate", "1024/42061", "--steps", "411"))
    assert 0 <= found["noise_multiplier"] - 1.0269848448 <= 1e-6
    assert found["epsilon"] <= 3


def test_steps_and_rate_are_the_last_that_the_budget_allows(account):
    fixed = ["--noise-multiplier", "1.1"]
    steps = answer(account("steps", *BUDGET, *fixed, "--sampling-rate", "1024/42061"))
    assert steps["epsilon"] <= 3
    run = ["--delta", "8e-6", "--json", *fixed]
    assert answer(account("epsilon", *run, "-q", "1024/42061", "-t", steps["steps"] + 1))["upper"] > 3
    rate = answer(account("rate", *BUDGET, *fixed, "--steps", "411"))
    assert rate["epsilon"] <= 3
    assert answer(account("epsilon", *run, "-q", rate["sampling_rate"] * (1 + 1e-6), "-t", 411))["upper"] > 3


def test_nothing_costs_nothing(account):
    assert answer(account("epsilon", "--phase", "0.01:1:0", "--delta", "1e-5", "--json"))["upper"] == 0


def test_curve_speaks_json_csv_and_table(account):
    run = ["curve", "--phase", "0.1:2:30", "--deltas", "1e-5,1e-7"]
    points = answer(account(*run, "--json"))["points"]
    rows = list(csv.DictReader(io.StringIO(account(*run, "--csv").stdout)))
    assert [float(row["delta"]) for row in rows] == [1e-5, 1e-7] == [point["delta"] for point in points]
    for row, point in zip(rows, points, strict=True):
        assert float(row["epsilon_upper"]) == point["epsilon"]["upper"]
    assert account(*run).stdout.count("\n") == 3


def test_curve_over_steps_ends_at_the_whole_run(account):
    run = ["--phase", "0.1:2:20", "--phase", "0.1:3:11", "--delta", "1e-5", "--json"]
    points = answer(account("curve", *run, "--over-steps", "--points", "7"))["points"]
    assert [point["steps"] for point in points] == sorted({point["steps"] for point in points})
    assert points[-1] == {"steps": 31, "epsilon": points[-1]["epsilon"]}
    assert points[-1]["epsilon"]["upper"] == answer(account("epsilon", *run))["upper"]


def test_tradeoff_bounds_tests_and_guesses(account):
    words = ["--phase", "1:2:4", "--false-positive-rates", "0.1", "--priors", "0.001,0.1"]
    found = answer(account("tradeoff", *words, "--json"))
    power = 0.38914  # Phi(Phi^-1(0.1) + 1): four Gaussians of sigma 2 are one of sigma 1
    assert found["tests"][0]["true_positive_rate_at_most"] == pytest.approx(power, abs=1e-5)
    assert found["reconstruction"][1]["right_guess_at_most"] == found["tests"][0]["true_positive_rate_at_most"]
    shown = account("tradeoff", *words).stdout
    assert "finds a unit with probability <= 0.38914" in shown and "right with probability 0.001 beforehand" in shown


def test_help_teaches_with_examples(account):
    done = account("--help")
    assert done.returncode == 0
    for command in ("epsilon", "delta", "noise", "steps", "rate", "curve", "tradeoff", "report", "verify"):
        assert f"\n  {command} " in done.stdout
        assert "Example" in account(command, "--help").stdout


@pytest.mark.parametrize("line", [
    line.strip() for line in """
        ghostshard account epsilon --phase 0.01:1.2:5000 --phase 0.02:0.9:1000 --delta 1e-5 --json
        ghostshard account noise --epsilon 3 --delta 8e-6 --sampling-rate 1024/42061 --steps 411
    """.strip().splitlines()
])  # fmt: skip
def test_examples_of_the_help_work(account, line):
    assert line in account("--help").stdout
    assert account(*line.split()[2:]).returncode == 0


# ---------------------------------------------------------------------------------------------------------------------
# Bad input: one sentence, status 2

GOOD = {"-q": "0.1", "-s": "1", "-t": "10", "-d": "1e-5"}


def words(**changes) -> list[str]:
    flags = {**GOOD, **{"-" + name: value for name, value in changes.items()}}
    return ["epsilon", *(word for pair in flags.items() for word in pair)]


BAD = {
    "rate_nan": (words(q="nan"), "sampling rate must be > 0 and <= 1, got nan"),
    "rate_above_one": (words(q="1.5"), "sampling rate must be > 0 and <= 1, got 1.5"),
    "rate_zero": (words(q="0"), "sampling rate must be"),
    "rate_by_zero": (words(q="1/0"), "sampling rate must be"),
    "rate_no_number": (words(q="much"), '--sampling-rate must be a number, got "much"'),
    "rate_with_a_tail": (words(q="0.1x"), "--sampling-rate must be a number"),
    "noise_zero": (words(s="0"), "noise multiplier must be finite and > 0, got 0"),
    "noise_negative": (words(s="-1"), "noise multiplier must be"),
    "noise_infinite": (words(s="inf"), "noise multiplier must be"),
    "noise_whose_square_is_no_double": (words(s="1e200"), "the noise multiplier of a sampled release must be at most 1e100, got 1e+200"),
    "noise_nan": (words(s="NaN"), "noise multiplier must be"),
    "noise_beyond_a_double": (words(s="1e999"), "--noise-multiplier must be a number that a double can hold"),
    "steps_negative": (words(t="-3"), '--steps must be a whole number >= 0, got "-3"'),
    "rate_twice": ([*words(), "-q", "0.5"], "--sampling-rate is given twice: give it once (--help explains)"),
    "rate_without_value": (["epsilon", "-q"], "--sampling-rate needs a value (--help explains)"),
    "steps_octal": (words(t="010"), '--steps must be a whole number without leading zeros, got "010"'),
    "steps_fractional": (words(t="2.5"), "--steps must be a whole number"),
    "steps_nan": (words(t="nan"), "--steps must be a whole number"),
    "steps_too_many": (words(t="1e300"), "--steps must be at most 2^53"),
    "steps_too_many_as_a_whole_number": (words(t="9007199254740993"), "--steps must be at most 2^53"),
    "delta_zero": (words(d="0"), "delta must lie strictly between 0 and 1, got 0"),
    "delta_one": (words(d="1"), "delta must lie strictly"),
    "delta_nan": (words(d="nan"), "delta must lie strictly"),
    "delta_missing": (["epsilon", "--phase", "0.1:1:10"], "--delta must be given"),
    "nothing_ran": (["epsilon", "--delta", "1e-5"], "what ran must be given in exactly one way"),
    "two_ways": ([*words(), "--phase", "0.1:1:10"], "what ran must be given in exactly one way"),
    "half_a_way": (["epsilon", "-q", "0.1", "-d", "1e-5"], "must be given together"),
    "phase_of_two": (["epsilon", "--phase", "0.1:1", "-d", "1e-5"], "--phase must be Q:SIGMA:STEPS"),
    "truncated_phase_of_four": (["epsilon", "--truncated-phase", "3:9:.1:1", "-d", "1e-5"], "must be CAP:UNITS:Q:SIGMA:STEPS"),
    "truncated_phase_too_large": (["epsilon", "--truncated-phase", "9:3:.1:1:1", "-d", "1e-5"], "cap must be"),
    "fixed_phase_too_large": (["epsilon", "--fixed-phase", "9:3:1:1", "-d", "1e-5"], "batch must be"),
    "unknown_accountant": ([*words(), "--accountant", "gdp"], 'accountant must be one of contour, prv, rdp; got "gdp"'),
    "unknown_adjacency": ([*words(), "--adjacency", "near"], "adjacency must be one of"),
    "fixed_size_of_zero_out": (["epsilon", "--fixed-phase", "3:9:1:1", "-d", "1e-5"], "under zero-out adjacency"),
    "event_without_count": (["epsilon", "--event", "laplace", "-d", "1e-5"], "--event must be COUNT:"),
    "event_that_is_no_json": (["epsilon", "--event", "1:{", "-d", "1e-5"], "--event must be JSON"),
    "event_of_no_kind": (["epsilon", "--event", '1:{"type":"cauchy"}', "-d", "1e-5"], "event type must be one of"),
    "dp_event_missing": (["epsilon", "--dp-event", "nowhere.json", "-d", "1e-5"], "--dp-event must name a file"),
    "epsilon_negative": (["delta", "--phase", "0.1:1:10", "--epsilon", "-1"], "epsilon must be finite and >= 0"),
    "no_noise_reaches_it": (["noise", "-e", "1e-9", "-d", "1e-9", "-q", "1", "-t", "1"], "target epsilon must be reachable"),
    "noise_for_epsilon_zero": (["noise", "-e", "0", "-d", "1e-9", "-q", "1", "-t", "1"], "target epsilon must be > 0"),
    "rate_for_epsilon_zero": (["rate", "-e", "0", "-d", "1e-9", "-s", "1", "-t", "1"], "target epsilon must be > 0"),
    "noise_for_no_steps": (["noise", "-e", "1", "-d", "1e-9", "-q", "1", "-t", "0"], "steps must be > 0"),
    "rate_that_is_none": (["tradeoff", "--phase", "0.1:1:10", "--priors", "1"], "must lie strictly between 0 and 1"),
    "two_curves": (["curve", "--phase", "0.1:1:10", "--deltas", "1e-5", "--epsilons", "1"], "ask for one"),
    "no_points": (["curve", "--phase", "0.1:1:9", "--over-steps", "-d", "1e-5", "--points", "0"], "--points must lie"),
    "unknown_option": ([*words(), "--sigma", "1"], "--sigma"),
    "unknown_command": (["guess", "-d", "1"], 'the command must be one of epsilon, delta, curve, events, zcdp, tradeoff, noise, '
                        'steps, rate, report, verify, register; got "guess"'),
    "command_misspelt": (["epsilom", "-d", "1"], "did you mean epsilon?"),
    "option_misspelt": ([*words(), "--noise-multplier", "1"], "did you mean --noise-multiplier?"),
    "no_command": ([], "subcommand is required"),
    "ledger_missing": (["epsilon", "--ledger", "nowhere.jsonl", "-d", "1e-5"], "--ledger must name a file"),
}  # fmt: skip


@pytest.mark.parametrize("line, sentence", BAD.values(), ids=BAD.keys())
def test_bad_input_is_a_sentence(account, line, sentence):
    done = account(*line)
    assert done.returncode == 2 and done.stdout == ""
    assert sentence in done.stderr and done.stderr.count("\n") == 1


def test_steps_say_where_their_search_ends(account):
    line = ["steps", "-e", "100", "-d", "1e-3", "-q", "1e-9", "-s", "900"]
    assert answer(account(*line, "--json"))["search_ended_at"] == "the budget allows 2^40 steps or more"
    assert "where the search ends" in account(*line).stdout
    assert "search_ended_at" not in answer(account("steps", "-e", "3", "-d", "1e-5", "-q", "0.01", "-s", "1", "--json"))


@pytest.mark.parametrize(
    "line, end",
    {
        "least_noise": (["noise", "-e", "1e7", "-d", "1e-3", "-q", "0.1", "-t", "2"], "less noise would do as well"),
        "least_noise_of_bins": (["noise", "-e", "1e6", "-d", "1e-3", "--bins", "4", "--passes", "1"], "less noise would do as well"),
        "whole_data": (["rate", "-e", "20", "-d", "1e-3", "-s", "5", "-t", "3"], "no sampling is needed"),
    }.values(),
    ids=["least_noise", "least_noise_of_bins", "whole_data"],
)
def test_other_searches_say_where_they_end(account, line, end):
    assert answer(account(*line, "--json"))["search_ended_at"] == end
    assert f", where the search ends: {end}" in account(*line).stdout


def test_truncation_costs_more_than_poisson(account):
    poisson = answer(account("epsilon", "--phase", "256/60000:1.1:5000", "-d", "1e-6", "--json"))["upper"]
    line = ["epsilon", "--truncated-phase", "300:60000:256/60000:1.1:5000", "-d", "1e-6", "--json", "--adjacency"]
    assert poisson < answer(account(*line, "add-or-remove"))["upper"] < answer(account(*line, "zero-out"))["upper"] < 6


# ---------------------------------------------------------------------------------------------------------------------
# Ledgers, reports, verification


def test_a_ledger_is_its_events(account, ledger):
    found = answer(account("epsilon", "--ledger", ledger, "--json"))
    same = answer(account("epsilon", "--phase", f"{RATE}:{SIGMA}:{STEPS}", "--delta", "1e-5", "--json"))
    assert (found["upper"], found["delta"]) == (same["upper"], 1e-5)
    assert found["ledger_head"] == hashlib.sha256(ledger.read_bytes().splitlines()[-1]).hexdigest()


def test_a_ledger_cut_in_its_last_line_counts_what_is_certain_and_says_so(account, ledger):
    ledger.write_bytes(ledger.read_bytes()[:-20])
    done = account("epsilon", "--ledger", ledger, "--json")
    same = answer(account("epsilon", "--phase", f"{RATE}:{SIGMA}:{STEPS - 1}", "--delta", "1e-5", "--json"))
    assert answer(done)["upper"] == same["upper"]
    assert f"the {STEPS - 1} whole releases before it are counted" in answer(done)["notes"][0]
    assert "cut short" in account("epsilon", "--ledger", ledger).stderr
    assert "cut short" in account("verify", "--ledger", ledger).stdout


def test_report_is_rebuilt_and_verified(account, ledger, tmp_path):
    out = tmp_path / "new" / "folder"
    done = account("report", "--ledger", ledger, "--delta", "1e-6", "--output", out)
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "privacy_report.json").read_text())
    assert report["guarantee"]["delta"] == 1e-6 and report["guarantee"]["accountant"] == "contour"
    epsilon = report["guarantee"]["epsilon"]
    assert 0 < epsilon["lower"] <= epsilon["estimate"] <= epsilon["upper"] < report["rdp"]["epsilon"]["upper"]
    page = (out / "privacy_report.html").read_text()
    assert f"ε ≤ {math.ceil(epsilon['upper'] * 1e4) / 1e4:.4f}" in page and "<script" not in page
    head = report["provenance"]["ledger_head"]
    verified = account("verify", "--ledger", ledger, "--report", out / "privacy_report.json", "--head", head)
    assert verified.returncode == 0 and verified.stdout.endswith("Nothing differs.\n"), verified.stdout


def test_a_report_that_lies_is_found_out(account, ledger, tmp_path):
    assert account("report", "--ledger", ledger, "--output", tmp_path).returncode == 0
    path = tmp_path / "privacy_report.json"
    report = json.loads(path.read_text())
    report["guarantee"]["epsilon"]["upper"] /= 2
    path.write_text(json.dumps(report))
    done = account("verify", "--ledger", ledger, "--report", path)
    assert done.returncode == 1 and "DIFFERS      guarantee.epsilon.upper: the report says" in done.stdout


def test_lines_taken_off_the_end_show_against_a_head_kept_elsewhere(account, tmp_path):
    path = tmp_path / "ledger.jsonl"
    lines = write_ledger(path, releases=5)
    head = hashlib.sha256(lines[-1].encode()).hexdigest()
    assert account("verify", "--ledger", path, "--head", head).returncode == 0
    path.write_text("".join(line + "\n" for line in lines[:-1]))
    alone = account("verify", "--ledger", path)
    assert alone.returncode == 0 and "cannot tell  whether the last line was changed" in alone.stdout
    assert alone.stdout.endswith("Nothing differs that a chain without a head shows.\n")
    done = account("verify", "--ledger", path, "--head", head)
    assert done.returncode == 1 and "lines are missing" in done.stdout
    assert account("verify", "--ledger", path, "--head", "abc").returncode == 2


def test_facts_of_a_file_reach_the_report_and_cannot_contradict_the_ledger(account, tmp_path):
    path, facts = tmp_path / "ledger.jsonl", tmp_path / "facts.json"
    write_ledger(path, releases=3, facts={"sampler": {"executed": "shuffled"}})
    facts.write_text('{"tuning": {"number_of_runs": 7}}')
    command = ["report", "--ledger", path, "--output", tmp_path / "out", "--force", "--facts", facts]
    assert account(*command).returncode == 0
    report = json.loads((tmp_path / "out" / "privacy_report.json").read_text())
    assert report["tuning"]["number_of_runs"] == 7
    assert report["guarantee"]["applies"] is False and report["guarantee"]["epsilon"]["upper"] is None
    facts.write_text('{"sampler": {"executed": "poisson"}}')
    refused = account(*command)
    assert refused.returncode == 2 and "facts must not contradict the ledger's header" in refused.stderr


# ---------------------------------------------------------------------------------------------------------------------
# Somebody else's accountant


def test_dp_accounting_finds_the_same_epsilon(account, tmp_path):
    """Google's PLD accountant, its mesh 1e-4 and pessimistic: above ours, by little."""
    dp_accounting = pytest.importorskip("dp_accounting", reason="dp_accounting is not installed (requirements.txt)")
    from dp_accounting import pld

    path = tmp_path / "ledger.jsonl"
    write_ledger(path, releases=200)
    assert account("report", "--ledger", path, "--delta", "1e-5", "--output", tmp_path).returncode == 0
    ours = json.loads((tmp_path / "privacy_report.json").read_text())["guarantee"]["epsilon"]
    theirs = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    events = Counter(json.dumps(json.loads(line)["event"]) for line in path.read_text().splitlines()[1:])
    for text, count in events.items():  # each composition is a convolution there: one for all equal events
        event = json.loads(text)
        gaussian = dp_accounting.GaussianDpEvent(event["noise_multiplier"])
        theirs.compose(dp_accounting.PoissonSampledDpEvent(event["sampling_rate"], gaussian), count)
    assert sum(events.values()) == 200
    epsilon = theirs.get_epsilon(1e-5)
    assert ours["lower"] <= epsilon <= ours["upper"] + 1e-3


SECRET = "zqxsecret"
NOT_MEANT = {  # an option that names a file, another file's content
    "dp_event_lines": ("--dp-event", f'{{"text": "{SECRET}"}}\n{{"text": "b"}}\n'), "dp_event_object": ("--dp-event", f'{{"text": "{SECRET}"}}'),
    "dp_event_field": ("--dp-event", f'{{"class_name": "GaussianDpEvent", "noise_multiplier": 1, "text": "{SECRET}"}}'),
    "dp_event_value": ("--dp-event", f'{{"class_name": "GaussianDpEvent", "noise_multiplier": "{SECRET}"}}'), "facts": ("--facts", f'"{SECRET}"'),
}  # fmt: skip


@pytest.mark.parametrize("option, content", NOT_MEANT.values(), ids=NOT_MEANT)
def test_a_file_that_was_not_meant_is_not_shown(account, tmp_path, option, content):
    (tmp_path / "file").write_text(content)
    write_ledger(tmp_path / "ledger", releases=1)
    words = ["report", "--ledger", tmp_path / "ledger", "--output", tmp_path / "o"] if option == "--facts" else ["epsilon"]
    done = account(*words, "--delta", "1e-5", option, tmp_path / "file")
    assert done.returncode == 2 and SECRET not in done.stderr and done.stderr.count("\n") == 1


def test_a_receipt_never_overwrites_the_ledger(account, tmp_path):
    write_ledger(tmp_path / "ledger", releases=1)
    before = (tmp_path / "ledger").read_bytes()
    done = account("report", "--ledger", tmp_path / "ledger", "--delta", "1e-5", "--output", tmp_path / "o", "--receipt", tmp_path / "ledger")
    assert done.returncode == 2 and "--receipt would overwrite" in done.stderr
    assert (tmp_path / "ledger").read_bytes() == before
