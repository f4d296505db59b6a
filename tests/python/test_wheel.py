"""pip install . fails at once with the remedy, or builds what works: what setup.py looks for, and a wheel of the built tree."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def setup(repository):
    spec = importlib.util.spec_from_file_location("setup_of_the_package", repository / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_torch(folder: Path, version: str) -> Path:
    (folder / "torch" / "include" / "torch").mkdir(parents=True)
    (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\ndebug = False\n")
    return folder / "torch"


@pytest.mark.parametrize("version, fits", [
    ("2.8.0", False), ("2.9.1+cpu", True), ("2.10.0", True), ("2.11.0+cu130", True), ("2.12.0a0", False), ("3.0.0", False),
])  # fmt: skip
def test_the_torch_that_is_there_must_fit(setup, monkeypatch, tmp_path, version, fits):
    torch = a_torch(tmp_path, version)
    monkeypatch.setattr(setup, "find_torch", lambda: torch)
    if fits:
        assert setup.installed_torch() == torch
        return
    with pytest.raises(SystemExit, match=f"torch must be 2.9 to 2.11, this environment has {version[:5]}") as refused:
        setup.installed_torch()
    assert "pip install 'torch>=2.9,<2.12'" in str(refused.value)


def test_without_torch_it_fails_and_says_how_to_go_on(setup, monkeypatch):
    monkeypatch.setattr(setup, "find_torch", lambda: None)
    with pytest.raises(SystemExit, match="there is none. First\n    python -m pip install 'torch>=2.9,<2.12'"):
        setup.installed_torch()
    monkeypatch.setenv("GHOSTSHARD_ACCOUNTANT_ONLY", "1")
    assert setup.installed_torch() is None


@pytest.mark.parametrize("command", ["dist_info", "bdist_wheel"])
def test_it_fails_before_anything_is_downloaded(setup, monkeypatch, command):
    """pip asks for the metadata first, and then downloads what they require."""
    monkeypatch.setattr(setup, "find_torch", lambda: None)
    monkeypatch.setattr(sys, "argv", ["setup.py", command])
    with pytest.raises(SystemExit, match="there is none"):
        setup.facts()
    monkeypatch.setattr(sys, "argv", ["setup.py", "sdist"])
    assert "torch>=2.9,<2.12" in setup.facts()["install_requires"]


@pytest.mark.parametrize("variable, value, sentence", [
    ("CXX", "no-such-compiler", "compiling needs a C++20 compiler, and there is no no-such-compiler"),
    ("GHOSTSHARD_CUDA", "yes", "ghostshard: GHOSTSHARD_CUDA must be 0 or 1, got 'yes'"),
])  # fmt: skip
@pytest.mark.parametrize("command", ["dist_info", "bdist_wheel"])
def test_what_compiling_needs_is_looked_for_before_anything_is_downloaded(setup, monkeypatch, tmp_path, command, variable, value, sentence):
    monkeypatch.setattr(setup, "find_torch", lambda: tmp_path / "torch")
    a_torch(tmp_path, "2.10.0")
    monkeypatch.setattr(setup, "PACKAGES", {})
    monkeypatch.setattr(sys, "argv", ["setup.py", command])
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit, match=re.escape(sentence)):
        setup.facts()
    monkeypatch.setenv("GHOSTSHARD_BUILT", "build/release")
    assert "torch==2.10.*" in setup.facts()["install_requires"]  # nothing is compiled


def test_it_requires_the_torch_that_it_is_built_with(setup, monkeypatch, tmp_path):
    monkeypatch.setattr(setup, "find_torch", lambda: a_torch(tmp_path, "2.10.0+cpu"))
    facts = setup.facts()
    assert "torch==2.10.*" in facts["install_requires"] and "+" not in facts["version"]
    monkeypatch.setattr(setup, "find_torch", lambda: tmp_path / "torch")
    monkeypatch.setenv("GHOSTSHARD_LOCAL_VERSION", "1")
    assert setup.facts()["version"].endswith("+torch2.10")


def compiler(folder: Path, script: str) -> str:
    (folder / "cxx").write_text("#!/bin/bash\n" + script)
    (folder / "cxx").chmod(0o755)
    return str(folder / "cxx")


def test_a_missing_compiler_or_header_is_named(setup, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SystemExit, match="there is no no-such-compiler. On Debian or Ubuntu\n    apt-get install g\\+\\+ libgloo-dev"):
        setup.require_tools(setup.PACKAGES)
    monkeypatch.setenv("CXX", compiler(tmp_path, 'grep -q "gloo\\|CLI" "${@: -1}" && exit 1; exit 0'))
    with pytest.raises(SystemExit, match="gloo/algorithm.h, CLI/CLI.hpp. On Debian or Ubuntu\n    apt-get install libgloo-dev libcli11-dev$"):
        setup.require_tools(setup.PACKAGES)
    monkeypatch.setenv("CXX", compiler(tmp_path, "exit 1"))
    with pytest.raises(SystemExit, match="must know C\\+\\+20"):
        setup.require_tools(setup.PACKAGES)


def test_a_python_that_is_too_old_is_named_before_a_torch_that_it_cannot_have(setup, monkeypatch):
    with pytest.raises(SystemExit, match="must be 3.11 or newer, this environment has 3.9.18. First\n    python3.11 -m venv .venv\n"):
        setup.require_python((3, 9, 18))
    setup.require_python((3, 11, 0))
    monkeypatch.setattr(setup, "require_python", lambda: sys.exit("asked"))
    with pytest.raises(SystemExit, match="asked"):
        setup.facts()


def test_setup_py_can_be_read_by_an_older_python(repository):
    """What newer ones know, in annotations, is not looked at (PEP 563), and nothing else of theirs is used."""
    text = (repository / "setup.py").read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)


def test_folders_of_the_build_must_take_what_is_written(setup, monkeypatch, tmp_path):
    (tmp_path / "bindings" / "python").mkdir(parents=True)
    (tmp_path / "build").touch()
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="writes to .*/build, which is not possible .*Make it writable,\nor install from a clone"):
        setup.require_folders(True)
    (tmp_path / "build").unlink()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda folder: usage._replace(free=setup.ROOM[True] - 1))
    with pytest.raises(SystemExit, match=f"needs {setup.ROOM[True] >> 20} MiB in .*/build, {(setup.ROOM[True] >> 20) - 1} are free. Make"):
        setup.require_folders(True)
    setup.require_folders(False)
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda folder: usage._replace(free=0 if folder.name != "build" else 2**40))
    with pytest.raises(SystemExit, match="0 are free. Make room, or name another one: TMPDIR="):
        setup.require_folders(True)
    (tmp_path / "bindings" / "python" / "ghostshard").mkdir()
    (tmp_path / "bindings" / "python" / "ghostshard" / "__init__.py").write_text('__version__ = "0"')
    monkeypatch.setattr(sys, "argv", ["setup.py", "egg_info"])  # the first that pip calls, and it writes
    with pytest.raises(SystemExit, match="0 are free"):
        setup.facts()


@pytest.mark.parametrize("script, sentence", [
    (None, "compiling needs cmake, and there is none on PATH. First\n    python -m pip install 'cmake>=3.28' ninja\n"),
    ("echo cmake version 3.25.1", "cmake must be 3.28 or newer, .*/cmake is 3.25.1. First\n    python -m pip install 'cmake>=3.28'\n"),
    ("exit 1", "cmake must be 3.28 or newer, .*/cmake is broken"),
    ("echo cmake version 4.0.1-rc1", None),
])  # fmt: skip
def test_cmake_must_fit(setup, monkeypatch, tmp_path, script, sentence):
    for name, text in (("ninja", "exit 0"), *([("cmake", script)] if script else [])):
        os.rename(compiler(tmp_path, text), tmp_path / name)
    monkeypatch.setattr(setup, "program", lambda name: shutil.which(name, path=str(tmp_path)))
    if sentence is None:
        setup.require_cmake()
        return
    with pytest.raises(SystemExit, match=sentence):
        setup.require_cmake()


def test_as_many_files_at_a_time_as_memory_holds(setup, monkeypatch):
    monkeypatch.delenv("JOBS", raising=False)
    monkeypatch.setattr(setup.os, "sched_getaffinity", lambda process: set(range(64)))
    for free, jobs in ((0, 1), (5 * 2**30, 2), (2**40, 64)):
        monkeypatch.setattr(setup, "part_of_package", lambda name, free=free: SimpleNamespace(free_memory=lambda: free))
        assert setup.number_of_jobs() == jobs
    monkeypatch.setenv("JOBS", "3")
    assert setup.number_of_jobs() == 3
    for wrong in ("0", "-1", "many", "1.5", "²"):
        monkeypatch.setenv("JOBS", wrong)
        with pytest.raises(SystemExit, match=f"JOBS must be a whole number from 1 .*, got '{wrong}'"):
            setup.number_of_jobs()


def test_a_compiler_that_fails_ends_in_a_sentence(setup):
    with pytest.raises(SystemExit, match=r"^ghostshard: cmake \(status 7\) could not compile: ...$"):
        setup.cmake_or_end("compile: ...", [sys.executable, "-c", "import sys; sys.exit(7)"])


def test_a_wheel_of_the_built_tree(binary, repository, tmp_path):
    tree = binary.parents[1]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, "."]
    environment = os.environ | {"GHOSTSHARD_LOCAL_VERSION": "1", "GHOSTSHARD_BUILT": str(tree)}
    subprocess.run([str(word) for word in command], cwd=repository, env=environment, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("dist-info/METADATA"))
        scripts = {name.split("/")[-1]: archive.read(name).decode() for name in names if ".data/scripts/" in name}
    modules = [name for name in names if name.startswith("ghostshard/_native/") and name.endswith(".so")]
    assert {name.split("/")[-1].split(".")[0] for name in modules} == {"accountant", "engine"}
    assert {"ghostshard/_programs/ghostshard-account", "ghostshard/_programs/ghostshard-finetune-gpt2"} <= set(names)
    assert "ghostshard/_native/build.json" in names and not any("libtorch" in name for name in names)
    assert "Requires-Dist: torch==2.11.*" in metadata and "+torch2.11" in wheel.name
    assert sorted(scripts) == ["ghostshard", "ghostshard-check-receipt"]
    assert all(script.startswith("#!python\n") for script in scripts.values())  # which pip replaces by its own


def test_a_new_configuration_keeps_what_was_compiled(setup, tmp_path):
    """A second `pip install .` goes on where the first ended."""
    for name in ("CMakeCache.txt", "CMakeFiles/4.1.2/CMakeCXXCompiler.cmake", "CMakeFiles/all.dir/cmake_pch.hxx.gch", "one.o"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    setup.forget_configuration(tmp_path)
    assert sorted(file.name for file in tmp_path.rglob("*") if file.is_file()) == ["cmake_pch.hxx.gch", "one.o"]
    setup.forget_configuration(tmp_path / "not there yet")


def test_a_tree_of_another_torch_is_refused(setup, monkeypatch, tmp_path):
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "build.json").write_text('{"torch": "2.9.0", "cuda": false}')
    monkeypatch.setenv("GHOSTSHARD_BUILT", str(tmp_path))
    with pytest.raises(SystemExit, match="was built with torch 2.9.0, this environment has 2.11.0"):
        setup.CMakeBuild._built_tree(a_torch(tmp_path, "2.11.0"))


SOURCES = ("accountant", "bindings", "cmake", "dp", "examples", "fsdp", "kernels")


def test_an_archive_of_sources_holds_all_that_is_compiled(repository, tmp_path):
    """`python -m build` makes one first, and the wheel from it."""
    clone = tmp_path / "clone"
    made_here = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for folder in SOURCES:
        shutil.copytree(repository / folder, clone / folder, ignore=made_here)
    for file in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CMakeLists.txt", "CMakePresets.json"):
        shutil.copy(repository / file, clone / file)
    files = {str(path.relative_to(clone)) for path in clone.rglob("*") if path.is_file()}
    done = subprocess.run([sys.executable, "-c", "from setuptools import build_meta; build_meta.build_sdist('dist')"], cwd=clone,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (archive,) = (clone / "dist").iterdir()
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    assert not files - held, sorted(files - held)[:5]
