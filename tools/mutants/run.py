"""Plants each fault of tools/mutants/mutants.toml in a copy of the tree, builds it and runs the tests that must see it.

Usage: tools/mutants/run.py [--short] [--fact N] [--only NAME ...] [--list] [--here] [-j N]

The copy lies in build/mutants/tree and is built there incrementally (with ccache, mostly from what was compiled before).
--here plants them in this tree instead, which saves the copy's first build: for a checkout that nobody edits or builds
meanwhile, as that of continuous integration. Each file gets its former text back, after a signal too.
First all tests run without a fault: they must pass. Then each fault is planted alone. It is killed if one of its tests
fails; it survives if all of them pass. The last line is `N killed, N survived`; the exit status is 0 only if none
survived. build/mutants/table.md is the result as a table.

Exit status 2, with the reason: a list that does not fit the tree (an old text that is not in its file exactly once), a
fault that does not build, a test that does not exist or fails without a fault.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).resolve().parent / "mutants.toml"
WORK = ROOT / "build" / "mutants"
TREE = WORK / "tree"
TEST_SECONDS = 600
FOR_PYTEST = ("ghostshard_python_accountant", "ghostshard_python_engine", "ghostshard-finetune-gpt2")


class Unusable(Exception):
    """The list, the tree or a test does not fit: no verdict."""


@dataclasses.dataclass(frozen=True)
class Edit:
    file: str
    old: str
    new: str


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    why: str
    killed_by: tuple[str, ...]
    edits: tuple[Edit, ...]
    short: bool
    fact: int | str = 0  # of docs/guarantee.md; "optimizer": none


def read_list(path: Path = LIST) -> list[Mutant]:
    mutants = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
        edits = tuple(Edit(each["file"], each["old"], each["new"]) for each in entry.get("edit", [entry]))
        mutants.append(
            Mutant(entry["name"], entry["why"], tuple(entry["killed_by"]), edits, bool(entry.get("short", False)), entry["fact"])
        )
    return mutants


def faults_of(mutants: list[Mutant], root: Path = ROOT) -> list[str]:
    """What is wrong with the list: a sentence for each."""
    faults = []
    names = [mutant.name for mutant in mutants]
    faults += [f"{name}: the name must be used once" for name in sorted({n for n in names if names.count(n) > 1})]
    for mutant in mutants:
        for edit in mutant.edits:
            path = root / edit.file
            found = path.read_text(encoding="utf-8").count(edit.old) if path.is_file() else 0
            if found != 1:
                faults.append(f"{mutant.name}: the old text must be in {edit.file} exactly once, found {found} times")
            if edit.old == edit.new:
                faults.append(f"{mutant.name}: the new text must differ from the old")
    return faults


def is_pytest(test: str) -> bool:
    return test.startswith("tests/python/")


def targets_of(tests: list[str]) -> list[str]:
    programs = {test.split()[0] for test in tests if not is_pytest(test)}
    return sorted(programs | set(FOR_PYTEST if any(map(is_pytest, tests)) else ()))


def make_copy() -> None:
    """The tree's files, tracked or not but ignored ones, into TREE. Files that are equal there keep their time."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    wanted = {name for name in listed.split("\0") if name and (ROOT / name).is_file() and not name.startswith(".venv")}
    TREE.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        source, copy = ROOT / name, TREE / name
        if copy.is_file() and copy.read_bytes() == source.read_bytes():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)
    for top, folders, files in os.walk(TREE):
        folders[:] = [name for name in folders if Path(top) != TREE or name not in ("build", ".venv")]
        for name in files:
            path = Path(top) / name
            if path.relative_to(TREE).as_posix() not in wanted and not name.endswith(".pyc"):
                path.unlink()
    if not (TREE / ".venv").exists():
        (TREE / ".venv").symlink_to((ROOT / ".venv").resolve(), target_is_directory=True)


def build(tree: Path, targets: list[str], jobs: int) -> str | None:
    """None, or the compiler's words."""
    done = subprocess.run(["tools/build.sh", "-j", str(jobs), *targets], cwd=tree, capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stdout + done.stderr)[-4000:]


