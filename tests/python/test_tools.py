"""The scripts behind make: counting tests, setting up once, teaching what there is."""

import os
import shutil
import subprocess
import sys

import pytest

OK = '<testcase name="a" classname="c" status="run"/>'
FAILED = '<testcase name="b" classname="c" status="fail"><failure message="no"/></testcase>'
ERROR = '<testcase name="e" classname="c"><error message="no"/></testcase>'
SKIPPED = '<testcase name="s" classname="c" status="notrun"><skipped message="needs a GPU"/></testcase>'

COUNTS = {
    # name: (ctest cases, ctest status, pytest cases, pytest status, last line, exit status)
    "all_pass": (OK * 2, 0, OK, 0, "3 passed, 0 failed", 0),
    "ctest_fails": (OK + FAILED, 8, OK, 0, "2 passed, 1 failed", 1),
    "pytest_fails": (OK, 0, OK + FAILED + ERROR, 1, "2 passed, 2 failed", 1),
    "skipped_are_neither": (OK + SKIPPED, 0, OK, 0, "2 passed, 0 failed", 0),
    "no_ctest_result": (None, 1, OK, 0, "1 passed, 1 failed", 1),
    "no_pytest_result": (OK, 0, None, 3, "1 passed, 1 failed", 1),
    "empty_ctest_result": ("", 0, OK, 0, "1 passed, 1 failed", 1),
    "nothing_ran": (None, 1, None, 1, "0 passed, 2 failed", 1),
    "only_skipped": (SKIPPED, 0, SKIPPED, 0, "0 passed, 0 failed", 1),
    "status_without_failure": (OK, 0, OK, 137, "2 passed, 1 failed", 1),
    "broken_result": ("<testcase", 0, OK, 0, "1 passed, 1 failed", 1),
}


@pytest.mark.parametrize("ctest, ctest_rc, pytest_, pytest_rc, last, status", COUNTS.values(), ids=COUNTS.keys())
def test_counting(repository, tmp_path, ctest, ctest_rc, pytest_, pytest_rc, last, status):
    for name, cases, rc in (("ctest", ctest, ctest_rc), ("pytest", pytest_, pytest_rc)):
        if cases is not None:
            (tmp_path / f"{name}.xml").write_text(f"<testsuite>{cases}</testsuite>")
        (tmp_path / f"{name}.rc").write_text(f"{rc}\n")
    script = repository / "tools" / "count_tests.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True)
    assert (done.stdout.splitlines()[-1], done.returncode) == (last, status)
    assert ("needs a GPU" in done.stdout) == (SKIPPED in f"{ctest}{pytest_}")


def failed(*names):
    return "".join(f'<testcase classname="t" name="{name}"><failure>no</failure></testcase>' for name in names)


AGAIN = {
    # name: (pytest's cases, its status, those of the second run, worth one, last line, exit status)
    "passes_then": (failed("a"), 1, '<testcase classname="t" name="a"/>', True, "2 passed, 0 failed", 0),
    "fails_again": (failed("a", "b"), 1, '<testcase classname="t" name="a"/>' + failed("b"), True, "2 passed, 1 failed", 1),
    "is_skipped_then": (failed("a"), 1, '<testcase classname="t" name="a"><skipped message="no"/></testcase>', True, "1 passed, 1 failed", 1),
    "another_passes": (failed("a"), 1, '<testcase classname="t" name="b"/>', True, "1 passed, 1 failed", 1),
    "was_not_run_again": (failed("a"), 1, None, True, "1 passed, 1 failed", 1),
    "too_many": (failed(*"abcd"), 1, None, False, "1 passed, 4 failed", 1),
    "died": (failed("a"), 137, None, False, "1 passed, 1 failed", 1),
    "nothing_failed": ('<testcase classname="t" name="a"/>', 0, None, False, "2 passed, 0 failed", 0),
}


