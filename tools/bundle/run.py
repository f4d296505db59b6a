"""Runs a bundle's tests and benches on this machine; each part has a time limit, and what takes longest comes last.

    ./run.sh test      the programs, the kernels and the engine on the GPU, from C++ and from Python
    ./run.sh bench     steps and kernels beside their peers
    ./run.sh all       both
    ./run.sh build     compiles everything for this machine's Python and torch (needs nvcc, g++, cmake), used from then on

Each part's output goes to results/NAME.log, a bench's figures to results/NAME.json, the whole to results/results.json and
results/results.txt. Exit status: 0 nothing failed, 1 something did or ran out of time, 2 wrong usage or unfit machine.
"""

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from machine import Machine, Unfit, describe
from parts import Part, parts_of

BUNDLE = Path(__file__).resolve().parents[3]
GRACE = 10  # seconds between asking a part to end and ending it
LAST_LINES = 30  # of a part that failed, in results.txt


def finish(process: subprocess.Popen, limit: float) -> int | None:
    """The exit status, or None if the time was over; then the part and all that it started are ended."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for signum, wait in ((signal.SIGTERM, GRACE), (signal.SIGKILL, None)):
            if process.poll() is not None:
                break
            os.killpg(process.pid, signum)
            try:
                process.wait(wait)
            except subprocess.TimeoutExpired:
                continue


def run_part(part: Part, machine: Machine, results: Path, left: float) -> dict:
    row = {"name": part.name, "kind": part.kind, "limit": part.limit, "seconds": 0.0, "command": list(part.command)}
    if lacking := machine.lacks(part.needs):
        return row | {"status": "left out", "why": f"this machine has no {', '.join(lacking)}"}
    if left <= 0:
        return row | {"status": "left out", "why": "the time of all parts is over"}
    environment = machine.environment | {"GHOSTSHARD_TEST_DEVICE": "cuda"}
    begin = time.monotonic()
    with (results / f"{part.name}.log").open("wb") as log:
        process = subprocess.Popen(
            part.command, cwd=BUNDLE / "tree", env=environment, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        code = finish(process, min(part.limit, left))
    row["seconds"] = round(time.monotonic() - begin, 1)
    row |= counted(part, results / f"{part.name}.tests")
    if code is None:
        return row | {"status": "out of time"}
    if code == 77:  # as in ctest: the program says why there is nothing that it can test
        return row | {"status": "left out", "why": "it found nothing to run on, see its log"}
    failed = code != 0 or (part.counts and not row.get("passed"))
    return row | {"status": "failed" if failed else "passed", "exit": code}


def counted(part: Part, file: Path) -> dict:
    """Passed, failed and skipped test cases, of a part that counts them."""
    try:
        if part.counts == "gtest":
            cases = [case for suite in json.loads(file.read_text())["testsuites"] for case in suite["testsuite"]]
            failed = sum("failures" in case for case in cases)
            skipped = sum(case["result"] != "COMPLETED" for case in cases)
        elif part.counts == "pytest":
            cases = list(ElementTree.parse(file).iter("testcase"))
            failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
            skipped = sum(case.find("skipped") is not None for case in cases)
        else:
            return {}
    except (OSError, ValueError, ElementTree.ParseError):
        return {}  # the part was ended, or died
    return {"passed": len(cases) - failed - skipped, "failed": failed, "skipped": skipped}


def line_of(row: dict) -> str:
    tests = f"  {row['passed']} passed, {row['failed']} failed, {row['skipped']} skipped" if "passed" in row else ""
    why = f"  {row['why']}" if "why" in row else ""
    return f"{row['status']:12} {row['kind']:6} {row['name']:28} {row['seconds']:7.1f} s of {row['limit']:4}{tests}{why}"


def write(results: Path, head: dict, rows: list[dict]) -> None:
    """After each part, so that a run that is cut off leaves what it knows."""
    (results / "results.json").write_text(json.dumps(head | {"parts": rows}, indent=2) + "\n")
    lines = [f"{name}: {value}" for name, value in head.items()] + [""] + [line_of(row) for row in rows]
    for row in rows:
        if row["status"] in ("failed", "out of time"):
            log = (results / f"{row['name']}.log").read_text(errors="replace").splitlines()[-LAST_LINES:]
            lines += ["", f"----- the end of {row['name']}.log", *log]
    (results / "results.txt").write_text("\n".join(lines) + "\n")


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["test", "bench", "all", "build"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: tries the bundle out where there is no GPU")
    parser.add_argument("--minutes", type=float, default=25, help="for all parts together (default: 25)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="parts of these names; * and ? stand for letters")
    parser.add_argument("--list", action="store_true", help="name the parts and their limits, run nothing")
    parser.add_argument("--output", type=Path, default=BUNDLE / "results", help="default: results/ in the bundle")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="of build")
    options = parser.parse_args(arguments)
    if not options.minutes > 0:
        parser.error(f"--minutes must be above 0, got {options.minutes}")
    return options


def run(options: argparse.Namespace) -> int:
    if options.what == "build":
        from build import build

        return build(BUNDLE, options.jobs)
    machine = describe(BUNDLE)
    if options.device == "cuda" and machine.device_name is None and not options.list:
        raise Unfit("torch finds no CUDA device here; --device cpu tries the bundle without one")
    results = options.output.absolute()
    results.mkdir(parents=True, exist_ok=True)
    parts = parts_of(options.what, options.device, machine, results)
    if options.only:
        parts = [part for part in parts if any(fnmatch.fnmatchcase(part.name, name) for name in options.only)]
        if not parts:
            raise Unfit(f"--only: no part of {options.what} is called {' or '.join(options.only)}; --list names them")
    if options.list:
        print("\n".join(f"{part.kind:6} {part.name:28} {part.limit:4} s" for part in parts))
        return 0
    head = {
        "commit": machine.facts["commit"], "device": machine.device_name if options.device == "cuda" else "cpu",
        "torch": machine.torch, "python": sys.version.split()[0], "begun": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip
    rows: list[dict] = []
    end = time.monotonic() + 60 * options.minutes
    for part in parts:
        rows.append(run_part(part, machine, results, end - time.monotonic()))
        print(line_of(rows[-1]), flush=True)
        write(results, head, rows)
    bad = sum(row["status"] in ("failed", "out of time") for row in rows)
    print(f"{sum(row['status'] == 'passed' for row in rows)} parts passed, {bad} failed or out of time, "
          f"{sum(row['status'] == 'left out' for row in rows)} left out; {results / 'results.txt'}")  # fmt: skip
    return 1 if bad else 0


def main(arguments: list[str]) -> int:
    try:
        return run(options_of(arguments))
    except Unfit as why:
        print(f"run.sh: {why}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
