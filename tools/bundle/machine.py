"""The machine that a bundle was carried to: its Python and torch, its device, and the variables that programs run with."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

COMPLETE = ".complete"  # the last thing that run.sh build writes


class Unfit(Exception):
    """The machine lacks what nothing in the bundle can stand in for; the text says what."""


@dataclass
class Machine:
    bundle: Path
    facts: dict  # bundle.json
    torch: str
    device_name: str | None  # of the first CUDA device
    bin: Path
    environment: dict[str, str] = field(default_factory=dict)

    def lacks(self, names: tuple[str, ...]) -> list[str]:
        """Of these modules and programs those that are not here. Programs are written with a leading "!"."""
        path = self.environment["PYTHONPATH"].split(os.pathsep)
        return [name.lstrip("!") for name in names
                if not (shutil.which(name[1:], path=self.environment["PATH"]) if name[0] == "!" else find(name, path))]  # fmt: skip


def find(module: str, path: list[str]) -> bool:
    return importlib.util.find_spec(module) is not None or any(
        (Path(folder) / module).is_dir() or (Path(folder) / f"{module}.py").is_file() for folder in path
    )


def describe(bundle: Path) -> Machine:
    """Unfit if the bundle cannot run here."""
    import torch

    facts = json.loads((bundle / "bundle.json").read_text())
    built = bundle / "built"  # by run.sh build
    place = built if (built / COMPLETE).exists() else bundle
    require_python(place / "modules", facts)
    if place is bundle and torch.__version__.split("+")[0] != facts["torch"].split("+")[0]:
        raise Unfit(f"the bundle was built with torch {facts['torch']}, this Python has {torch.__version__}: "
                    "./run.sh build compiles it for this one")  # fmt: skip
    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    machine = Machine(bundle, facts, torch.__version__, name, place / "bin")
    machine.environment = variables(bundle, place, Path(torch.__file__).parent) | {"GHOSTSHARD_COMMIT": facts["commit"]}
    require_programs(machine)
    return machine


def require_python(modules: Path, facts: dict) -> None:
    tag = sysconfig.get_config_var("SOABI")
    if not any(f".{tag}." in file.name for file in modules.iterdir()):
        raise Unfit(f"the modules are for {', '.join(facts['python'])}, this Python is {tag}: name another one "
                    "(PYTHON=… ./run.sh), or ./run.sh build")  # fmt: skip


def variables(bundle: Path, place: Path, torch: Path) -> dict[str, str]:
    packages = [str(folder) for folder in sorted((bundle / "site").iterdir()) if not find(folder.name, [])]
    tree = bundle / "tree"
    # Programs name the folder of the torch that they were built with; here torch is elsewhere, and so is what it brings.
    libraries = [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]
    inherited = os.environ.get("LD_LIBRARY_PATH")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GHOSTSHARD_")}
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return clean | {
        "LD_LIBRARY_PATH": os.pathsep.join([*map(str, libraries), *([inherited] if inherited else [])]),
        "PYTHONPATH": os.pathsep.join([str(tree / "bindings" / "python"), *packages]),
        "PATH": os.pathsep.join([str(place / "bin"), os.environ.get("PATH", ""), f"{toolkit}/bin"]),
        "GHOSTSHARD_MODULES": str(place / "modules"), "GHOSTSHARD_BINARY": str(place / "bin" / "ghostshard-finetune-gpt2"),
        "GHOSTSHARD_SOURCE_DIR": str(tree), "GHOSTSHARD_PYTHON": sys.executable, "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1", "RES_OPTIONS": "attempts:0", "TORCH_CPP_LOG_LEVEL": "ERROR",
    }  # fmt: skip


def require_programs(machine: Machine) -> None:
    """Tries to start a program; if libraries are missing, with those of the bundle behind the machine's own."""
    probe = [machine.bin / "ghostshard-finetune-gpt2", "--version"]
    own = machine.environment["LD_LIBRARY_PATH"]
    for libraries in (own, os.pathsep.join([own, str(machine.bundle / "lib")])):
        machine.environment["LD_LIBRARY_PATH"] = libraries
        done = subprocess.run(probe, env=machine.environment, capture_output=True, text=True)
        if done.returncode == 0:
            return
    raise Unfit(f"the programs do not start here (they need glibc {machine.facts['glibc']}): {done.stderr.strip()}")