@pytest.mark.parametrize("cases, rc, again, worth, last, status", AGAIN.values(), ids=AGAIN.keys())
def test_counting_tests_that_were_run_again(repository, tmp_path, cases, rc, again, worth, last, status):
    for name, text, code in (("ctest", OK, 0), ("pytest", cases, rc)):
        (tmp_path / f"{name}.xml").write_text(f"<testsuite>{text}</testsuite>")
        (tmp_path / f"{name}.rc").write_text(f"{code}\n")
    run = lambda *words: subprocess.run([sys.executable, repository / "tools" / "count_tests.py", *words, tmp_path], capture_output=True, text=True)
    assert run("--few-failed").returncode == (0 if worth else 1)
    if again is not None:
        (tmp_path / "pytest-again.xml").write_text(f"<testsuite>{again}</testsuite>")
    done = run()
    assert (done.stdout.splitlines()[-1], done.returncode) == (last, status)
    assert ("again    pytest: t.a: it failed, and passed" in done.stdout) == (again is not None and again.startswith('<testcase classname="t" name="a"/>'))


def entry(name: str, status: str = "run", inside: str = "") -> str:
    """An entry of ctest that runs a GoogleTest program."""
    label = '<properties><property name="cmake_labels" value="gtest;gpu"/></properties>'
    return f'<testcase name="{name}" classname="{name}" status="{status}">{inside}{label}</testcase>'


GTEST_OK = '<testcase name="a" classname="c" status="run" result="completed"/>'
GTEST_NO = '<testcase name="b" classname="c" status="run" result="completed"><failure message="x">a.cpp:3 x</failure></testcase>'
GTEST_DISABLED = '<testcase name="d" classname="c" status="notrun" result="suppressed"/>'
GTEST_SKIPPED = '<testcase name="s" classname="c" status="run" result="skipped"><skipped message="no disk"/></testcase>'
DIED = '<failure message="SEGFAULT"/><system-out>[ RUN      ] c.dies\nthe host touched it</system-out>'

GTEST_COUNTS = {
    # name: (entries of ctest, ctest status, GoogleTest's files, last line, exit status, text of the output)
    "cases_in_place_of_entries": (
        entry("p_0") + entry("p_1"), 0, {"p_0": GTEST_OK * 3, "p_1": GTEST_OK}, "4 passed, 0 failed", 0, ""),
    "a_case_fails": (
        entry("p_0", "fail", "<failure/>"), 8, {"p_0": GTEST_OK + GTEST_NO}, "1 passed, 1 failed", 1, "p_0: c.b\na.cpp:3 x"),
    "a_program_dies": (
        entry("p_0", "fail", DIED) + entry("p_1"), 8, {"p_1": GTEST_OK}, "1 passed, 1 failed", 1, "c.dies\nthe host touched it"),
    "a_program_dies_in_its_file": (
        entry("p_0", "fail", DIED), 8, {"p_0": "<testcase"}, "0 passed, 1 failed", 1, "p_0: left no result"),
    "a_program_leaves_no_file": (entry("p_0"), 0, {}, "0 passed, 1 failed", 1, "p_0: left no result"),
    "a_program_has_no_cases": (entry("p_0"), 0, {"p_0": ""}, "0 passed, 1 failed", 1, "p_0: left no result"),
    "a_bad_end_after_good_cases": (
        entry("p_0", "fail", "<failure/>"), 8, {"p_0": GTEST_OK}, "1 passed, 1 failed", 1, "ended badly though no case failed"),
    "disabled_and_skipped_are_listed": (
        entry("p_0"), 0, {"p_0": GTEST_OK + GTEST_DISABLED + GTEST_SKIPPED}, "1 passed, 0 failed", 0,
        "skipped  p_0: c.d: disabled\nskipped  p_0: c.s: no disk"),
    "an_entry_that_needs_a_gpu": (
        entry("p_0", "notrun", '<skipped message="SKIP_RETURN_CODE=77"/>') + OK, 0, {}, "1 passed, 0 failed", 0,
        "skipped  ctest: p_0: SKIP_RETURN_CODE=77"),
    "others_count_themselves": (entry("p_0") + OK, 0, {"p_0": GTEST_OK * 2}, "3 passed, 0 failed", 0, ""),
    "another_fails": (
        FAILED.replace("</testcase>", "<system-out>says why</system-out></testcase>") + OK, 8, {}, "1 passed, 1 failed", 1,
        "ctest: b\nsays why"),
}  # fmt: skip


