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
    for name in ("requirements.txt", "requirements.lock", "pyproject.toml", "tools/setup.sh"):
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

    def setup(**environment) -> tuple[subprocess.CompletedProcess, list[str]]:
        calls.write_text("")
        variables = {
            "PATH": f"{stand_ins}:/usr/bin:/bin", "HOME": str(tmp_path), "CALLS": str(calls),
            "GHOSTSHARD_FORTUNES": str(tmp_path / "fortunes"), **environment,
        }  # fmt: skip
        done = subprocess.run(
            ["tools/setup.sh"], cwd=root, env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL
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


@pytest.mark.parametrize("file", ["requirements.txt", "requirements.lock", "pyproject.toml"])
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


def test_make_alone_teaches_every_target(repository):
    environment = {**os.environ, "MAKEFLAGS": ""}
    done = subprocess.run(["make"], cwd=repository, capture_output=True, text=True, env=environment)
    assert done.returncode == 0
    phony = next(line for line in (repository / "Makefile").read_text().splitlines() if line.startswith(".PHONY"))
    for target in phony.split()[1:]:
        assert target == "help" or f"make {target}" in done.stdout
