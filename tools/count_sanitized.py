"""Sums what tools/run_sanitizer.sh leaves in a folder; prints `N passed, N failed` as its last line.

Failures are failed tests, sanitizers' reports, and programs that ended badly without either.
"""

import re
import sys
from pathlib import Path

from count_tests import bad_end, cases_of, conclude

# AddressSanitizer and ThreadSanitizer close each report with a summary; UBSan has lines of its own, on standard error.
REPORT = re.compile(r"(^SUMMARY: \w+Sanitizer: .*|\S+: runtime error: .*)$", re.M)


def main() -> int:
    folder, programs = Path(sys.argv[1]), sys.argv[2:]
    passed, failed = 0, []
    for program in programs:
        failed_before = len(failed)
        cases = cases_of(folder / f"{program}.xml")
        for case in cases:
            name = f"{case.get('classname')}.{case.get('name')}"
            if case.find("failure") is not None:
                failed.append(f"{program}: {name}")
            elif case.find("skipped") is not None:
                print(f"skipped  {program}: {name}: {case.find('skipped').get('message', '')}")
            elif case.get("status") == "run":
                passed += 1
        texts = [log.read_text(errors="replace") for log in sorted(folder.glob(f"report.{program}.*"))]
        print(*texts, sep="\n", end="")
        texts.append((folder / f"{program}.err").read_text(errors="replace"))
        failed += [f"{program}: {line}" for text in texts for line in REPORT.findall(text)]
        exit_code = int((folder / f"{program}.rc").read_text())
        failed += bad_end(program, cases, exit_code, len(failed) > failed_before)
    return conclude(passed, failed)


if __name__ == "__main__":
    sys.exit(main())
