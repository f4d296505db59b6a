"""The installed package: another project finds it and builds a private program of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(elsewhere LANGUAGES CXX)
find_package(GhostShard REQUIRED)
add_executable(private_mlp private_mlp.cpp)
target_link_libraries(private_mlp PRIVATE GhostShard::dp)
"""


def tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name


def run(*words: object, cwd: Path | None = None) -> str:
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(binary, tmp_path_factory):
    """The folder that the library was installed into."""
    prefix = tmp_path_factory.mktemp("installed")
    run(tool("cmake"), "--install", binary.parent.parent, "--component", "library", "--prefix", prefix)
    return prefix


def test_no_installed_file_names_the_folder_it_was_built_in(installed, repository):
    for file in (installed / "lib" / "cmake" / "GhostShard").iterdir():
        assert str(repository) not in file.read_text(), file.name


def test_another_project_builds_and_runs_a_private_program(installed, repository, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    shutil.copy(repository / "examples" / "private_mlp.cpp", tmp_path)
    run(tool("cmake"), "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        f"-DCMAKE_PREFIX_PATH={installed}", f"-DPython3_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release")  # fmt: skip
    run(tool("cmake"), "--build", tmp_path / "build")
    shown = run(tmp_path / "build" / "private_mlp", "run1", cwd=tmp_path)
    assert "epsilon" in shown
    assert (tmp_path / "run1" / "privacy_report.json").exists()
