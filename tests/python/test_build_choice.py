"""Whether `pip install .` builds the CUDA kernels: by the torch that is there, by nvcc, by GHOSTSHARD_CUDA."""

import importlib.util
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Case:
    name: str
    torch_cuda: str | None = "13.0"  # what version.py says
    library: bool = True  # libtorch_cuda.so is there
    nvcc: str | None = "13.1"
    variable: str | None = None
    found: bool = False
    why: str = ""
    refused: bool = False


CASES = [
    Case("both", found=True, why="is 13, torch's CUDA is 13"),
    Case("torch_for_the_cpu", torch_cuda=None, why="not one for CUDA"),
    Case("torch_without_its_library", library=False, why="not one for CUDA"),
    Case("no_nvcc", nvcc=None, why="no nvcc"),
    Case("older_nvcc", nvcc="12.8", why="is 12, torch's CUDA is 13"),
    Case("left_out", variable="0", why="GHOSTSHARD_CUDA=0"),
    Case("insisted", variable="1", found=True, why="is 13"),
    Case("insisted_in_vain", variable="1", nvcc=None, refused=True, why="GHOSTSHARD_CUDA=1, but no nvcc"),
    Case("no_such_choice", variable="yes", refused=True, why="must be 0 or 1, got 'yes'"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernels_are_built_where_they_can_be(case, repository, tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("setup_of_the_package", repository / "setup.py")
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    torch = tmp_path / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "version.py").write_text(f"debug = False\ncuda: Optional[str] = {case.torch_cuda!r}\nhip: Optional[str] = None\n")
    if case.library:
        (torch / "lib" / "libtorch_cuda.so").touch()
    home = tmp_path / "cuda"
    (home / "bin").mkdir(parents=True)
    if case.nvcc is not None:
        (home / "bin" / "nvcc").write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {case.nvcc}, V{case.nvcc}.0'\n")
        (home / "bin" / "nvcc").chmod(0o755)
    monkeypatch.setattr(setup, "TOOLKIT", str(tmp_path / "nothing"))
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    if case.variable is None:
        monkeypatch.delenv("GHOSTSHARD_CUDA", raising=False)
    else:
        monkeypatch.setenv("GHOSTSHARD_CUDA", case.variable)
    if case.refused:
        with pytest.raises(RuntimeError, match=case.why):
            setup.cuda_compiler(torch)
        return
    nvcc, why = setup.cuda_compiler(torch)
    assert nvcc == (str(home / "bin" / "nvcc") if case.found else None)
    assert case.why in why
