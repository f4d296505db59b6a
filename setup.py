"""Builds the compiled modules with CMake for `pip install .`; everything else is in pyproject.toml.

Against the torch of the environment that is installed into, also from pip's isolated build. Without one the accountant is
built alone: it needs none. With the CUDA kernels where that torch is one for CUDA and nvcc of the same major version is
found (on PATH, in CUDA_HOME or CUDA_PATH, in /usr/local/cuda); GHOSTSHARD_CUDA=0 leaves them out, =1 insists. Which it was is
printed (pip shows it with -v), and a model on a device that the build does not know is refused with a sentence.

An editable install builds nothing: there the modules are those of the source tree's own build (`make build`), which
bindings/python/ghostshard/_native finds.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
TOOLKIT = "/usr/local/cuda"  # where CUDA is, if nothing says where


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
        if torch is not None:
            nvcc, why = cuda_compiler(torch)
            print(f"ghostshard: built {'with' if nvcc else 'without'} CUDA kernels: {why}")
            options += ["-DGHOSTSHARD_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={nvcc}"] if nvcc else ["-DGHOSTSHARD_CUDA=OFF"]
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


def cuda_compiler(torch: Path) -> tuple[str | None, str]:
    """nvcc for the CUDA kernels, or none, and the reason. RuntimeError where GHOSTSHARD_CUDA=1 cannot be met."""
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


# The extension's name only makes setuptools treat the wheel as one for this platform.
if __name__ == "__main__":  # a test imports what is above
    setup(cmdclass={"build_ext": CMakeBuild}, ext_modules=[Extension("ghostshard._native.accountant", sources=[])])
