"""Every name that a Python file imports is used there, handed on, or imported for what importing does (`# noqa: F401`)."""

import ast
from collections.abc import Iterator

import pytest
from test_tree import tracked_files

FOLDERS = ("bindings/python", "tests/python", "bench", "tools")


def imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The names that imports bind, and their lines. `import x as x` hands on, and binds nothing of this file's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.partition(".")[0], node.lineno) for alias in node.names if alias.asname != alias.name)
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            yield from ((alias.asname or alias.name, node.lineno) for alias in node.names if alias.asname != alias.name and alias.name != "*")


def used(tree: ast.Module) -> set[str]:
    """Names that are read; those in __all__ and in annotations that are texts; parameters, since pytest finds fixtures by them."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        if isinstance(node, ast.arg):
            found.add(node.arg)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            for text in ast.walk(annotation) if isinstance(annotation, ast.AST) else ():
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found |= used(ast.parse(text.value))
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                found |= {text.value for text in ast.walk(node) if isinstance(text, ast.Constant) and isinstance(text.value, str)}
    return found


def unused(source: str) -> list[str]:
    tree = ast.parse(source)
    known, lines = used(tree), source.splitlines()
    return [f"line {line}: {name}" for name, line in imported(tree) if name not in known and "noqa: F401" not in lines[line - 1]]


def test_no_import_is_unused(repository):
    folders = [repository / folder for folder in FOLDERS]
    files = [file for file in tracked_files(repository) if file.suffix == ".py" and any(folder in file.parents for folder in folders)]
    assert len(files) > 100
    found = {
        str(file.relative_to(repository)): lines
        for file in files
        if file.name != "__init__.py" and (lines := unused(file.read_text(encoding="utf-8")))
    }
    assert not found


SOURCES = {
    "plain": ("import os\n", ["line 1: os"]),
    "attribute": ("import os\nx.os\n", ["line 1: os"]),
    "a word in a text": ("import os\n'os'\n", ["line 1: os"]),
    "within a function": ("def f():\n    from a import b as c, d\n    return d\n", ["line 2: c"]),
    "of a package": ("import a.b\na.b.c()\n", []),
    "in __all__": ("from a import b\n__all__ = ['b']\n", []),
    "added to __all__": ("from a import b\n__all__ += ['b']\n", []),
    "handed on": ("from a import b as b\n", []),
    "in an annotation": ("from a import b, c\nx: 'list[b]'\ndef f(y: int) -> 'c': ...\n", []),
    "a fixture": ("from a import b\ndef test(b): ...\n", []),
    "of the future": ("from __future__ import annotations\n", []),
    "for what it does": ("import a  # noqa: F401  it registers itself\n", []),
    "all of a module": ("from a import *\n", []),
}


@pytest.mark.parametrize("source, expected", SOURCES.values(), ids=SOURCES.keys())
def test_what_counts_as_used(source, expected):
    assert unused(source) == expected
