"""make bundle: the runner that a bundle carries, with stand-ins for its programs; a packed build in an empty root."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time

import pytest

TOOLS = ("run.py", "parts.py", "machine.py", "build.py", "first_run.py", "run.sh")
# Writes GoogleTest's result where it is told to, and does what FAILS or SLEEPS names its part or program to do.
PROGRAM = """#!/bin/bash
name=${0##*/}
echo "$name $*" >> "$CALLS"
for word in "$@"; do
  case $word in --gtest_output=json:*) echo "${CASES:-$ONE}" > "${word#*json:}" ;; esac
done
[ "$name" != "$SLEEPS" ] || [ "$1" = --version ] || { sleep 60 & echo $! > "$CHILD"; wait; }
[ "$name" != "$FAILS" ] || [ "$1" = --version ] || { echo "the reason"; exit 1; }
exit "${EXIT:-0}"
"""
ONE = '{"testsuites": [{"testsuite": [{"name": "a", "result": "COMPLETED"}]}]}'
BOTH = '{"testsuites": [{"testsuite": [{"result": "COMPLETED", "failures": [{}]}, {"result": "SKIPPED"}, {"result": "COMPLETED"}]}]}'
# PyTorch takes seconds to import.
TORCH = """__version__ = "2.11.0+cu130"
class cuda:
    is_available = staticmethod(lambda: False)
