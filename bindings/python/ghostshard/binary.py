"""Finding the C++ programs: next to the tree this package is installed from, or on PATH."""

import os
import shutil
from pathlib import Path

from ghostshard.errors import UserError

PROGRAM = "ghostshard-finetune-gpt2"


def repository() -> Path:
    """The source tree this package runs from (it is installed editable)."""
    return Path(__file__).resolve().parents[3]


def find_binary() -> Path:
    """$GHOSTSHARD_BINARY, else build/release/bin of the tree, else PATH. UserError if there is none."""
    if named := os.environ.get("GHOSTSHARD_BINARY"):
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise UserError(f"GHOSTSHARD_BINARY must name a program, {named} is none")
        return Path(named)
    built = repository() / "build" / "release" / "bin" / PROGRAM
    if built.is_file():
        return built
    if on_path := shutil.which(PROGRAM):
        return Path(on_path)
    raise UserError(f"the program {PROGRAM} is neither in {built.parent} nor on PATH; `make build` builds it")
