"""How a step is computed: --memory-budget, --explain-plan and --clipping of the program."""

import json

from program import PLAIN, PRIVATE, arguments, json_lines, metrics, weights

UNITS = 24
# Every text in every step and almost no noise: whatever the key, the same run.
STEP = {**PRIVATE, "--steps": "4", "--optimizer": "sgd", "--learning-rate": "0.1", "--expected-batch": str(UNITS),
        "--noise-multiplier": "1e-4", "--eval-data": "public.safetensors"}  # fmt: skip


def test_explain_plan_has_a_line_for_every_block(program):
    done = program.run(arguments(PRIVATE, explain_plan="", eval_data="public.safetensors"))
    assert done.code == 0, done.err
    table = done.err[done.err.index("Plan of one logical batch"):].splitlines()
    names = [line.split()[0] for line in table[2:] if line.startswith(("embeddings", "transformer.", "end"))]
    assert names == ["embeddings", "transformer.h.0", "transformer.h.1", "end"]
    assert any(line.startswith("Memory on a rank:") and "no budget: at most 1.5 times" in line for line in table)
    assert any(line.startswith("Sent by a rank for each logical batch:") for line in table)


def test_explain_plan_takes_its_value_as_one_word(program):
    done = program.run([*arguments(PRIVATE), "--explain-plan", "all"])
    assert done.code == 2
    assert "not expected: all; did you mean --explain-plan=all?" in done.err


def test_explain_plan_all_prints_the_plans_of_all_budgets(program):
    done = program.run(arguments(PRIVATE, eval_data="public.safetensors") + ["--explain-plan=all"])
    assert done.code == 0, done.err
    table = done.err[done.err.index("Plans by memory budget"):].splitlines()[2:]
    rows = [(float(words[0]), float(words[3])) for words in (line.split() for line in table) if words[1:2] == ["MiB"]]
    assert len(rows) > 1
    assert all(a[0] >= b[0] and a[1] < b[1] for a, b in zip(rows, rows[1:]))


def test_a_file_of_options_says_what_to_explain(program):
    for value, said in (("true", True), ('"plan"', True), ('"all"', True), ("false", False)):
        (program.folder / "run.toml").write_text(f"explain-plan = {value}\n")
        done = program.run(arguments(PRIVATE, output=f"run-{said}-{value.strip(chr(34))}", config="run.toml"))
        assert done.code == 0, done.err
        assert ("Plan of one logical batch" in done.err) == said
        assert ("Plans by memory budget" in done.err) == ("all" in value)


def test_a_budget_may_be_given_in_steps_without_privacy(program):
    done = program.run(arguments(PRIVATE, memory_budget="1.4x", explain_plan="", eval_data="public.safetensors"))
    assert done.code == 0, done.err
    assert "budget 1.4 times the step without privacy" in done.err


def test_a_budget_that_is_none_is_refused(program):
    done = program.run(arguments(PRIVATE, memory_budget="plenty"))
    assert done.code == 2
    assert "--memory-budget" in done.err and "got 'plenty'" in done.err
    assert not (program.folder / "run").exists()


def test_a_budget_that_nothing_meets_is_refused_with_the_least_that_would_do(program):
    done = program.run(arguments(PRIVATE, memory_budget="0.01"))
    assert done.code == 2
    assert "the memory budget must be at least" in done.err and "got 0.0 MiB" in done.err
    assert not (program.folder / "run").exists()
    least = done.err.split("at least ")[1].split(" MiB")[0]
    assert program.run(arguments(PRIVATE, memory_budget=str(float(least) + 0.1))).code == 0


def test_the_budget_changes_what_a_step_costs_and_not_what_it_releases(program):
    found = {}
    for name, changes in {"plenty": {"memory_budget": "1000"}, "default": {}, "checkpointed": {"activation_checkpointing": ""}}.items():
        done = program.run(arguments(STEP, output=name, **changes))
        assert done.code == 0, done.err
        found[name] = weights(program.folder / name)
    for name in ("default", "checkpointed"):
        for parameter, value in found["plenty"].items():
            # The same clipped gradients in other sums, 1e-5 of a step of at most 0.1, in 4 steps; the noise moves a
            # weight by 0.1·1e-4/24·5 = 2e-6 in each.
            assert abs(value - found[name][parameter]).max() < 4e-5


def test_clipping_per_layer_is_written_down_and_changes_the_run(program):
    for clipping in ("flat", "per-layer"):
        done = program.run(arguments(STEP, clipping=clipping, output=clipping))
        assert done.code == 0, done.err
    header = json_lines(program.folder / "per-layer" / "ledger.jsonl")[0]
    assert header["clipping"].startswith("per layer")
    report = json.loads((program.folder / "per-layer" / "privacy_report.json").read_text())
    assert report["mechanism"]["clipping_style"].startswith("per layer")
    flat = json.loads((program.folder / "flat" / "privacy_report.json").read_text())
    assert flat["mechanism"]["clipping_style"].startswith("flat")
    assert report["guarantee"]["epsilon"] == flat["guarantee"]["epsilon"]
    assert metrics(program.folder / "flat")[-1]["eval_loss"] != metrics(program.folder / "per-layer")[-1]["eval_loss"]


def test_a_run_without_privacy_has_a_plan_too(program):
    done = program.run(arguments(PLAIN, explain_plan=""))
    assert done.code == 0 and "Plan of one logical batch" in done.err
