"""Sums what tools/run_sanitizer.sh leaves in a folder; prints `N passed, N failed` as its last line.

Failures are failed tests, sanitizers' reports, and programs that ended badly without either.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

# AddressSanitizer and ThreadSanitizer open a report with a summary's counterpart; UBSan has lines of its own.
REPORT = re.compile(r"^(SUMMARY: \w+Sanitizer: .*|\S+: runtime error: .*)$", re.M)


def main() -> int:
    folder, programs = Path(sys.argv[1]), sys.argv[2:]
    passed, failed = 0, []
    for program in programs:
        failed_before = len(failed)
        try:
            cases = list(ElementTree.parse(folder / f"{program}.xml").iter("testcase"))
        except (OSError, ElementTree.ParseError):
            cases = []
        for case in cases:
            name = f"{case.get('classname')}.{case.get('name')}"
            if case.find("failure") is not None:
                failed.append(f"{program}: {name}")
            elif case.find("skipped") is not None:
                print(f"skipped  {program}: {name}: {case.find('skipped').get('message', '')}")
            elif case.get("status") == "run":
                passed += 1
        exit_code = int((folder / f"{program}.rc").read_text())
        if not cases:
            failed.append(f"{program}: left no result (exit status {exit_code})")
        elif exit_code != 0 and len(failed) == failed_before:
            failed.append(f"{program}: exit status {exit_code} though no test failed")
    for log in sorted(folder.glob("report*")):
        text = log.read_text(errors="replace")
        print(text)
        failed += [f"{log.name}: {line}" for line in REPORT.findall(text)]
    for line in failed:
        print(f"FAILED   {line}")
    print(f"{passed} passed, {len(failed)} failed")
    return 0 if passed > 0 and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
