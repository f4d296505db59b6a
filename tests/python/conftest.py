"""Helpers shared by the Python tests."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from program import Program, write_inputs

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = "ghostshard-finetune-gpt2"


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def binary() -> Path:
    """The built C++ program. A test that needs it fails without it: a skip would hide an unbuilt tree."""
    path = Path(os.environ.get("GHOSTSHARD_BINARY", REPOSITORY / "build" / "release" / "bin" / PROGRAM))
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is not there: `make build` builds it", pytrace=False)
    return path


@pytest.fixture
def program(binary, tmp_path):
    """The C++ program in a folder that holds model/, data.safetensors and public.safetensors."""
    folder = tmp_path / "work"
    write_inputs(folder)
    runner = Program(binary, folder)
    yield runner
    runner.kill_all()


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def run_module():
    """Runs `python -m MODULE ARGUMENTS...` as a user would; returns exit code and both outputs."""

    def run(module: str, *arguments, env: dict | None = None, cwd: Path | None = None) -> Finished:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        done = subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            capture_output=True, text=True, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, timeout=300,
        )  # fmt: skip
        return Finished(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def fake_binary(tmp_path, monkeypatch):
    """A stand-in for the C++ program: fake_binary(script) puts a bash script where the package will find it."""

    def install(script: str) -> Path:
        path = tmp_path / "fake" / PROGRAM
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/usr/bin/env bash\n" + script)
        path.chmod(0o755)
        monkeypatch.setenv("GHOSTSHARD_BINARY", str(path))
        return path

    return install


@pytest.fixture(scope="session")
def account(repository):
    """account("epsilon", …): the finished process."""
    program = Path(os.environ.get("GHOSTSHARD_ACCOUNT", repository / "build" / "release" / "bin" / "ghostshard-account"))
    if not os.access(program, os.X_OK):
        pytest.fail(f"{program} is not there: `make build` builds it", pytrace=False)

    def run(*words):
        return subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=300)

    run.program = [str(program)]
    return run
