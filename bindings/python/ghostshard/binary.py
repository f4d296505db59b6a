"""Finding the C++ programs: next to the tree this package is installed from, or on PATH."""

import importlib.metadata
import os
import shutil
from pathlib import Path

from ghostshard import _native
from ghostshard.errors import UserError

PROGRAM = "ghostshard-finetune-gpt2"
INSTALLED = Path(__file__).resolve().parent / "_programs"  # in a wheel


def repository() -> Path:
    """The source tree this package runs from (it is installed editable)."""
    return Path(__file__).resolve().parents[3]


def find_binary(named: str | None = None, program: str = PROGRAM) -> Path:
    """`named` or, for the training program, $GHOSTSHARD_BINARY; else build/release/bin of the tree, the installed package, PATH.
    UserError if there is none, or if it is installed beside a torch that it does not work with."""
    if named := named or (os.environ.get("GHOSTSHARD_BINARY") if program == PROGRAM else None):
        if found := shutil.which(named):
            return Path(found)
        raise UserError(f"--binary and GHOSTSHARD_BINARY must name a program, {named} is none")
    built = repository() / "build" / "release" / "bin" / program
    if built.is_file():
        return built
    if (INSTALLED / program).is_file():
        if program == PROGRAM:
            require_torch()
        return INSTALLED / program
    if on_path := shutil.which(program):
        return Path(on_path)
    raise UserError(f"the program {program} is neither in {built.parent} nor on PATH; `make build` builds it")


def require_torch() -> None:
    """UserError unless the environment's torch is of the minor version that the installed program was built with: the loader's
    message would be a library's or a symbol's name. Torch is not imported, which takes seconds."""
    built = (_native.build_facts() or {}).get("torch") or ""
    wanted = ".".join(built.split(".")[:2])
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if wanted and found.split(".")[:2] != wanted.split("."):
        raise UserError(f"the program {PROGRAM} was built with torch {built}, this environment has {found}: python -m pip install "
                        f"'torch=={wanted}.*', or install ghostshard again for the other one")  # fmt: skip
