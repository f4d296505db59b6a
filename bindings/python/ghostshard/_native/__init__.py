"""Finds the compiled modules: in this package if it was installed as a wheel; in build/release/python of a source tree.

GHOSTSHARD_MODULES names another folder, for example another build's. It comes first.
"""

import importlib
import os
from pathlib import Path
from types import ModuleType

_TREE = Path(__file__).resolve().parents[4]


def _folders() -> list[str]:
    built = [_TREE / "build" / "release" / "python"] if (_TREE / "bindings" / "CMakeLists.txt").is_file() else []
    named = os.environ.get("GHOSTSHARD_MODULES")
    return [*([named] if named else []), *map(str, built)]


# In a tree the build is newer than modules that an earlier installation may have left in the package.
__path__ = [*_folders(), *__path__]


def load(name: str) -> ModuleType:
    """The module ghostshard._native.`name`. ImportError if it was not built; the message says how to build it."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        places = ", ".join(__path__)
        message = f"the compiled module {name} is in none of {places}; `make build` builds it in a source tree"
        raise ImportError(message) from error
