"""Sums the JUnit files that tools/run_tests.sh leaves in a folder; prints `N passed, N failed` as its last line.

Skipped tests are neither: they are listed with their reasons, so that a green run cannot hide them.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

RUNNERS = ("ctest", "pytest")


def count(folder: Path) -> tuple[int, list[str], list[str]]:
    """Returns how many passed, the names of those that failed, and `name: reason` of those skipped."""
    passed, failed, skipped = 0, [], []
    for runner in RUNNERS:
        exit_code = int((folder / f"{runner}.rc").read_text())
        failed_before = len(failed)
        try:
            cases = list(ElementTree.parse(folder / f"{runner}.xml").iter("testcase"))
        except (OSError, ElementTree.ParseError):
            cases = []
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
        if not cases:
            failed.append(f"{runner}: left no result (exit status {exit_code})")
        elif exit_code != 0 and len(failed) == failed_before:
            failed.append(f"{runner}: exit status {exit_code} though no test failed")
    return passed, failed, skipped


def main() -> int:
    passed, failed, skipped = count(Path(sys.argv[1]))
    for line in skipped:
        print(f"skipped  {line}")
    for line in failed:
        print(f"FAILED   {line}")
    print(f"{passed} passed, {len(failed)} failed")
    return 0 if passed > 0 and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