"""
PROGRAMS = ("ghostshard-account", "ghostshard-finetune-gpt2", "kernels_test", "step_compare", "device_kernels")


@pytest.fixture
def bundle(repository, tmp_path):
    root = tmp_path / "bundle"
    for folder in ("bin", "modules", "site", "tree/tools/bundle", "tree/tests/python", "tree/bindings/python"):
        (root / folder).mkdir(parents=True)
    for name in TOOLS:
        shutil.copy2(repository / "tools" / "bundle" / name, root / "tree" / "tools" / "bundle" / name)
    shutil.copy2(repository / "tools" / "bundle" / "run.sh", root / "run.sh")
    for name in PROGRAMS:
        (root / "bin" / name).write_text(PROGRAM)
        (root / "bin" / name).chmod(0o755)
    (root / "modules" / f"engine.{sysconfig.get_config_var('SOABI')}.so").touch()
    facts = {"commit": "abc", "torch": "2.11.0", "python": ["cpython-399"], "glibc": "2.1"}
    (root / "bundle.json").write_text(json.dumps(facts))

    (tmp_path / "stand-in" / "torch").mkdir(parents=True)
    (tmp_path / "stand-in" / "torch" / "__init__.py").write_text(TORCH)

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess:
        variables = os.environ | {"CALLS": str(tmp_path / "calls"), "CHILD": str(tmp_path / "child"), "ONE": ONE,
                                  "PYTHON": sys.executable, "PYTHONPATH": str(tmp_path / "stand-in"), "FAILS": "", "SLEEPS": "",
                                  **environment}  # fmt: skip
        return subprocess.run([root / "run.sh", *words], env=variables, capture_output=True, text=True, timeout=120)

    run.root = root
    run.rows = lambda: {row["name"]: row for row in json.loads((root / "results" / "results.json").read_text())["parts"]}
    run.child = tmp_path / "child"
    return run


KERNELS = ("test", "--device", "cpu", "--only", "kernels_reference")


def test_results_are_json_and_text(bundle):
    done = bundle("test", "--device", "cpu", "--only", "account", "kernels_*")
    assert done.returncode == 0, done.stderr
    rows = bundle.rows()
    assert list(rows) == ["account", "kernels_reference"]
    assert all(row["status"] == "passed" and row["seconds"] <= row["limit"] for row in rows.values())
    assert rows["kernels_reference"]["passed"] == 1
    text = (bundle.root / "results" / "results.txt").read_text()
    assert "commit: abc" in text and "1 passed, 0 failed, 0 skipped" in text


def test_a_part_that_fails_is_named_and_the_next_one_runs(bundle):
    done = bundle("test", "--device", "cpu", "--only", "account", "kernels_*", FAILS="ghostshard-account")
    assert done.returncode == 1 and "1 parts passed, 1 failed or out of time" in done.stdout
    assert bundle.rows()["account"]["status"] == "failed"
    assert "the reason" in (bundle.root / "results" / "results.txt").read_text()


@pytest.mark.parametrize("cases, exit_code, status", [
    (BOTH, "1", "failed"), (ONE, "1", "failed"), ("not json", "0", "failed"), (ONE, "77", "left out"), (ONE, "0", "passed"),
])  # fmt: skip
def test_how_a_test_program_ended(bundle, cases, exit_code, status):
    # The probe that a program starts uses another one.
    (bundle.root / "bin" / "ghostshard-finetune-gpt2").write_text("#!/bin/bash\n")
    bundle(*KERNELS, CASES=cases, EXIT=exit_code)
    row = bundle.rows()["kernels_reference"]
    assert row["status"] == status
    if cases == BOTH:
        assert (row["passed"], row["failed"], row["skipped"]) == (1, 1, 1)


def test_a_part_over_its_time_is_ended_with_what_it_started(bundle):
    parts = bundle.root / "tree" / "tools" / "bundle" / "parts.py"
    parts.write_text(parts.read_text().replace('"kernels_test", 180', '"kernels_test", 1'))
    done = bundle(*KERNELS, SLEEPS="kernels_test")
    assert done.returncode == 1 and bundle.rows()["kernels_reference"]["status"] == "out of time"
    child = int(bundle.child.read_text())
    end = time.monotonic() + 20
    while os.path.exists(f"/proc/{child}/stat") and " Z " not in open(f"/proc/{child}/stat").read():
        assert time.monotonic() < end, "the part's child still runs"
        time.sleep(0.05)


def test_when_the_minutes_are_over_the_rest_is_left_out(bundle):
    done = bundle("test", "--device", "cpu", "--only", "account", "kernels_*", "--minutes", "0.02", SLEEPS="ghostshard-account")
    rows = bundle.rows()
    assert done.returncode == 1 and rows["account"]["status"] == "out of time"
    assert rows["kernels_reference"]["why"] == "the time of all parts is over"


def listed(bundle, what: str, device: str) -> list[list[str]]:
    done = bundle(what, "--device", device, "--list")
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_costs_most_time_comes_last(bundle, device):
    for kind in ("test", "bench"):
        limits = [int(row[2]) for row in listed(bundle, kind, device)]
        assert limits == sorted(limits) and limits
    kinds = [row[0] for row in listed(bundle, "all", device)]
    assert kinds == sorted(kinds, reverse=True)  # tests first


MISTAKES = {
    "no_device": (("test",), "torch finds no CUDA device here"),
    "no_part": (("test", "--device", "cpu", "--only", "nothing"), "no part of test is called nothing"),
    "minutes": (("test", "--minutes", "0"), "--minutes must be above 0"),
    "word": (("tests",), "invalid choice"),
}


@pytest.mark.parametrize("words, sentence", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_sentences(bundle, words, sentence):
    done = bundle(*words)
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr


def test_another_torch_or_python_is_refused(bundle):
    facts = json.loads((bundle.root / "bundle.json").read_text())
    (bundle.root / "bundle.json").write_text(json.dumps(facts | {"torch": "2.0.0"}))
    assert "built with torch 2.0.0" in bundle(*KERNELS).stderr
    (bundle.root / "bundle.json").write_text(json.dumps(facts))
    for module in (bundle.root / "modules").iterdir():
        module.unlink()
    done = bundle(*KERNELS)
    assert done.returncode == 2 and "the modules are for cpython-399" in done.stderr


def test_a_missing_package_leaves_the_part_out(bundle):
    parts = bundle.root / "tree" / "tools" / "bundle" / "parts.py"
    parts.write_text(parts.read_text().replace('needs=("numpy",)', 'needs=("no_such_module", "!no_such_program")'))
    done = bundle("test", "--device", "cpu", "--only", "first_run")
    assert done.returncode == 0
    assert bundle.rows()["first_run"]["why"] == "this machine has no no_such_module, no_such_program"


def may_unshare() -> bool:
    flags = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return subprocess.run(["unshare", *flags, "--mount", "--net", "--pid", "--fork", "true"], capture_output=True).returncode == 0


def test_a_packed_build_runs_in_an_empty_root(binary, repository, tmp_path):
    """The programs and the first run; tools/bundle/rehearse.sh runs everything."""
    if not may_unshare():
        pytest.skip("this machine allows no namespaces")
    pack = [sys.executable, "tools/bundle/pack.py", "--build", binary.parents[1], "--output", tmp_path, "--level", "0",
            "--programs", "ghostshard-account", "ghostshard-finetune-gpt2"]  # fmt: skip
    subprocess.run([str(word) for word in pack], cwd=repository, check=True, capture_output=True)
    done = subprocess.run(
        ["tools/bundle/rehearse.sh", tmp_path / "ghostshard-cuda.tar.xz", sys.executable, "test", "--device", "cpu", "--only",
         "account", "first_run"], cwd=repository, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 parts passed, 0 failed or out of time, 0 left out" in done.stdout
