"""Compiler flags that go by file name: a file that moves must not lose them, because no result on one machine shows it.

Noise has the same bits on every machine only if no multiplication is fused with an addition, and kernels that spill
registers are slow only.
"""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

NOISE = "kernels/gaussian/box_muller_pair.h"  # the arithmetic of the noise
MOMENTS = "kernels/quantised_moments/formula.h"  # of 8-bit moments; their host loops alone compute with it
SPILLS = "-Xptxas=--warn-on-spills,--warning-as-error"
EMULATION = Path("tests/emulation/cuda")


def compile_commands(tree: Path) -> dict[str, list[list[str]]]:
    """The words of each command that compiles a source, by its path from the root of the repository. The preset cuda
    compiles device code twice: with nvcc, and for the emulation."""
    listing = tree / "compile_commands.json"
    if not listing.is_file():
        pytest.fail(f"{listing} is not there: `make build` writes it", pytrace=False)
    root = tree.parents[1]
    commands = {}
    for entry in json.loads(listing.read_text()):
        file = Path(entry["directory"], entry["file"]).resolve()
        if file.is_relative_to(root.resolve()):
            commands.setdefault(str(file.relative_to(root.resolve())), []).append(shlex.split(entry["command"]))
    return commands


def sources_that_include(header: str, root: Path) -> set[str]:
    """Sources under kernels/ that include the header, directly or through another header there."""
    includes = {
        str(file.relative_to(root)): set(re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE))
        for file in (root / "kernels").rglob("*.*")
        if file.suffix in {".h", ".cuh", ".cpp", ".cu"}
    }
    reached = {header}
    while more := {file for file, wanted in includes.items() if wanted & reached} - reached:
        reached |= more
    return {file for file in reached if file.endswith((".cpp", ".cu"))}


def fuses(command: list[str]) -> bool:
    """Whether the compiler may fuse a multiplication with an addition. The last flag counts."""
    contract = [word for word in command if word.startswith(("-ffp-contract=", "-fmad=", "-ffast-math"))]
    return not contract or contract[-1] not in {"-ffp-contract=off", "-fmad=false"}


@pytest.fixture
def release(repository) -> dict[str, list[list[str]]]:
    return compile_commands(repository / "build" / os.environ.get("GHOSTSHARD_PRESET", "release"))


def test_noise_is_compiled_without_fused_operations(repository, release):
    files = sources_that_include(NOISE, repository) | {"kernels/gaussian.cpp"}
    assert files == {"kernels/gaussian.cpp", "kernels/gaussian/box_muller.cpp", "kernels/gaussian/launch.cu"}
    assert not [file for file in files for command in release[file] if fuses(command)]


def test_moments_are_compiled_without_fused_operations(release):
    files = ("kernels/quantised_moments/host_loops.cpp", "kernels/quantised_moments/launch.cu")
    assert not [file for file in files for command in release[file] if fuses(command)]


def test_moments_are_computed_in_those_two_files_alone(repository):
    users = {
        str(file.relative_to(repository))
        for file in (repository / "kernels").rglob("*.*")
        if re.search(r"\b(adamw_element|(?:en|de)code_moment)\b[<(]", file.read_text())
    }
    assert users == {MOMENTS, "kernels/quantised_moments/host_loops.cpp", "kernels/quantised_moments/kernels.cuh"}


@pytest.mark.parametrize(
    "flags, expected",
    [
        (["-O3"], True),
        (["-ffp-contract=off"], False),
        (["-ffp-contract=off", "-ffast-math"], True),
        (["-ffp-contract=off", "-ffp-contract=fast"], True),
        (["-fmad=false"], False),
    ],
    ids=["no_flag", "host", "undone_by_fast_math", "undone_later", "device"],
)
def test_a_lost_flag_is_seen(flags, expected):
    assert fuses(["g++", *flags, "-c"]) == expected


def cmake_commands(file: Path) -> list[str]:
    text = re.sub(r"#.*", "", file.read_text())
    return [" ".join(found.split()) for found in re.findall(r"\w+\((?:[^()]|\([^()]*\))*\)", text)]


