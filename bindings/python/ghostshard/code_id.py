"""Which code runs: for reports, and for the comparison of ranks."""

from __future__ import annotations

import functools
import hashlib
from importlib.metadata import version
from pathlib import Path

import torch

from ._native import build_facts, load
from .commit import commit_of

_TREE = Path(__file__).resolve().parents[3]  # if the package is in one


@functools.cache
def code_id() -> str:
    """Compiled sources (dp/run/build_id.h), the package's own files, PyTorch, Opacus: the same wherever the same were installed."""
    here, files = Path(__file__).parent, hashlib.sha256()
    for file in sorted(here.rglob("*.py")):
        content = file.read_bytes()
        files.update(f"{file.relative_to(here).as_posix()} {len(content)}:".encode() + content)
    engine = load("engine").build_id
    return f"{engine}, Python files sha256:{files.hexdigest()}, torch {torch.__version__}, Opacus {version('opacus')}"


@functools.cache
def code_commit() -> str:
    """Of the source tree that the package is in, or that a wheel of it was built from."""
    if (_TREE / "bindings" / "CMakeLists.txt").is_file():
        found = commit_of(_TREE)
    else:
        found = (build_facts() or {}).get("commit")
    return found or "not known: installed without the history of its sources"


__all__ = ["code_commit", "code_id"]
