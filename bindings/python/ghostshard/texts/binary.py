"""Finding the C++ programs: next to the tree this package is installed from, or on PATH."""

import os
import shutil
from pathlib import Path

from ghostshard.errors import UserError

PROGRAM = "ghostshard-finetune-gpt2"


def repository() -> Path:
    """The source tree this package runs from (it is installed editable)."""
    return Path(__file__).resolve().parents[4]


def find_binary(named: str | None = None) -> Path:
    """`named` or $GHOSTSHARD_BINARY, else build/release/bin of the tree, else PATH. UserError if there is none."""
    if named := named or os.environ.get("GHOSTSHARD_BINARY"):
        if program := shutil.which(named):
            return Path(program)
        raise UserError(f"--binary and GHOSTSHARD_BINARY must name a program, {named} is none")
    built = repository() / "build" / "release" / "bin" / PROGRAM
    if built.is_file():
        return built
    if on_path := shutil.which(PROGRAM):
        return Path(on_path)
    raise UserError(f"the program {PROGRAM} is neither in {built.parent} nor on PATH; `make build` builds it")
