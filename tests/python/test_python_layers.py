"""The arrows inside the Python package: ghostshard/ghost has no import circle, and rules know no engine.

Every import counts, wherever it stands: at the top of a module, inside a function, and under TYPE_CHECKING. `from . import x`
and `from .rules import x` are imports of the module x if there is one, and of the package if there is none.

        layout  tensor_trees  autocast  cross_entropy
          ^          ^
        device, packing, ranks  <-  batch  <-  recording (a Protocol: the engine as rules and losses see it)
                                                  ^
                          rules/   loss   checks/
                                    ^
                                 patching  <-  engine  <-  wrappers, optimizer
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

GHOST = "ghostshard.ghost"

# Modules below a prefix must not import modules below another.
MUST_NOT = {
    "rules": ("engine", "patching", "wrappers", "optimizer", "loss", "checks"),
    "checks": ("engine", "patching", "wrappers", "optimizer", "rules"),
    "recording": ("engine", "patching", "wrappers", "optimizer", "loss", "rules", "checks"),
}


def module_sources(repository: Path) -> dict[str, str]:
    """Source of each module of ghostshard.ghost, by its full name; a package has its own name."""
    root = repository / "bindings" / "python"
    found = {}
    for file in sorted((root / "ghostshard" / "ghost").rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file.read_text(encoding="utf-8")
    return found


def imports(name: str, source: str, modules: set[str], packages: set[str]) -> Iterator[str]:
    """The modules among `modules` that this one imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = name if name in packages else name.rpartition(".")[0]
                above = here.split(".")[: len(here.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                found = f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
                if found in modules and found != name:
                    yield found


def graph(sources: dict[str, str]) -> dict[str, set[str]]:
    modules = set(sources)
    packages = {name for name in modules if any(other.startswith(name + ".") for other in modules)}
    return {name: set(imports(name, source, modules, packages)) for name, source in sources.items()}


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """A circle of imports, the first module again at its end; [] if there is none."""
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for other in sorted(arrows[name]):
            if found := walk(other, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(arrows) if (found := walk(name, []))), [])


def broken(arrows: dict[str, set[str]]) -> list[str]:
    below = lambda name, prefix: f"{name}.".startswith(f"{GHOST}.{prefix}.")
    return [
        f"{name} imports {other}"
        for name, others in arrows.items()
        for other in sorted(others)
        for prefix, forbidden in MUST_NOT.items()
        if below(name, prefix) and any(below(other, each) for each in forbidden)
    ]


def test_ghost_has_no_import_circle(repository):
    assert circle(graph(module_sources(repository))) == []


def test_rules_and_checks_know_no_engine(repository):
    assert broken(graph(module_sources(repository))) == []


def test_optimizers_know_gradients_alone(repository):
    """No engine, no session, no batch: of the compiled engine, what moments need."""
    files = sorted((repository / "bindings" / "python" / "ghostshard" / "optim").glob("*.py"))
    assert {file.stem for file in files} >= {"adamw", "base", "muon", "exchange"}
    for file in files:
        source = file.read_text(encoding="utf-8")
        beyond = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.level > 1]
        assert {alias.name for node in beyond for alias in node.names} <= {"_native"}, file.name
        assert "import ghostshard" not in source and "from ghostshard" not in source, file.name
        used = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call)}
        assert not used & {"Session", "Tape", "cross_entropy"}, file.name


def test_the_check_reads_the_package(repository):
    arrows = graph(module_sources(repository))
    assert f"{GHOST}.recording" in arrows[f"{GHOST}.rules.layer"]
    assert f"{GHOST}.patching" in arrows[f"{GHOST}.engine"]


PACKAGE = {GHOST: "", f"{GHOST}.engine": "from .rules import layers\n", f"{GHOST}.rules": "", f"{GHOST}.rules.layers": ""}

SEEN = {
    # name: (source of rules/layers.py, a circle, a broken arrow)
    "nothing": ("import torch\n", False, False),
    "at_the_top": ("from ..engine import GhostEngine\n", True, True),
    "by_full_name": (f"import {GHOST}.engine\n", True, True),
    "from_the_package": ("from .. import engine\n", True, True),
    "inside_a_function": ("def f():\n    from ..engine import GhostEngine\n", True, True),
    "for_types": ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..engine import GhostEngine\n", True, True),
    "in_a_string": ("'from ..engine import GhostEngine'\n", False, False),
}


@pytest.mark.parametrize("source, has_circle, has_broken", SEEN.values(), ids=SEEN.keys())
def test_the_check_sees(source, has_circle, has_broken):
    arrows = graph({**PACKAGE, f"{GHOST}.rules.layers": source})
    assert (bool(circle(arrows)), bool(broken(arrows))) == (has_circle, has_broken)
