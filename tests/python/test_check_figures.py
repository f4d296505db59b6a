"""tools/check_figures.py: that it sees a figure that rots, a ratio that slips, and a figure that nobody measured.

Benches are not run: their reports are made up here.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENTS = ["README.md", "docs/performance.md"]
# Of the first ratio in docs/performance.md that the headline has.
RUN = ("28.9M_T512", 4)


RESULTS = "bench/results/step_peers.json"
RATCHET = "bench/results/ratchet.json"
NAME = f"step {RUN[0]} x{RUN[1]} private/plain throughput"
# What the row of RUN prints in these tests, whatever was measured last.
ROW = "| 28.9M | 512 | 4 | 6.63 | 0.95 | 1.90 | 1.59 | 1096 | 1.22 | 0.51 |"
DEVICE = "CPU, 2 cores, of some kind"
BEST = {DEVICE: {NAME: {"ratio": 0.88, "noise": 0.01, "commit": "a121dd9"}}}


@pytest.fixture
def tree(repository, tmp_path):
    """The documents and the results, to be changed."""
    shutil.copytree(repository / "bench/results", tmp_path / "bench/results")
    for document in DOCUMENTS:
        (tmp_path / document).parent.mkdir(exist_ok=True)
        shutil.copy(repository / document, tmp_path / document)
    performance = tmp_path / "docs/performance.md"
    text, rows = re.subn(r"^\| 28\.9M \| 512 \| 4 \|.*$", ROW, performance.read_text(), flags=re.MULTILINE)
    assert rows == 1
    performance.write_text(text)
    change_json(tmp_path / RESULTS, measured_as_in_the_row)
    (tmp_path / RATCHET).write_text(json.dumps(BEST))
    return tmp_path


def measured_as_in_the_row(report):
    run = run_of(report)
    run["private"] |= {"seconds": 6.635, "peak_memory_mib": 1096}
    run |= {"private_over_plain_throughput": 0.95, "private_over_fsdp2_throughput": 1.90, "private_over_fsdp2_accumulate_throughput": 1.59,
            "memory_private_over_plain": 1.22, "memory_private_over_fsdp2": 0.51}  # fmt: skip


def run_of(report):
    return next(run for run in report["runs"] if (run["shape"], run["microbatches"]) == RUN)


@pytest.fixture
def check(repository, tree):
    def run(*words: object) -> subprocess.CompletedProcess:
        command = [sys.executable, repository / "tools/check_figures.py", "--root", tree, *words]
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)

    return run


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{text.count(old)} times in {path.name}: {old}"
    path.write_text(text.replace(old, new))


def change_json(path: Path, function) -> None:
    content = json.loads(path.read_text())
    function(content)
    path.write_text(json.dumps(content, ensure_ascii=False))


# --- without measuring ------------------------------------------------------------------------------------------------


def test_every_figure_of_the_documents_stands_beside_its_run(check):
    done = check("--documents")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 faults" in done.stdout and not done.stdout.startswith("0 figures")


RUN_ROW = "| 28.9M | 512 | 4 | 6.63 |"


def another_value(tree):
    change(tree / "docs/performance.md", RUN_ROW, "| 28.9M | 512 | 4 | 5.63 |")


def no_such_run(tree):
    change(tree / "docs/performance.md", RUN_ROW, "| 28.9M | 768 | 4 | 6.63 |")


def a_row_more_of_another_engine(tree):
    row = "| Opacus 1.6 `ghost_fsdp` |"
    change(tree / "README.md", row, "| Another engine | 1.50 | 1000 | 900 |\n" + row)


def a_column_more(tree):
    path = tree / "README.md"
    text, rows = re.subn(r"^(\| Opacus 1\.6 `ghost_fsdp` \|.*\|)$", r"\1 17 |", path.read_text(), flags=re.MULTILINE)
    assert rows == 1
    path.write_text(text)


def a_table_more(tree):
    path = tree / "docs/performance.md"
    path.write_text(path.read_text() + "\n| shape | seconds |\n|---|---|\n| large | 12.5 |\n")


def a_number_in_prose(tree):
    path = tree / "README.md"
    path.write_text(path.read_text() + "\nA step takes 12 ms.\n")


def prose_that_changed(tree):
    change(tree / "docs/performance.md", "peak 999 MiB", "peak 899 MiB")


def stated_figures_that_changed(tree):
    change(tree / "docs/performance.md", "| 5.4891 | 5.3649 |", "| 5.4891 | 5.2649 |")


def a_table_that_went(tree):
    change(tree / "README.md", "| engine | throughput / FSDP2 |", "| engine | throughput |")


def no_plan(tree):
    change_json(tree / RESULTS, lambda report: run_of(report).pop("plan"))


def no_commit(tree):
    change_json(tree / "bench/results/figures.json", lambda entries: entries["prose"][0].pop("commit"))


FAULTS = {
    another_value: "prints 5.63, but its run gave 6.635",
    no_such_run: "no run of 28.9M_T768 with 4 microbatch(es)",
    a_row_more_of_another_engine: "Another engine | throughput / FSDP2: a figure without an entry",
    a_column_more: "a figure without an entry",
    a_table_more: "a table of figures without an entry in figures.json: shape | seconds",
    a_number_in_prose: "a figure without an entry in figures.json",
    prose_that_changed: "not there as figures.json has it: peak 999 MiB",
    stated_figures_that_changed: "other figures than figures.json states",
    a_table_that_went: "an entry for a table that is not there",
    no_plan: "in step_peers.json has no plan",
    no_commit: "no commit for",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_figure_that_rots_is_seen(fault, tree, check):
    fault(tree)
    done = check("--documents")
    assert done.returncode == 1
    assert FAULTS[fault] in done.stdout, done.stdout


# --- beside what was measured -----------------------------------------------------------------------------------------


def report_of(seconds: float, plain: list[float], peak: float = 1043.0) -> dict:
    """Of bench/step_peers.py, RUN alone."""
    rounds = {"private": [[seconds, seconds, peak]] * len(plain), "plain": [[s, s, 852.0] for s in plain],
              "fsdp2": [[s * 2, s, 2050.0] for s in plain]}  # fmt: skip
    return {"device": DEVICE, "commit": "abc1234", "runs": [{"shape": RUN[0], "microbatches": RUN[1], "rounds": rounds}]}


@pytest.fixture
def judge(check, tree):
    def run(report: dict, *words: str) -> subprocess.CompletedProcess:
        file = tree / "report.json"
        file.write_text(json.dumps(report))
        return check("--measured", file, "--only", f"step {RUN[0]} x{RUN[1]} private/plain", *words)

    return run


def printed(value: str, tree: Path) -> None:
    """Of the throughput beside the plain step, in the document and in its run."""
    change(tree / "docs/performance.md", "| 6.63 | 0.95 |", f"| 6.63 | {value} |")
    change_json(tree / RESULTS, lambda report: run_of(report).update(private_over_plain_throughput=float(value)))


def test_a_ratio_within_the_noise_of_the_run_is_right(judge, tree):
    printed("0.89", tree)
    done = judge(report_of(7.0, [6.2, 6.3, 6.35], peak=1040))
    assert done.returncode == 0, done.stdout
    assert "2 ratios measured, 0 faults" in done.stdout


def test_a_ratio_that_is_off_by_more_than_the_noise_is_seen(judge, tree):
    printed("0.98", tree)
    done = judge(report_of(7.0, [6.2, 6.3, 6.35], peak=1040))
    assert done.returncode == 1
    assert "the printed figure is off by -0.080" in done.stdout


def test_more_memory_is_seen(judge, tree):
    printed("0.89", tree)
    done = judge(report_of(7.0, [6.2, 6.3, 6.35], peak=1200))
    assert done.returncode == 1
    assert "the printed figure is off by +0.188" in done.stdout


# 0.88 is the best that was measured; the document has been made to follow.
@pytest.mark.parametrize("value, plain, slips", [("0.83", 5.81, True), ("0.84", 5.88, False)])
def test_five_percent_less_than_the_best_is_seen(value, plain, slips, judge, tree):
    printed(value, tree)
    done = judge(report_of(7.0, [plain] * 3, peak=1040))
    assert done.returncode == (1 if slips else 0)
    assert ("slipped from the best, 0.880 at a121dd9" in done.stdout) == slips


def test_a_run_on_a_busy_machine_says_nothing(judge, tree):
    printed("0.89", tree)
    done = judge(report_of(7.0, [6.2, 6.3, 7.5], peak=1040))
    assert done.returncode == 1
    assert "no verdict: the rounds differ too much" in done.stdout


def test_a_report_without_the_run_is_no_success(judge, tree):
    done = judge({"commit": "abc1234", "runs": []})
    assert done.returncode == 1
    assert "none of the chosen ones is in the report" in done.stdout


def best(tree: Path, device: str = DEVICE) -> dict:
    return json.loads((tree / RATCHET).read_text())[device]


def test_what_was_best_on_another_processor_is_no_slip(judge, tree):
    printed("0.83", tree)
    report = report_of(7.0, [5.81] * 3, peak=1040) | {"device": "another"}
    done = judge(report, "--raise-ratchet")
    assert done.returncode == 0 and "slipped" not in done.stdout
    assert best(tree) == BEST[DEVICE]
    assert best(tree, "another")[NAME]["ratio"] == 0.83


def test_the_ratchet_is_raised_by_more_than_noise_and_never_lowered(judge, tree):
    for plain, expected in (([6.3] * 3, 0.9), ([6.33] * 3, 0.9), ([6.1] * 3, 0.9), ([6.0, 7.0, 8.0], 0.9)):
        judge(report_of(7.0, plain), "--raise-ratchet")
        assert best(tree)[NAME]["ratio"] == pytest.approx(expected), plain
    assert best(tree)[NAME]["commit"] == "abc1234"


def test_the_ratchet_keeps_ratios_of_ours_alone_each_with_its_runs_commit(repository, check, tree):
    results = repository / "bench/results/peers.json"
    check("--measured", results, "--all", "--raise-ratchet")
    of_python = {name: kept for name, kept in best(tree, json.loads(results.read_text())["device"]).items() if name.startswith("python ")}
    assert of_python and all(name.split()[3].startswith("ghostshard") for name in of_python)
    assert not {kept["commit"] for kept in of_python.values()} & {json.loads(results.read_text())["commit"]}


def test_the_ratchet_is_raised_only_when_asked_and_never_under_a_budget(judge, tree):
    before = best(tree)
    judge(report_of(7.0, [6.6] * 3))
    judge(report_of(7.0, [6.6] * 3), "--raise-ratchet", "--memory-budget", "1.05x")
    assert best(tree) == before


# --- writing ----------------------------------------------------------------------------------------------------------


def test_the_tables_take_what_the_latest_runs_gave(check, tree):
    """And nothing else changes."""
    performance = tree / "docs/performance.md"
    before = performance.read_text()
    change_json(tree / RESULTS, lambda report: run_of(report)["private"].update(seconds=7.004))
    done = check("--write")
    assert done.returncode == 0, done.stdout
    assert performance.read_text() == before.replace(ROW, ROW.replace("6.63", "7.00"))


def test_a_cell_whose_run_is_gone_stays_and_is_a_fault(check, tree):
    change_json(tree / RESULTS, lambda report: report["runs"].remove(run_of(report)))
    done = check("--write")
    assert done.returncode == 1 and "no run of 28.9M_T512" in done.stdout
    assert ROW in (tree / "docs/performance.md").read_text()
