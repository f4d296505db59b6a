"""The list of faults that tests must see (tools/mutants): it fits the tree, and the tests that it names exist."""

import importlib.util
import re
import sys

import pytest

PROGRAMS = {
    "accountant_test": ("tests/accountant",),
    "kernels_test": ("tests/kernels",),
    "kernels_emulated_test": ("tests/kernels",),
    "fsdp_test": ("tests/fsdp",),
    "dp_test": ("tests/dp",),
    "gpt2_test": ("tests/gpt2",),
}


@pytest.fixture(scope="module")
def runner(repository):
    spec = importlib.util.spec_from_file_location("mutants_run", repository / "tools" / "mutants" / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def mutants(runner):
    return runner.read_list()


def test_every_old_text_is_in_its_file_exactly_once(runner, mutants):
    assert runner.faults_of(mutants) == []


def test_there_are_enough_of_every_kind(mutants):
    assert len(mutants) >= 40
    assert sum(mutant.short for mutant in mutants) == 4
    assert all(mutant.why and mutant.killed_by for mutant in mutants)
    assert any(edit.file.endswith(".py") for mutant in mutants for edit in mutant.edits)


def test_the_tests_that_must_see_them_exist(runner, mutants, repository):
    sources = {
        program: "\n".join(path.read_text() for folder in folders for path in (repository / folder).rglob("*_test.cpp"))
        for program, folders in PROGRAMS.items()
    }
    for test in {test for mutant in mutants for test in mutant.killed_by}:
        if runner.is_pytest(test):
            file, _, name = test.partition("::")
            assert f"def {name}(" in (repository / file).read_text() if name else (repository / file).is_file(), test
            continue
        program, pattern = test.split()
        for each in pattern.split(":"):
            for word in re.findall(r"\w+", each):
                assert word in sources[program], f"{test}: {word}"


@pytest.mark.parametrize("text, found", [("never", 0), ("once once", 2), (None, 0)], ids=["gone", "twice", "no_file"])
def test_a_list_that_does_not_fit_the_tree_is_named(runner, tmp_path, text, found):
    if text is not None:
        (tmp_path / "a.cpp").write_text(text)
    edit = runner.Edit("a.cpp", "once", "never")
    mutant = runner.Mutant("one", "why", ("dp_test A.*",), (edit,), False)
    assert runner.faults_of([mutant], tmp_path) == [
        f"one: the old text must be in a.cpp exactly once, found {found} times"
    ]
    assert "one: the name must be used once" in runner.faults_of([mutant, mutant], tmp_path)


def test_a_planted_file_gets_its_former_text_back(runner, tmp_path, monkeypatch):
    planted, seen = tmp_path / "a.cpp", []
    planted.write_text("once")
    mutant = runner.Mutant("one", "why", ("dp_test A.*",), (runner.Edit("a.cpp", "once", "never"),), False)

    def failed(tree, test):
        seen.append((tree / "a.cpp").read_text())
        return "A.B"

    monkeypatch.setattr(runner, "failed", failed)
    monkeypatch.setattr(runner, "build", lambda *_: None)
    assert runner.try_mutant(tmp_path, mutant, 2) == "dp_test: A.B"
    assert (seen, planted.read_text()) == (["never"], "once")

    def ended(*_):
        raise SystemExit(143)

    monkeypatch.setattr(runner, "build", ended)
    with pytest.raises(SystemExit):
        runner.try_mutant(tmp_path, mutant, 2)
    assert planted.read_text() == "once"