def environment(tree: Path) -> dict[str, str]:
    return os.environ | {
        "OMP_NUM_THREADS": "1", "RES_OPTIONS": "attempts:0", "TORCH_CPP_LOG_LEVEL": "ERROR",
        "GHOSTSHARD_SOURCE_DIR": str(tree), "GHOSTSHARD_PYTHON": sys.executable, "PYTHONPATH": str(tree / "bindings" / "python"), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def failed(tree: Path, test: str) -> str | None:
    """The first failure of a test, None if it passes. Unusable if nothing ran."""
    if is_pytest(test):
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", test]
    else:
        program, pattern = test.split(maxsplit=1)
        command = [str(tree / "build/release/bin" / program), f"--gtest_filter={pattern}", "--gtest_brief=1"]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=TEST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no end within {TEST_SECONDS} s"
    lines = done.stdout.splitlines()
    if is_pytest(test):
        if done.returncode not in (0, 1):
            raise Unusable(f"{test}: pytest ended with status {done.returncode}\n{done.stdout[-2000:]}")
        words = [line.split()[1].split("::")[-1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
        if done.returncode == 1 and not words:  # a Python without pytest ends with 1, too
            raise Unusable(f"{test}: no test failed, yet the status is 1\n{(done.stdout + done.stderr)[-2000:]}")
    else:
        if not any(" ran." in line and not line.startswith("[==========] 0 tests") for line in lines) and done.returncode >= 0:
            raise Unusable(f"{test}: no test ran\n{(done.stdout + done.stderr)[-2000:]}")
        words = [line.split("]")[1].split(",")[0].split(" (")[0].strip() for line in lines if line.startswith("[  FAILED  ]")]
    if done.returncode == 0:
        return None
    return words[0] if words else f"status {done.returncode}"


def planted(tree: Path, mutant: Mutant) -> dict[Path, str]:
    """Plants the fault; returns the files' former texts."""
    before: dict[Path, str] = {}
    for edit in mutant.edits:
        path = tree / edit.file
        text = path.read_text(encoding="utf-8")
        before.setdefault(path, text)
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
    return before


def try_mutant(tree: Path, mutant: Mutant, jobs: int) -> str | None:
    """The test that killed it, or None."""
    before = planted(tree, mutant)
    try:
        errors = build(tree, targets_of(list(mutant.killed_by)), jobs)
        if errors is not None:
            raise Unusable(f"{mutant.name} does not build:\n{errors}")
        for test in mutant.killed_by:
            failure = failed(tree, test)
            if failure is not None:
                return f"{test if is_pytest(test) else test.split()[0]}: {failure}"
        return None
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")


def run(tree: Path, mutants: list[Mutant], jobs: int) -> list[tuple[Mutant, str | None]]:
    tests = sorted({test for mutant in mutants for test in mutant.killed_by})
    began = time.monotonic()
    errors = build(tree, targets_of(tests), jobs)
    if errors is not None:
        raise Unusable(f"the tree does not build:\n{errors}")
    for test in tests:
        failure = failed(tree, test)
        if failure is not None:
            raise Unusable(f"{test} fails without any fault: {failure}")
    print(f"{len(tests)} tests pass without a fault ({time.monotonic() - began:.0f} s)", flush=True)
    results = []
    for mutant in mutants:
        began = time.monotonic()
        killer = try_mutant(tree, mutant, jobs)
        verdict = "survived" if killer is None else "killed  "
        print(f"{verdict}  {mutant.name}  {killer or ''}  ({time.monotonic() - began:.0f} s)", flush=True)
        results.append((mutant, killer))
    return results


def table(results: list[tuple[Mutant, str | None]]) -> str:
    lines = ["| fault | what it would give away | killed by |", "|---|---|---|"]
    lines += [f"| {m.name} | {m.why} | {f'`{k}`' if k else '**survived**'} |" for m, k in results]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one fault of each kind")
    parser.add_argument("--fact", help='those that try this fact of docs/guarantee.md; "optimizer": those that spoil a model, not epsilon')
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--here", action="store_true", help="in this tree, not in a copy: nobody may edit or build it meanwhile")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 2, help="compile so many files at a time")
    given = parser.parse_args()
    mutants = read_list()
    faults = faults_of(mutants)
    unknown = sorted(set(given.only or ()) - {mutant.name for mutant in mutants})
    faults += [f"--only: there is no mutant {name}" for name in unknown]
    if given.fact is not None and given.fact not in {str(mutant.fact) for mutant in mutants}:
        faults.append(f"--fact: no mutant tries {given.fact}")
    if faults:
        print("mutants:", *faults, sep="\n  ", file=sys.stderr)
        return 2
    chosen = [m for m in mutants if (not given.short or m.short) and given.fact in (None, str(m.fact)) and (not given.only or m.name in given.only)]
    if given.list:
        print(*(f"{m.name}: {m.why}" for m in chosen), sep="\n")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that files get their former texts back
    try:
        if not given.here:
            make_copy()
        results = run(ROOT if given.here else TREE, chosen, given.jobs)
    except Unusable as reason:
        print(f"mutants: {reason}", file=sys.stderr)
        return 2
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "table.md").write_text(table(results), encoding="utf-8")
    survived = sum(killer is None for _, killer in results)
    print(f"{len(results) - survived} killed, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
