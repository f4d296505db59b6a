"""python -m ghostshard.doctor: what this installation has, and what it lacks, with the remedy; --step trains one private step.

Exit status 0 if the engine can train here, 1 if it cannot."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ghostshard import __version__, _native
from ghostshard.binary import find_binary
from ghostshard.errors import UserError, parser, run

TORCH = ((2, 9), (2, 12))  # from, below; setup.py builds for these
PACKAGES = {"opacus": (1, 6), "transformers": (5, 0), "tokenizers": (0, 22), "safetensors": (0, 5), "numpy": (2, 0)}


@dataclass(frozen=True)
class Finding:
    name: str
    detail: str
    remedy: str = ""  # of what is missing
    needed: bool = True  # the engine cannot train without it

    @property
    def missing(self) -> bool:
        return bool(self.remedy)


def version_of(text: str) -> tuple[int, int]:
    major, minor, *_ = (int("".join(c for c in part if c.isdigit()) or 0) for part in (*text.split(".")[:2], "0"))
    return major, minor


def python() -> Iterator[Finding]:
    remedy = "" if sys.version_info >= (3, 11) else "Python must be 3.11 or newer"
    yield Finding("Python", f"{platform.python_version()}, {sys.executable}", remedy)


def packages() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("torch", f"not usable: {error}", "python -m pip install 'torch>=2.9,<2.12'")
    else:
        fits = TORCH[0] <= version_of(torch.__version__) < TORCH[1]
        kind = f"CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
        yield Finding("torch", f"{torch.__version__}, {kind}", "" if fits else "python -m pip install 'torch>=2.9,<2.12'")
    for name, least in PACKAGES.items():
        wanted = f"python -m pip install '{name}>={least[0]}.{least[1]}'"
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "not installed", wanted)
        else:
            yield Finding(name, version, "" if version_of(version) >= least else wanted)


def modules() -> Iterator[Finding]:
    remedy = "install ghostshard again with torch there (pip install .), or `make build` in a source tree"
    for name in ("accountant", "engine"):
        try:
            module = _native.load(name)
        except (ImportError, OSError) as error:
            yield Finding(name, str(error), remedy)
        else:
            yield Finding(name, str(module.__file__))
    if facts := _native.build_facts():
        kernels = "with CUDA kernels" if facts["cuda"] else "without CUDA kernels"
        yield Finding("built", f"for torch {facts['torch'] or '(none)'}, {kernels}")


def programs() -> Iterator[Finding]:
    for name in ("ghostshard-finetune-gpt2", "ghostshard-account"):
        try:
            binary = find_binary(program=name)
            done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=60)
        except (UserError, OSError, subprocess.TimeoutExpired) as error:
            yield Finding(name, "not found", str(error), needed=False)
        else:
            wrong = "" if done.returncode == 0 else done.stderr.strip() or f"--version ended with status {done.returncode}"
            yield Finding(name, str(binary), wrong, needed=False)


def devices() -> Iterator[Finding]:
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError):
        return
    gloo = dist.is_available() and dist.is_gloo_available()
    yield Finding("ranks", f"Gloo {'yes' if gloo else 'no'}, NCCL {'yes' if dist.is_nccl_available() else 'no'}",
                  "" if gloo else "a torch with Gloo: without it there is one rank alone", needed=False)  # fmt: skip
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    yield Finding("CPU", f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB")
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        facts = torch.cuda.get_device_properties(index)
        kernels = (_native.build_facts() or {}).get("cuda")
        remedy = "" if kernels else "nvcc of torch's CUDA version, then pip install . again (docs/cuda.md); the CPU works"
        yield Finding(f"cuda:{index}", f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB", remedy, needed=False)


def compilers() -> Iterator[Finding]:
    """Told only if something has to be built."""
    for name, purpose in (("g++", "to build the engine"), ("nvcc", "to build its CUDA kernels")):
        places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
        found = shutil.which(name, path=places)
        yield Finding(name, found or "not found", "" if found else f"needed {purpose}", needed=False)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (python, packages, modules, programs, devices)


def first_step() -> float:
    """One private step of a small model, on a device if there is one; returns epsilon. Raises what the engine raises."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from ghostshard import PrivacyEngine

    facts = _native.build_facts() or {}
    device = "cuda" if torch.cuda.is_available() and facts.get("cuda") else "cpu"
    inputs, targets = torch.randn(64, 8), torch.randint(0, 4, (64,))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    engine = PrivacyEngine(accountant="prv")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, criterion, loader = engine.make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), criterion=nn.CrossEntropyLoss(),
            data_loader=DataLoader(TensorDataset(inputs, targets), batch_size=16), noise_multiplier=1.0, max_grad_norm=1.0,
            grad_sample_mode="ghost",
        )  # fmt: skip
        before = [parameter.detach().clone() for parameter in model.parameters()]
        batch, labels = next(iter(loader))
        optimizer.zero_grad()
        criterion(model(batch.to(device)), labels.to(device)).backward()
        optimizer.step()
    if all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)):
        raise RuntimeError("the step left the model as it was")
    return engine.get_epsilon(1e-5)


def main(arguments: list[str] | None = None) -> int:
    return run(_main, arguments)


def _main(arguments: list[str]) -> int:
    command = parser("ghostshard doctor", "What this installation of GhostShard has, and what it lacks.")
    command.add_argument("--step", action="store_true", help="train one private step as well")
    options = command.parse_args(arguments)
    findings = [finding for check in CHECKS for finding in check()]
    if any(finding.missing and finding.needed for finding in findings):
        findings += compilers()
    print(f"ghostshard {__version__}")
    for finding in findings:
        print(f"{'MISSING' if finding.missing else 'ok':8}{finding.name:26}{finding.detail}")
        if finding.missing:
            print(f"{'':8}{'':26}-> {finding.remedy}")
    usable = not any(finding.missing and finding.needed for finding in findings)
    if usable and options.step:
        print(f"{'ok':8}{'a private step':26}epsilon {first_step():.3f} at delta 1e-5")
    print("The engine can train here." if usable else "The engine cannot train here: see the lines marked MISSING.")
    return 0 if usable else 1


if __name__ == "__main__":
    sys.exit(main())