def test_device_code_of_noise_and_moments_is_compiled_without_fused_operations(repository):
    named = [c for c in cmake_commands(repository / "kernels/CMakeLists.txt") if "-fmad=false" in c]
    assert len(named) == 1
    here = r'"\$\{CMAKE_CURRENT_SOURCE_DIR\}/'
    sources = rf'{here}gaussian/launch\.cu" {here}quantised_moments/launch\.cu"'
    assert re.match(rf"set_property\(SOURCE {sources} APPEND ", named[0])


def test_kernels_that_spill_registers_are_errors_but_for_the_librarys(repository):
    commands = cmake_commands(repository / "kernels/CMakeLists.txt")
    spills = [i for i, c in enumerate(commands) if SPILLS in c]
    filters = [i for i, c in enumerate(commands) if c.startswith("list(FILTER device_sources EXCLUDE REGEX")]
    assert len(spills) == 1 and len(filters) == 1 and filters[0] < spills[0]
    assert commands[spills[0]].startswith("set_property(SOURCE ${device_sources} APPEND PROPERTY COMPILE_OPTIONS")
    exempt = re.search(r'"(.+)"', commands[filters[0]]).group(1)
    kernels = list((repository / "kernels").glob("*/*.cu"))
    assert [file.name for file in kernels if re.search(exempt, str(file))] == ["sort.cu"]
    assert len(kernels) > 8


def test_flags_of_the_cuda_tree_are_those_that_its_files_need(repository):
    """If the preset cuda is configured, its commands are read too."""
    tree = repository / "build" / "cuda"
    if not (tree / "compile_commands.json").is_file():
        return
    commands = compile_commands(tree)
    for name in ("gaussian", "quantised_moments"):
        assert not [command for command in commands[f"kernels/{name}/launch.cu"] if fuses(command)]
    for file in (repository / "kernels").glob("*/*.cu"):
        name = str(file.relative_to(repository))
        by_nvcc = [command for command in commands[name] if Path(command[0]).name == "nvcc"]
        assert len(by_nvcc) == 1
        assert (SPILLS in by_nvcc[0]) == (file.name != "sort.cu"), name


@pytest.mark.parametrize("folder", ["kernels", "tests/emulation/device", "tests/kernels"])
def test_cmake_names_only_sources_that_exist(folder, repository):
    """CMake sets properties of a source that does not exist without a word."""
    here = repository / folder
    text = re.sub(r"#.*", "", (here / "CMakeLists.txt").read_text())
    variables = {"CMAKE_CURRENT_SOURCE_DIR": str(here), "PROJECT_SOURCE_DIR": str(repository)}
    variables |= dict(re.findall(r'set\((\w+) "([^"\s]*)"\)', text))
    while re.search(r"\$\{(" + "|".join(variables) + r")\}", text):
        for name, value in variables.items():
            text = text.replace("${" + name + "}", value)
    names = re.findall(r"[^\s\";()]+\.(?:cpp|cu)\b", text)
    assert names
    missing = [name for name in names if not list(here.glob(name) if not name.startswith("/") else Path("/").glob(name[1:]))]
    assert not missing


def test_headers_of_the_emulation_shadow_the_devices(repository, release):
    shadows = {str(file.relative_to(repository / EMULATION)) for file in (repository / EMULATION / "kernels").rglob("*.*")}
    assert shadows == {f"kernels/device/{name}.cuh" for name in ("copy_async", "load_matrices", "mma", "shared")}
    assert not [name for name in shadows if not (repository / name).is_file()]
    for file in (repository / "kernels").glob("*/launch.cu"):
        (command,) = [command for command in release[str(file.relative_to(repository))] if "-xc++" in command]
        searched = [Path(word[2:]).resolve() for word in command if word.startswith("-I")]
        assert searched.index((repository / EMULATION).resolve()) < searched.index(repository.resolve()), file
