"""Sums the files that tools/run_tests.sh leaves in a folder; prints `N passed, N failed` as its last line.

ctest.xml and pytest.xml are JUnit files of the two runners, and gtest/<entry>.xml is GoogleTest's own file of one entry
of ctest with the label gtest: its cases are counted in place of the entry. Failures are printed with their messages.
Skipped and disabled tests are neither passed nor failed: they are listed with their reasons, so that a green run cannot
hide them. pytest-again.xml is of a second run of those that failed: one that passed there counts as passed, and is listed.

Usage: tools/count_tests.py [--few-failed] FOLDER
--few-failed: prints nothing; the exit status is 0 if pytest ended with one to three failed tests.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

FEW = 3
LAST_LINES = 60  # of the output of a program that died


@dataclass
class Outcome:
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # `name: reason`
    details: list[str] = field(default_factory=list)  # a failure's name and message
    again: list[str] = field(default_factory=list)  # passed, when they were run again

    def add(self, other: "Outcome") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.details += other.details
        self.again += other.again


def cases_of(results: Path) -> list[ElementTree.Element]:
    """The test cases of a JUnit file; none if a runner that died left no whole file."""
    try:
        return list(ElementTree.parse(results).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return []


def bad_end(runner: str, cases: list, exit_code: int, any_failed: bool) -> list[str]:
    """A runner that ended badly without a failed test counts as one failure."""
    if not cases:
        return [f"{runner}: left no result (exit status {exit_code})"]
    if exit_code != 0 and not any_failed:
        return [f"{runner}: exit status {exit_code} though no test failed"]
    return []


def conclude(passed: int, failed: list[str]) -> int:
    """Prints the last lines; returns the exit status."""
    for line in failed:
        print(f"FAILED   {line}")
    print(f"{passed} passed, {len(failed)} failed")
    return 0 if passed > 0 and not failed else 1


def failed_in(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail"


def messages_of(case: ElementTree.Element) -> str:
    return "\n".join(f.text or f.get("message", "") for kind in ("failure", "error") for f in case.findall(kind))


def count_cases(runner: str, cases: list[ElementTree.Element], name_of: Callable[[ElementTree.Element], str]) -> Outcome:
    outcome = Outcome()
    for case in cases:
        name = f"{runner}: {name_of(case)}"
        if failed_in(case):
            outcome.failed.append(name)
            outcome.details.append(f"{name}\n{messages_of(case)}")
        elif (note := case.find("skipped")) is not None or case.get("status") in ("notrun", "disabled"):
            outcome.skipped.append(f"{name}: {note.get('message', '') if note is not None else 'disabled'}")
        else:
            outcome.passed += 1
    return outcome


def class_and_name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}.{case.get('name', '?')}"


def has_label(entry: ElementTree.Element, label: str) -> bool:
    labels = (p.get("value", "") for p in entry.iter("property") if p.get("name") == "cmake_labels")
    return any(label in value.split(";") for value in labels)


def count_gtest(entry: ElementTree.Element, folder: Path) -> Outcome:
    """The cases of one process of a GoogleTest program, in place of its entry of ctest."""
    if entry.find("skipped") is not None:
        return count_cases("ctest", [entry], lambda case: case.get("name", "?"))
    name = entry.get("name", "?")
    cases = cases_of(folder / "gtest" / f"{name}.xml")
    outcome = count_cases(name, cases, class_and_name)
    if failed_in(entry) and not outcome.failed or not cases:
        # A program that dies writes no file: its output ends with the case that it was at.
        lines = entry.findtext("system-out", "").splitlines()[-LAST_LINES:]
        outcome.failed.append(f"{name}: {'ended badly though no case failed' if cases else 'left no result'}")
        outcome.details.append("\n".join([outcome.failed[-1], *lines]))
    return outcome


def count_ctest(entries: list[ElementTree.Element], folder: Path) -> Outcome:
    outcome = Outcome()
    for entry in entries:
        if has_label(entry, "gtest"):
            outcome.add(count_gtest(entry, folder))
            continue
        own = count_cases("ctest", [entry], lambda case: case.get("name", "?"))
        own.details = [f"{name}\n{entry.findtext('system-out', '')}" for name in own.failed]
        outcome.add(own)
    return outcome


def count(folder: Path) -> Outcome:
    whole = Outcome()
    for runner in ("ctest", "pytest"):
        exit_code = int((folder / f"{runner}.rc").read_text())
        cases = cases_of(folder / f"{runner}.xml")
        if runner == "ctest":
            outcome = count_ctest(cases, folder)
        else:
            outcome = count_cases(runner, cases, class_and_name)
            outcome.details = []  # pytest has printed them
        outcome.failed += bad_end(runner, cases, exit_code, bool(outcome.failed))
        if runner == "pytest":
            passed = {f"pytest: {class_and_name(case)}" for case in cases_of(folder / "pytest-again.xml") if not failed_in(case) and case.find("skipped") is None}
            outcome.again = [name for name in outcome.failed if name in passed]
            outcome.failed = [name for name in outcome.failed if name not in passed]
            outcome.passed += len(outcome.again)
        whole.add(outcome)
    return whole


def few_failed(folder: Path) -> bool:
    failed = [case for case in cases_of(folder / "pytest.xml") if failed_in(case)]
    return int((folder / "pytest.rc").read_text()) == 1 and 0 < len(failed) <= FEW


def main() -> int:
    if sys.argv[1] == "--few-failed":
        return 0 if few_failed(Path(sys.argv[2])) else 1
    outcome = count(Path(sys.argv[1]))
    for text in outcome.details:
        print(f"----- {text}\n")
    for line in outcome.skipped:
        print(f"skipped  {line}")
    for line in outcome.again:
        print(f"again    {line}: it failed, and passed when it was run once more. Mend it: a test that fails by chance hides a fault")
    return conclude(outcome.passed, outcome.failed)


if __name__ == "__main__":
    sys.exit(main())
