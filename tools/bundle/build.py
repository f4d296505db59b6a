"""run.sh build: compiles the bundle's sources for the Python, torch and CUDA of this machine, into built/.

Headers and libraries that machines lack are in third_party/; nvcc, g++, cmake, ninja or make, and the headers of Python must
be there."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
from machine import COMPLETE, Unfit

TARGETS = ("ghostshard-account", "ghostshard-finetune-gpt2", "step_compare", "device_kernels", "kernels_test",
           "kernels_gpu_test", "engine_gpu_test", "ghostshard_python_engine", "ghostshard_python_accountant")  # fmt: skip


def configuration(bundle: Path, nvcc: str | None) -> list[str]:
    """cmake's arguments."""
    third = bundle / "third_party"
    options = {
        "CMAKE_BUILD_TYPE": "Release", "GHOSTSHARD_CUDA": "ON" if nvcc else "OFF", "Python3_EXECUTABLE": sys.executable,
        "CMAKE_PREFIX_PATH": third, "GLOO_INCLUDE_DIR": third / "include", "OPENSSL_ROOT_DIR": third,
        "OPENSSL_INCLUDE_DIR": third / "include", "OPENSSL_CRYPTO_LIBRARY": third / "lib/x86_64-linux-gnu/libcrypto.so.3",
        # Not every header comes with a target that names its folder; OpenSSL has one for each architecture.
        "CMAKE_CXX_FLAGS": f"-isystem {third / 'include'} -isystem {third / 'include/x86_64-linux-gnu'}",
        "CMAKE_BUILD_RPATH": third / "lib/x86_64-linux-gnu", "CMAKE_LIBRARY_ARCHITECTURE": "x86_64-linux-gnu",
        **({"CMAKE_CUDA_COMPILER": nvcc} if nvcc else {}),
        **({"CMAKE_CUDA_ARCHITECTURES": "native"} if nvcc and torch.cuda.is_available() else {}),
    }  # fmt: skip
    words = ["-S", bundle / "tree", "-B", bundle / "built", *(f"-D{name}={value}" for name, value in options.items())]
    if shutil.which("ninja"):
        words += ["-G", "Ninja"]
    return [str(word) for word in words]


def build(bundle: Path, jobs: int, targets: tuple[str, ...] = TARGETS) -> int:
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = shutil.which("nvcc", path=os.pathsep.join([os.environ.get("PATH", ""), f"{toolkit}/bin"]))
    lacking = [name for name in ("cmake", "g++") if not shutil.which(name)] + ([] if nvcc else ["nvcc"])
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        lacking.append("Python.h")
    if lacking:
        raise Unfit(f"to build, this machine lacks {', '.join(lacking)}; ./run.sh test uses what the bundle brought")
    (bundle / "built" / COMPLETE).unlink(missing_ok=True)
    subprocess.run(["cmake", *configuration(bundle, nvcc)], check=True)
    names = [word for target in targets for word in ("--target", target)]
    done = subprocess.run(["cmake", "--build", str(bundle / "built"), "--parallel", str(jobs), *names])
    if done.returncode != 0:
        return 1
    link = bundle / "built" / "modules"
    if not link.exists():
        link.symlink_to("python")
    (bundle / "built" / COMPLETE).touch()
    print("run.sh: built; test, bench and all use it from now on")
    return 0