@pytest.mark.parametrize("entries, rc, files, last, status, text", GTEST_COUNTS.values(), ids=GTEST_COUNTS.keys())
def test_counting_cases_of_gtest(repository, tmp_path, entries, rc, files, last, status, text):
    (tmp_path / "ctest.xml").write_text(f"<testsuite>{entries}</testsuite>")
    (tmp_path / "ctest.rc").write_text(f"{rc}\n")
    (tmp_path / "pytest.xml").write_text(f"<testsuite>{OK}</testsuite>")
    (tmp_path / "pytest.rc").write_text("0\n")
    (tmp_path / "gtest").mkdir()
    for name, cases in files.items():
        (tmp_path / "gtest" / f"{name}.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    script = repository / "tools" / "count_tests.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True)
    passed, rest = last.split(" ", 1)
    assert (done.stdout.splitlines()[-1], done.returncode) == (f"{int(passed) + 1} {rest}", status)  # and pytest's one
    assert text in done.stdout


GTEST_FAILED = '<testcase name="b" classname="c" status="run"><failure message="no"/></testcase>'
OVERFLOW = "SUMMARY: AddressSanitizer: heap-buffer-overflow a.cpp:3 in f\n"
UNDEFINED = "a.cpp:3:4: runtime error: signed integer overflow: 2 + 3 cannot be represented\n"

SANITIZED = {
    # name: (cases, exit status, report, standard error, last line, exit status of the count)
    "clean": (OK * 2, 0, None, "[W socket.cpp:1] timed out\n", "2 passed, 0 failed", 0),
    "a_test_fails": (OK + GTEST_FAILED, 1, None, "", "1 passed, 1 failed", 1),
    "a_report_and_its_status_are_one": (OK, 66, f"=====\n{OVERFLOW}", "", "1 passed, 1 failed", 1),
    "undefined_behaviour_leaves_the_status": (OK, 0, None, UNDEFINED, "1 passed, 1 failed", 1),
    "undefined_behaviour_within_a_line": (OK, 0, None, f"step 1{UNDEFINED}{UNDEFINED}", "1 passed, 2 failed", 1),
    "killed": (None, 137, None, "", "0 passed, 1 failed", 1),
}


@pytest.mark.parametrize("cases, rc, report, errors, last, status", SANITIZED.values(), ids=SANITIZED.keys())
def test_counting_with_a_sanitizer(repository, tmp_path, cases, rc, report, errors, last, status):
    if cases is not None:
        (tmp_path / "a_test.xml").write_text(f"<testsuite>{cases}</testsuite>")
    (tmp_path / "a_test.rc").write_text(f"{rc}\n")
    (tmp_path / "a_test.err").write_text(errors)
    if report is not None:
        (tmp_path / "report.a_test.7").write_text(report)
    script = repository / "tools" / "count_sanitized.py"
    done = subprocess.run([sys.executable, script, tmp_path, "a_test"], capture_output=True, text=True)
    assert (done.stdout.splitlines()[-1], done.returncode) == (last, status)
    assert (report or "") in done.stdout


