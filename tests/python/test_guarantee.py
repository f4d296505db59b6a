"""docs/guarantee.md names code and tests for each fact of its proof: all of them exist, and planted faults try every fact."""

import re
import tomllib

import pytest


@pytest.fixture(scope="module")
def theorem(repository):
    return (repository / "docs/guarantee.md").read_text(encoding="utf-8").split("## Theorem\n")[1].split("\n## ")[0]


@pytest.fixture(scope="module")
def facts(theorem):
    """[fact, code, tests], one row for each fact."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in theorem.splitlines() if re.match(r"\| \d+\. ", line)]
    assert len(rows) >= 11 and all(len(row) == 3 and all(row) for row in rows)
    return rows


def test_code_and_tests_of_each_fact_are_in_the_tree(facts, repository):
    named = {name for row in facts for name in re.findall(r"`([^`]+/[^`]+)`", row[1] + row[2])}
    missing = [name for name in named if not any((repository / top / name).exists() for top in ("", "bindings/python"))]
    assert not missing


def test_groups_of_tests_of_each_fact_exist(facts, repository):
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (repository / "tests").rglob("*.cpp"))
    written = "\n".join(re.findall(r"(?:TEST(?:_[FP])?|INSTANTIATE_TEST_SUITE_P|TYPED_TEST)\(\s*(\w+)", sources))
    for row in facts:
        for groups in re.findall(r"`\w+_test` ([\w, ]+)", row[2]):
            for group in groups.split(", "):
                assert group in written, group


def test_planted_faults_try_every_fact(facts, repository):
    tried = {entry["fact"] for entry in tomllib.loads((repository / "tools/mutants/mutants.toml").read_text())["mutant"]}
    assert tried == {int(row[0].split(".")[0]) for row in facts} | {"optimizer"}
