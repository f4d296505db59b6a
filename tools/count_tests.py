"""Sums the JUnit files that tools/run_tests.sh leaves in a folder; prints `N passed, N failed` as its last line.

Skipped tests are neither: they are listed with their reasons, so that a green run cannot hide them.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

RUNNERS = ("ctest", "pytest")


def cases_of(results: Path) -> list[ElementTree.Element]:
    """The test cases of a JUnit file; none where a runner that died left no whole file."""
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


def count(folder: Path) -> tuple[int, list[str], list[str]]:
    """Returns how many passed, the names of those that failed, and `name: reason` of those skipped."""
    passed, failed, skipped = 0, [], []
    for runner in RUNNERS:
        exit_code = int((folder / f"{runner}.rc").read_text())
        failed_before = len(failed)
        cases = cases_of(folder / f"{runner}.xml")
        for case in cases:
            # pytest writes a file of tests as classname; gtest's names are whole already.
            name = case.get("name", "?")
            name = f"{case.get('classname')}.{name}" if runner == "pytest" else name
            if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
                failed.append(f"{runner}: {name}")
            elif (note := case.find("skipped")) is not None or case.get("status") in ("notrun", "disabled"):
                reason = note.get("message", "") if note is not None else "disabled"
                skipped.append(f"{runner}: {name}: {reason}")
            else:
                passed += 1
        failed += bad_end(runner, cases, exit_code, len(failed) > failed_before)
    return passed, failed, skipped


def main() -> int:
    passed, failed, skipped = count(Path(sys.argv[1]))
    for line in skipped:
        print(f"skipped  {line}")
    return conclude(passed, failed)


if __name__ == "__main__":
    sys.exit(main())
