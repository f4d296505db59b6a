"""python -m ghostshard.doctor: what it finds missing, with the remedy."""

import importlib.metadata
import subprocess
import sys

import pytest
import torch

from ghostshard import _native, doctor


def test_here_everything_is_there_and_a_step_works(capsys):
    assert doctor.main(["--step"]) == 0
    shown = capsys.readouterr().out
    assert "The engine can train here." in shown and "a private step" in shown and "epsilon" in shown


def missing(shown: str) -> dict[str, str]:
    """Remedies by name."""
    lines = shown.splitlines()
    return {line.split()[1]: after.strip() for line, after in zip(lines, lines[1:]) if line.startswith("MISSING")}


def test_without_a_package_it_names_the_remedy(monkeypatch, capsys):
    def version(name: str) -> str:
        if name == "opacus":
            raise importlib.metadata.PackageNotFoundError(name)
        return "2.9.9" if name == "transformers" else real(name)

    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", version)
    assert doctor.main([]) == 1
    shown = capsys.readouterr().out
    assert missing(shown)["opacus"] == "-> python -m pip install 'opacus>=1.6'"
    assert missing(shown)["transformers"] == "-> python -m pip install 'transformers>=5.0'"
    assert "cannot train here" in shown


@pytest.mark.parametrize("version, fits", [("2.8.1", False), ("2.9.0", True), ("2.11.0+cpu", True), ("2.12.0", False)])
def test_the_range_of_torch(version, fits, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    found = {finding.name: finding for finding in doctor.packages()}
    assert found["torch"].missing != fits


def test_an_engine_that_does_not_load_is_missing(monkeypatch, capsys):
    def load(name: str):
        raise ImportError(f"no {name}: undefined symbol")

    monkeypatch.setattr(_native, "load", load)
    assert doctor.main([]) == 1
    shown = capsys.readouterr().out
    assert "undefined symbol" in shown and "`make build` in a source tree" in missing(shown)["engine"]


def test_programs_are_not_needed(monkeypatch, capsys):
    def find_binary(program: str):
        raise doctor.UserError(f"the program {program} is not there")

    monkeypatch.setattr(doctor, "find_binary", find_binary)
    assert doctor.main([]) == 0
    assert "the program ghostshard-account is not there" in missing(capsys.readouterr().out)["ghostshard-account"]


def test_another_torch_than_the_builds_is_refused(monkeypatch):
    monkeypatch.setattr(_native, "build_facts", lambda: {"torch": "2.10.0", "cuda": False})
    monkeypatch.delitem(__import__("sys").modules, "ghostshard._native.engine", raising=False)
    monkeypatch.setattr(torch, "__version__", "2.11.0+cpu")
    for folders, tree in (([], "`python -m pip install --force-reinstall --no-deps .`"), (["build"], "`make build`")):
        monkeypatch.setattr(_native, "_folders", lambda folders=folders: folders)
        with pytest.raises(ImportError, match="built with torch 2.10.0, this environment has 2.11.0\\+cpu: ") as refused:
            _native.load("engine")
        said = str(refused.value)
        assert "pip install 'torch==2.10.*'" in said and "the wheel with +torch2.11 in its name" in said and tree in said


def test_no_device_of_a_build_without_kernels_passes_for_usable(monkeypatch):
    class Facts:
        name, total_memory = "a GPU", 2**36

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Facts)
    for built, fits in (({"torch": "2.11.0", "cuda": False}, False), ({"torch": "2.11.0", "cuda": True}, True)):
        monkeypatch.setattr(_native, "build_facts", lambda built=built: built)
        found = {finding.name: finding for finding in doctor.devices()}
        assert found["cuda:0"].missing != fits and not found["cuda:0"].needed


def test_a_package_that_is_not_there_ends_in_no_traceback():
    """As in an environment of one's own after pip install --no-deps."""
    lines = [
        "import importlib.metadata as m, sys", "sys.modules['safetensors'] = None", "known = m.version",
        "def version(name):\n if name == 'safetensors': raise m.PackageNotFoundError(name)\n return known(name)",
        "m.version = version", "from ghostshard import doctor", "sys.exit(doctor.main([]))",
    ]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr and "pip install 'safetensors>=0.5'" in done.stdout


def test_unknown_words_are_a_mistake(run_module):
    done = run_module("ghostshard.doctor", "--stp")
    assert done.code == 2 and done.err.startswith("error: ")
