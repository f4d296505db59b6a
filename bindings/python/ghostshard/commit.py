"""The commit of a source tree. setup.py loads this file by itself: it imports nothing of the package."""

from __future__ import annotations

import subprocess
from pathlib import Path

_PARTS = ("accountant", "kernels", "fsdp", "dp", "bindings")


def commit_of(tree: Path) -> str | None:
    """None if it has no history, or there is no git to read it."""
    if not (tree / ".git").exists():
        return None

    def git(*words: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(tree), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout

    try:
        head = git("rev-parse", "HEAD").strip()
        return head + (" with changes" if git("status", "--porcelain", "--untracked-files=no", "--", *_PARTS) else "")
    except (OSError, subprocess.SubprocessError):  # no git, or one that does not trust the folder's owner
        return None


__all__ = ["commit_of"]
