"""Finding the C++ programs: next to the tree this package is installed from, or on PATH."""

import os
import shutil
from pathlib import Path

from ghostshard.errors import UserError

PROGRAM = "ghostshard-finetune-gpt2"
INSTALLED = Path(__file__).resolve().parents[1] / "_programs"  # in a wheel


def repository() -> Path:
    """The source tree this package runs from (it is installed editable)."""
    return Path(__file__).resolve().parents[4]


def find_binary(named: str | None = None, program: str = PROGRAM) -> Path:
    """`named` or, for the training program, $GHOSTSHARD_BINARY; else build/release/bin of the tree, the installed package, PATH.
    UserError if there is none."""
    if named := named or (os.environ.get("GHOSTSHARD_BINARY") if program == PROGRAM else None):
        if found := shutil.which(named):
            return Path(found)
        raise UserError(f"--binary and GHOSTSHARD_BINARY must name a program, {named} is none")
    built = repository() / "build" / "release" / "bin" / program
    for file in (built, INSTALLED / program):
        if file.is_file():
            return file
    if on_path := shutil.which(program):
        return Path(on_path)
    raise UserError(f"the program {program} is neither in {built.parent} nor on PATH; `make build` builds it")
