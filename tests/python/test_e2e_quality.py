"""bench/e2e_quality.py: how it tunes, what it keeps apart, and what it writes of runs. Nothing is trained."""

import json
import math
import stat
import sys

import pytest


@pytest.fixture(scope="module")
def bench(repository):
    sys.path.insert(0, str(repository / "bench"))
    try:
        import e2e_quality

        yield e2e_quality
    finally:
        sys.path.remove(str(repository / "bench"))


@pytest.mark.parametrize("best", [0.01, 0.04, 0.0025])
def test_the_rate_is_the_best_with_a_worse_one_on_either_side(bench, best):
    tried = []

    def loss_at(rate):
        tried.append(rate)
        return abs(math.log2(rate / best))

    assert bench.tuned_rate(loss_at, 0.01) == best
    assert sorted(tried) == sorted(set(tried)), "a rate is tried once"
    assert min(tried) < best < max(tried)


def test_a_loss_that_always_falls_does_not_tune_for_ever(bench):
    tried = []
    bench.tuned_rate(lambda rate: tried.append(rate) or -rate, 1.0)
    assert len(tried) == bench.MOST_RATES


def test_tuning_and_test_share_no_row(bench, tmp_path):
    whole = tmp_path / "whole.csv"
    whole.write_text("mr,ref\n" + "".join(f'"name[{i}], x",text {i}\n' for i in range(10)))
    parts = {name: path.read_text().splitlines() for name, path in bench.rows_apart(whole, 4, tmp_path).items()}
    assert [len(lines) for lines in (parts["tune"], parts["test"])] == [1 + 3, 1 + 7]
    assert parts["tune"][0] == parts["test"][0] == "mr,ref"
    assert not set(parts["tune"][1:]) & set(parts["test"][1:])


@pytest.fixture
def program(tmp_path):
    """Stands in for the training program: its loss is that of the rate 0.02, and it counts its calls."""
    file = tmp_path / "program"
    file.write_text(f"""#!{sys.executable}
import json, math, pathlib, sys
flags = dict(zip(sys.argv[1:], sys.argv[2:]))
output = pathlib.Path(flags["--output"]); output.mkdir()
loss = 3 + abs(math.log2(float(flags["--learning-rate"]) / 0.02)) + int(flags["--seed"]) / 100
(output / "metrics.jsonl").write_text(json.dumps({{"eval_loss": 7.0}}) + "\\n" + json.dumps({{"eval_loss": loss}}) + "\\n")
with open({str(tmp_path / "calls")!r}, "a") as calls: calls.write("run\\n")
""")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def test_a_cell_is_tuned_then_run_with_each_seed_and_never_twice(bench, program, tmp_path):
    config = {"run": {"steps": 2, "delta": 1e-5, "clip-norm": 1}, "seeds": [1, 2, 3], "tuning_seed": 0,
              "methods": [{"name": "without privacy", "flags": {"non-private": True}, "first_rate": 0.01}]}  # fmt: skip
    output, calls = tmp_path / "output.json", tmp_path / "calls"
    (cell,) = bench.cells_of(config)
    result = bench.measure(bench.Runs(config, program, tmp_path, output), cell)
    assert (result["rate"], result["losses"]) == (0.02, [3.01, 3.02, 3.03])
    assert result["standard_error"] == pytest.approx(0.01 / 3**0.5)
    assert len(calls.read_text().splitlines()) == 4 + 3
    assert bench.measure(bench.Runs(config, program, tmp_path, output), cell) == result
    assert len(calls.read_text().splitlines()) == 4 + 3, "what the file holds is not run again"
    assert {run["part"] for run in json.loads(output.read_text())["runs"]} == {"tune", "test"}
    (method,) = config["methods"]
    assert "| `--non-private` | – | – | 0.02 | 3.020 | 0.006 |" in bench.table([result], [method])
    assert "| plain | – | – | 0.02 | 3.020 | 0.006 |" in bench.table([result], [method | {"label": "plain"}])


def two_methods(**flags):
    return {"run": {"steps": 2, "delta": 1e-5, "clip-norm": 1}, "seeds": [1, 2], "tuning_seed": 0,
            "methods": [{"name": "one", "flags": flags, "first_rate": 0.02},
                        {"name": "two", "flags": {"momentum": 0.9}, "first_rate": 0.02}]}  # fmt: skip


def test_runs_of_some_methods_are_made_and_the_others_kept(bench, program, tmp_path):
    output, calls = tmp_path / "output.json", tmp_path / "calls"
    config = two_methods()
    one, two = bench.cells_of(config)
    runs = lambda config, *how: bench.Runs(config, program, tmp_path, output, *how)
    bench.measure(runs(config, ["one"]), one)
    with pytest.raises(bench.RunIsMissing):
        bench.measure(runs(config, ["one"]), two)
    assert [result["method"] for result in json.loads(output.read_text())["results"]] == ["one"], "the other lacks runs"
    bench.measure(runs(config, ["two"]), two)
    made = len(calls.read_text().splitlines())
    kept = json.loads(output.read_text())
    assert [result["method"] for result in kept["results"]] == ["one", "two"]
    assert all(run["commit"] for run in kept["runs"])
    bench.measure(runs(config, None, ["one"]), one)
    assert len(calls.read_text().splitlines()) == made + 3 + 2, "one, again"

    changed = two_methods(clipping="automatic")
    assert {run["method"] for run in runs(changed).done} == {"two"}, "a run is one of its flags"
    changed = two_methods() | {"run": {"steps": 3, "delta": 1e-5, "clip-norm": 1}}
    assert runs(changed).done == []


def test_a_run_says_the_commit_it_was_made_at(bench):
    config = two_methods()
    known = {"commit": "abc", "config": config, "runs": [{"method": "one"}, {"method": "two", "commit": "def"}]}
    assert [run["commit"] for run in bench.still_valid(known, config)] == ["abc", "def"]


def test_the_table_takes_the_place_of_the_one_with_its_head(bench, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n\n| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n\nafter\n\n| c |\n|---|\n| 5 |\n")
    bench.put_table("| a | b |\n|---|---|\n| 7 | 8 |\n", page)
    assert page.read_text() == "before\n\n| a | b |\n|---|---|\n| 7 | 8 |\n\nafter\n\n| c |\n|---|\n| 5 |\n"


def test_the_table_in_the_docs_is_the_results(bench, repository):
    config = json.loads((repository / "bench" / "e2e_quality.json").read_text())
    kept = json.loads((repository / "bench" / "results" / "e2e_quality.json").read_text())
    assert kept["config"]["methods"] == config["methods"]
    assert bench.table(kept["results"], config["methods"]) in (repository / "docs" / "quality.md").read_text()


def test_each_budget_of_a_method_is_a_cell(bench, repository):
    config = json.loads((repository / "bench" / "e2e_quality.json").read_text())
    cells = bench.cells_of(config)
    assert len({(cell["method"], cell["epsilon"]) for cell in cells}) == len(cells)
    assert [cell["flags"] for cell in cells if cell["method"] == "8 noise bands"] == [
        {"noise-bands": 8, "target-epsilon": epsilon} for epsilon in (8, 3, 1)
    ]
