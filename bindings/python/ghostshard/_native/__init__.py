"""Finds the compiled modules: in this package if it was installed as a wheel; in build/release/python of a source tree.

GHOSTSHARD_MODULES names another folder, for example another build's. It comes first.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType

_TREE = Path(__file__).resolve().parents[4]


def _folders() -> list[str]:
    built = [_TREE / "build" / "release" / "python"] if (_TREE / "bindings" / "CMakeLists.txt").is_file() else []
    named = os.environ.get("GHOSTSHARD_MODULES")
    return [*([named] if named else []), *map(str, built)]


# In a tree the build is newer than modules that an earlier installation may have left in the package.
__path__ = [*_folders(), *__path__]


def build_facts() -> dict | None:
    """What the modules were built with: {"torch": "2.11.0", "cuda": false}; None if they do not say."""
    for folder in __path__:
        try:
            return json.loads((Path(folder) / "build.json").read_text())
        except (OSError, ValueError):
            continue
    return None


def _require_torch() -> None:
    """The engine's symbols are those of one minor version of torch. ImportError with the remedy for another."""
    import torch

    built = (build_facts() or {}).get("torch") or ""
    fits, found = (".".join(version.split(".")[:2]) for version in (built, torch.__version__))
    if built and fits != found:
        tree = "`make build`" if _folders() else "`python -m pip install --force-reinstall --no-deps .` in its source tree"
        raise ImportError(f"ghostshard's engine was built with torch {built}, this environment has {torch.__version__}: "
                          f"python -m pip install 'torch=={fits}.*', or (torch 2.9 to 2.11) ghostshard for this one, by the wheel with "
                          f"+torch{found} in its name or by {tree}")  # fmt: skip


def load(name: str) -> ModuleType:
    """The module ghostshard._native.`name`. ImportError if it was not built; the message says how to build it."""
    if name == "engine" and f"{__name__}.engine" not in sys.modules:
        _require_torch()
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        places = ", ".join(__path__)
        message = f"the compiled module {name} is in none of {places}; `make build` builds it in a source tree"
        raise ImportError(message) from error
