"""The parts of a bundle's run: what each starts, how long it may take, and what it needs beside the bundle."""

import sys
from dataclasses import dataclass
from pathlib import Path

from machine import Machine


@dataclass(frozen=True)
class Part:
    name: str
    kind: str  # test or bench
    limit: int  # seconds
    command: tuple[str, ...]
    counts: str = ""  # how its result file counts tests: gtest or pytest
    needs: tuple[str, ...] = ()  # modules of Python; programs with a leading "!"


def parts_of(kind: str, device: str, machine: Machine, results: Path) -> list[Part]:
    """Tests before benches, and of each the longest last, so that a run that is cut short has most of its answers."""
    tests = tests_of(device, machine, results) if kind in ("test", "all") else []
    benches = benches_of(device, machine, results) if kind in ("bench", "all") else []
    return [part for group in (tests, benches) for part in sorted(group, key=lambda part: part.limit)]


def tests_of(device: str, machine: Machine, results: Path) -> list[Part]:
    here = Path(__file__).parent

    def gtest(name: str, program: str, limit: int, *words: str) -> Part:
        return Part(name, "test", limit, (program, "--gtest_brief=1", f"--gtest_output=json:{results / name}.tests", *words), "gtest")

    def pytest(name: str, limit: int, *words: str, needs: tuple[str, ...] = ()) -> Part:
        command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results / name}.tests", *words)
        return Part(name, "test", limit, command, "pytest", ("numpy", "scipy", *needs))

    parts = [
        Part("account", "test", 60, ("ghostshard-account", "epsilon", "--sampling-rate", "0.01", "--noise-multiplier", "1",
                                     "--steps", "1000", "--delta", "1e-6")),
        Part("first_run", "test", 120, (sys.executable, str(here / "first_run.py"), "--device", device), needs=("numpy",)),
        gtest("kernels_reference", "kernels_test", 180),
    ]  # fmt: skip
    if device == "cpu":
        return [*parts, pytest("python", 240, "tests/python/ghost/test_ghost_sums.py", needs=("transformers", "peft"))]
    sanitizer = [
        Part(f"sanitizer_{tool}", "test", 240 + place, ("compute-sanitizer", "--tool", tool, "--error-exitcode", "1",
                                                         "kernels_gpu_test", "--gtest_brief=1"), needs=("!compute-sanitizer",))
        for place, tool in enumerate(("memcheck", "racecheck", "synccheck"))
    ]  # fmt: skip
    return [
        *parts, *sanitizer, gtest("kernels_gpu", "kernels_gpu_test", 150), gtest("engine_gpu", "engine_gpu_test", 230),
        pytest("python_gpu", 235, "tests/python/device", needs=("transformers", "peft")),
    ]  # fmt: skip


def benches_of(device: str, machine: Machine, results: Path) -> list[Part]:
    commit = machine.facts["commit"]
    peers = str(machine.bundle / "tree" / "bench" / "peers.py")
    needs = ("numpy", "scipy")

    def step(model: str, length: int, dtype: str, limit: int, *words: str) -> Part:
        name = f"step_{model}_T{length}_{dtype}"
        command = ("step_compare", "--device", device, "--commit", commit, "--output", f"{results / name}.json")
        return Part(name, "bench", limit, (*command, "--length", str(length), "--compute-dtype", dtype, *words))

    def kernels(model: str, limit: int, *words: str) -> Part:
        name = f"kernels_{model}"
        command = ("device_kernels", "--device", device, "--commit", commit, f"--benchmark_out={results / name}.json")
        return Part(name, "bench", limit, (*command, "--benchmark_out_format=json", "--models", model, *words))

    def python(shape: str, texts: int, dtype: str, limit: int, *words: str) -> Part:
        name = f"peers_{shape}_{dtype}"
        command = (sys.executable, peers, "--device", device, "--output", f"{results / name}.json", "--shapes", shape)
        return Part(name, "bench", limit, (*command, "--texts", str(texts), "--compute-dtype", dtype, *words), needs=needs)

    if device == "cpu":  # that they run; a CPU's figures come from `make bench`
        tiny = ("--layers", "1", "--width", "32", "--heads", "2", "--vocab", "64", "--texts", "2", "--microbatches", "2",
                "--repeats", "1")  # fmt: skip
        return [
            step("tiny", 16, "float32", 60, *tiny),
            kernels("124M", 180, "--lengths", "8", "--rows", "16", "--repeats", "1", "--copy-mib", "1", "--most-gib", "0.01"),
            python("21M_T100", 1, "float32", 240, "--microbatches", "1", "--repeats", "1", "--engines", "fsdp2", "ghostshard"),
        ]
    # Texts fill about 8,192 rows of a microbatch; six engines share the device's memory, so half of them must do.
    steps = [
        step(model, length, dtype, limit, "--model", model, "--texts", str(8192 // length))
        for model, limit in (("124M", 60), ("355M", 90), ("774M", 120))
        for length in (1024, 100)
        for dtype in (("bfloat16", "float32") if model == "124M" else ("bfloat16",))
    ]
    return [
        *steps, *(kernels(model, limit) for model, limit in (("124M", 100), ("355M", 130), ("774M", 150))),
        *(python(f"124M_T{length}", 4096 // length, dtype, 140, "--repeats", "5")
          for dtype in ("bfloat16", "float32") for length in (1024, 100)),
    ]  # fmt: skip