@pytest.fixture
def tree(repository, tmp_path):
    """A copy of what set-up reads, where apt-get, sudo and Python are stand-ins that write down how they were called."""
    root = tmp_path / "tree"
    (root / "tools").mkdir(parents=True)
    for name in ("requirements.txt", "requirements-run.txt", "requirements.lock", "pyproject.toml", "tools/setup.sh"):
        shutil.copy2(repository / name, root / name)
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    # `python -m venv … DIR` leaves an environment whose python is this stand-in again.
    (stand_ins / "python3").write_text(
        """#!/bin/bash
echo "python $*" >> "$CALLS"
case "$*" in
  *"-m venv"*) for d; do :; done; mkdir -p "$d/bin"; cp "$0" "$d/bin/python" ;;
  *sys.prefix*) cd "$(dirname "$0")/.." && pwd -P ;;
  *"pip install"*) [ ! -e "$CALLS.broken" ] ;;
esac
"""
    )
    (stand_ins / "g++").write_text("#!/bin/bash\nexit ${COMPILER_STATUS:-0}\n")
    (stand_ins / "apt-get").write_text('#!/bin/bash\necho "apt-get $*" >> "$CALLS"\n')
    (stand_ins / "sudo").write_text("#!/bin/bash\nexit 1\n")
    (stand_ins / "id").write_text("#!/bin/bash\necho ${USER_ID:-1000}\n")
    for program in stand_ins.iterdir():
        program.chmod(0o755)
    (tmp_path / "fortunes").write_text("a\n%\n")
    calls = tmp_path / "calls"

    def setup(*level: str, **environment) -> tuple[subprocess.CompletedProcess, list[str]]:
        calls.write_text("")
        variables = {
            "PATH": f"{stand_ins}:/usr/bin:/bin", "HOME": str(tmp_path), "CALLS": str(calls),
            "GHOSTSHARD_FORTUNES": str(tmp_path / "fortunes"), **environment,
        }  # fmt: skip
        done = subprocess.run(
            ["tools/setup.sh", *level], cwd=root, env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        return done, calls.read_text().splitlines()

    setup.root, setup.broken = root, tmp_path / "calls.broken"
    return setup


def installs(calls: list[str]) -> list[str]:
    return [call for call in calls if "pip install" in call]


def test_setup_makes_the_environment_once(tree):
    done, calls = tree()
    assert done.returncode == 0, done.stderr
    assert any("-m venv" in call for call in calls)
    assert "-r requirements.txt -c requirements.lock" in installs(calls)[0]
    done, calls = tree()
    assert (done.returncode, done.stderr, calls) == (0, "", [])


def test_setup_of_level_run_leaves_out_what_tests_need(tree):
    done, calls = tree("run")
    assert done.returncode == 0, done.stderr
    assert "-r requirements-run.txt -c requirements.lock" in installs(calls)[0]
    assert not any("-r requirements.txt" in call for call in calls)
    done, calls = tree("run")
    assert (done.returncode, done.stderr, calls) == (0, "", [])


def test_setup_of_level_all_completes_that_of_level_run_and_serves_it(tree):
    tree("run")
    done, calls = tree("all")
    assert done.returncode == 0, done.stderr
    assert "-r requirements.txt -c requirements.lock" in installs(calls)[0]
    assert not any("-m venv" in call for call in calls)
    for level in ((), ("all",), ("run",)):
        done, calls = tree(*level)
        assert (done.returncode, done.stderr, calls) == (0, "", []), level


def test_setup_refuses_an_unknown_level(tree):
    done, calls = tree("some")
    assert done.returncode == 1 and "the level must be run or all, got some" in done.stderr and calls == []


@pytest.mark.parametrize("level, gtest", [("run", False), ("all", True)])
def test_setup_asks_for_libraries_of_tests_only_if_they_are_wanted(tree, level, gtest):
    done, _ = tree(level, COMPILER_STATUS="1")
    assert "libgloo-dev" in done.stderr
    assert all((name in done.stderr) == gtest for name in ("libgtest-dev", "libgmock-dev", "libbenchmark-dev"))


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-run.txt", "requirements.lock", "pyproject.toml"])
def test_setup_runs_again_when_requirements_change(tree, file):
    tree()
    with (tree.root / file).open("a") as stream:
        stream.write("# changed\n")
    _, calls = tree()
    assert len(installs(calls)) == 2 and not any("-m venv" in call for call in calls)


def test_setup_goes_on_after_an_interruption(tree):
    tree.broken.touch()
    done, _ = tree()
    assert done.returncode == 1 and "Call again to go on" in done.stderr
    tree.broken.unlink()
    done, calls = tree()
    assert done.returncode == 0 and len(installs(calls)) == 2


def test_setup_makes_a_moved_environment_again(tree, tmp_path):
    tree()
    environment = tree.root / ".venv" / "bin" / "python"
    environment.write_text(environment.read_text().replace("pwd -P", "echo /elsewhere"))
    (tree.root / ".venv" / ".ghostshard-setup").unlink()
    _, calls = tree()
    assert any("-m venv --clear" in call for call in calls)


def test_without_rights_setup_names_the_command_to_run(tree):
    done, calls = tree(COMPILER_STATUS="1")
    assert done.returncode == 1
    assert "sudo apt-get install -y --no-install-recommends g++ libgloo-dev libssl-dev" in done.stderr
    assert not any("apt-get install" in call for call in calls) and not (tree.root / ".venv").exists()


def test_as_root_setup_installs_what_is_missing_and_says_what_is_still(tree):
    done, calls = tree(COMPILER_STATUS="1", USER_ID="0")
    (install,) = [call for call in calls if call.startswith("apt-get install")]
    assert install.startswith("apt-get install -y -q --no-install-recommends g++ libgloo-dev")
    assert done.returncode == 1 and "still missing after apt-get" in done.stderr


@pytest.fixture
def build_tree(repository, tmp_path):
    """A copy of tools/build.sh where cmake writes down how it was called; build(level) after a set-up of that level."""
    (tmp_path / "tools").mkdir()
    shutil.copy2(repository / "tools" / "build.sh", tmp_path / "tools" / "build.sh")
    (tmp_path / "CMakePresets.json").write_text("{}")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    cmake = tmp_path / ".venv" / "bin" / "cmake"
    cmake.write_text('#!/bin/bash\necho "$*" >> calls\nmkdir -p build/release && touch build/release/build.ninja\n')
    cmake.chmod(0o755)
    stamp, calls = tmp_path / ".venv" / ".ghostshard-setup", tmp_path / "calls"

    def build(level: str | None) -> list[str]:
        calls.write_text("")
        if level is not None:
            stamp.write_text(f"{level} 1234\n")
            later = max(file.stat().st_mtime for file in tmp_path.rglob("*")) + 10
            os.utime(stamp, (later, later))
        subprocess.run(["tools/build.sh", "target"], cwd=tmp_path, check=True, env={"PATH": "/usr/bin:/bin"})
        return calls.read_text().splitlines()

    return build


def test_build_configures_tests_and_benches_if_they_are_installed(build_tree):
    off, on = (f"-DGHOSTSHARD_BUILD_TESTS={x} -DGHOSTSHARD_BUILD_BENCH={x}" for x in ("OFF", "ON"))
    configure, build = build_tree("run")
    assert off in configure and build.startswith("--build")
    configure, _ = build_tree("all")
    assert on in configure


def test_build_of_an_environment_that_was_there_before_has_everything(build_tree):
    configure, _ = build_tree(None)
    assert "-DGHOSTSHARD_BUILD_TESTS=ON" in configure
    assert len(build_tree(None)) == 1  # configured already


def test_make_alone_teaches_every_target(repository):
    environment = {**os.environ, "MAKEFLAGS": ""}
    done = subprocess.run(["make"], cwd=repository, capture_output=True, text=True, env=environment)
    assert done.returncode == 0
    phony = next(line for line in (repository / "Makefile").read_text().splitlines() if line.startswith(".PHONY"))
    for target in phony.split()[1:]:
        assert target == "help" or f"make {target}" in done.stdout
