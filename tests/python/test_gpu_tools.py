"""The scripts behind make test-gpu and make bench-gpu, in a copy of the tree where programs are stand-ins that write down
how they were called: with and without a GPU."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

PYTHON = """#!/bin/bash
echo "$GHOSTSHARD_TEST_DEVICE|${GHOSTSHARD_MODULES##*/build/}|python $*" >> "$CALLS"
case "$*" in
  *cuda.is_available*) exit "${NO_GPU:-0}" ;;
  *json.tool*) exec "$REAL" "$@" ;;
esac
"""
# Writes a result where it is told to, as step_compare, device_kernels and peers.py do.
PROGRAM = """
for ((i = 1; i <= $#; i++)); do
  case "${!i}" in --benchmark_out=*) file=${!i#*=} ;; --output) j=$((i + 1)); file=${!j} ;; esac
done
[ -z "$file" ] || printf '%s' "${RESULT-{\\}}" > "$file"
case "$*" in *"$FAILS"*) [ -z "$FAILS" ] || exit 1 ;; esac
"""
# With ENDS the time of every program is over when it is done.
TIMEOUT = '#!/bin/bash\nshift\n[ -z "$ENDS" ] || { "$@"; exit 124; }\nexec "$@"\n'
CALLED = '#!/bin/bash\necho "${0##*/} $*" >> "$CALLS"\n'


@pytest.fixture
def tree(repository, tmp_path):
    root = tmp_path / "tree"
    for folder in ("tools", ".venv/bin", "build/cuda/bin", "stand-ins"):
        (root / folder).mkdir(parents=True)
    for name in ("run_gpu_benches.sh", "run_gpu_tests.sh", "has_gpu.sh"):
        shutil.copy2(repository / "tools" / name, root / "tools" / name)
    scripts = {
        "tools/build.sh": CALLED, ".venv/bin/ctest": CALLED, ".venv/bin/python": PYTHON + PROGRAM,
        "build/cuda/bin/step_compare": CALLED + PROGRAM, "build/cuda/bin/device_kernels": CALLED + PROGRAM,
        "stand-ins/compute-sanitizer": CALLED, "stand-ins/timeout": TIMEOUT,
    }  # fmt: skip
    for name, script in scripts.items():
        (root / name).write_text(script)
        (root / name).chmod(0o755)

    def run(script: str, *flags: str, **environment: str) -> tuple[subprocess.CompletedProcess, list[str]]:
        calls = tmp_path / "calls"
        calls.write_text("")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GHOSTSHARD_")}
        variables = clean | {
            "PATH": f"{root / 'stand-ins'}:{os.environ['PATH']}", "CALLS": str(calls), "REAL": sys.executable,
            **environment,
        }  # fmt: skip
        done = subprocess.run(
            [root / "tools" / script, *flags], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120
        )
        return done, calls.read_text().splitlines()

    run.results = root / "bench" / "results" / "gpu"
    return run


def of(calls: list[str], program: str) -> list[str]:
    return [call for call in calls if program in call]


def test_without_a_gpu_benches_are_built_and_nothing_is_run(tree):
    done, calls = tree("run_gpu_benches.sh", "-j", "3", NO_GPU="1")
    assert done.returncode == 0 and "nothing was run: this machine has no CUDA device" in done.stdout
    assert calls[0].startswith("build.sh -j 3 device_kernels step_compare ghostshard_python_engine")
    assert len(calls) == 2 and not tree.results.exists()


def test_with_a_gpu_every_bench_leaves_its_result(tree):
    done, calls = tree("run_gpu_benches.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 left out or ended, 0 failed" in done.stdout
    assert {file.name for file in tree.results.iterdir()} == {
        *(f"step_124M_T{length}_{dtype}.json" for length in (100, 1024) for dtype in ("float32", "bfloat16")),
        *(f"step_{model}_T{length}_bfloat16.json" for model in ("355M", "774M") for length in (100, 1024)),
        *(f"kernels_{model}.json" for model in ("124M", "355M", "774M")),
        *(f"peers_124M_T{length}_{dtype}.json" for length in (100, 1024) for dtype in ("bfloat16", "float32")),
    }  # fmt: skip
    benches = [call for call in calls if call.startswith(("step_compare ", "device_kernels ")) or "peers.py" in call]
    assert len(benches) == 15 and all("--device cuda" in call for call in benches)
    assert all("|cuda/python|" in call for call in of(calls, "peers.py"))


def test_a_short_run_has_one_of_each(tree):
    _, calls = tree("run_gpu_benches.sh", "--short")
    assert sorted(file.name for file in tree.results.iterdir()) == [
        "kernels_124M.json", "peers_124M_T1024_bfloat16.json", "step_124M_T1024_bfloat16.json",
    ]  # fmt: skip


def test_a_bench_that_fails_is_counted_and_the_others_run(tree):
    done, _ = tree("run_gpu_benches.sh", "--short", FAILS="peers.py")
    assert done.returncode == 1 and "peers_124M_T1024_bfloat16: failed with status 1" in done.stdout
    assert "0 left out or ended, 1 failed" in done.stdout
    assert (tree.results / "kernels_124M.json").exists()


@pytest.mark.parametrize("result, kept", [('{"runs": []}', True), ('{"runs": [', False), ("", False)])
def test_a_bench_whose_time_is_over_keeps_what_is_whole(tree, result, kept):
    done, _ = tree("run_gpu_benches.sh", "--short", ENDS="1", RESULT=result)
    assert done.returncode == 0 and "3 left out or ended, 0 failed" in done.stdout
    files = list(tree.results.iterdir())
    assert bool(files) == kept and all(json.loads(file.read_text()) == {"runs": []} for file in files)


@pytest.mark.parametrize("flags", [["--minutes", "0"], ["--minutes", "x"], ["--quick"]])
def test_mistakes_are_sentences(tree, flags):
    done, calls = tree("run_gpu_benches.sh", *flags)
    assert done.returncode == 2 and done.stderr.startswith("bench-gpu: ") and not calls


def test_without_a_gpu_tests_are_built_and_nothing_is_run(tree):
    done, calls = tree("run_gpu_tests.sh", NO_GPU="1")
    assert done.returncode == 0 and "nothing was run: this machine has no CUDA device" in done.stdout
    assert "ghostshard_python_engine" in calls[0] and len(calls) == 2


def test_with_a_gpu_the_python_path_is_tested_there_too(tree):
    done, calls = tree("run_gpu_tests.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    (python,) = of(calls, "pytest")
    assert python == "cuda|cuda/python|python -m pytest tests/python/device -q"
    assert of(calls, "ctest ") and len(of(calls, "compute-sanitizer ")) == 3


def test_a_failing_test_does_not_keep_the_rest_from_running(tree):
    done, calls = tree("run_gpu_tests.sh", FAILS="pytest")
    assert done.returncode == 1 and len(of(calls, "compute-sanitizer ")) == 3


# By (device, GPUs of the machine): for how many ranks the tests of the Python path run.
MACHINES = {("emulated", 0): (1, 2), ("cuda", 0): (), ("cuda", 1): (1,), ("cuda", 2): (1, 2)}


@pytest.mark.parametrize("machine, ranks", MACHINES.items(), ids=str)
def test_each_rank_needs_a_gpu_of_its_own(repository, monkeypatch, machine, ranks):
    monkeypatch.setenv("GHOSTSHARD_TEST_DEVICE", machine[0])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: machine[1])
    file = repository / "tests" / "python" / "device" / "device_under_test.py"
    spec = importlib.util.spec_from_file_location("chosen", file)
    chosen = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(chosen)
    said = {count: chosen.missing(count) for count in (1, 2)}
    assert tuple(count for count, why in said.items() if not why) == ranks
    assert all(f"{count} rank(s) on NCCL need as many CUDA devices" in why for count, why in said.items() if why)
