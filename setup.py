"""Builds the compiled modules with CMake for `pip install .`; everything else is in pyproject.toml.

Against the torch of the environment that is installed into, also from pip's isolated build. Without one the accountant is
built alone: it needs none.

An editable install builds nothing: there the modules are those of the source tree's own build (`make build`), which
bindings/python/ghostshard/_native finds.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Hands bindings/CMakeLists.txt the folder in which the modules must appear."""

    def run(self):
        if self.editable_mode:
            return
        modules = Path(self.build_lib).resolve() / "ghostshard" / "_native"
        tree = Path(self.build_temp).resolve() / "cmake"
        cmake = self._program("cmake")
        torch = self._torch()
        source = ROOT / "bindings" if torch is None else ROOT
        options = [] if torch is None else [
            f"-DGHOSTSHARD_TORCH_DIR={torch}", f"-DPYBIND11_INCLUDE_DIR={torch / 'include'}",
            *(f"-DGHOSTSHARD_BUILD_{part}=OFF" for part in ("TESTS", "BENCH", "EXAMPLES")),
        ]  # fmt: skip
        targets = ["ghostshard_python_accountant"] + (["ghostshard_python_engine"] if torch is not None else [])
        subprocess.run(
            [cmake, "-S", str(source), "-B", str(tree), *options, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
             f"-DCMAKE_MAKE_PROGRAM={self._program('ninja')}", f"-DPython3_EXECUTABLE={sys.executable}",
             f"-DGHOSTSHARD_MODULE_DIR={modules}"],
            check=True,
        )  # fmt: skip
        jobs = os.environ.get("JOBS", str(os.cpu_count() or 1))
        subprocess.run([cmake, "--build", str(tree), "--target", *targets, "--parallel", jobs], check=True)

    @staticmethod
    def _torch() -> Path | None:
        spec = importlib.util.find_spec("torch")
        places = [Path(spec.origin).parent] if spec is not None and spec.origin else []
        places += [Path(sysconfig.get_path(kind)) / "torch" for kind in ("purelib", "platlib")]
        return next((place for place in places if (place / "include" / "torch").is_dir()), None)

    @staticmethod
    def _program(name: str) -> str:
        # pip's isolated build puts the programs of its requirements first on PATH; beside Python they are in a venv.
        beside = Path(sys.executable).with_name(name)
        return str(beside) if beside.exists() else name

    def get_outputs(self):
        return [str(path) for path in (Path(self.build_lib) / "ghostshard" / "_native").glob("*.so")]


# The extension's name only makes setuptools treat the wheel as one for this platform.
setup(cmdclass={"build_ext": CMakeBuild}, ext_modules=[Extension("ghostshard._native.accountant", sources=[])])
