"""The .pyi stubs say what the compiled modules take and give, and a user's script passes mypy --strict."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ghostshard._native import load

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "bindings" / "python"
STUBS = PACKAGE / "ghostshard" / "_native"
MODULES = ["accountant", "engine"]

# pybind11's classes have a metaclass of their own, and those without a constructor inherit one that refuses.
PYBIND11 = r"""
ghostshard\._native\.engine\.(KnownTraces|Session|Tape|Trace)
ghostshard\._native\.engine\.(Tape|Trace)\.__init__
ghostshard\._native\.accountant\.BudgetRegister
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def mypy(*arguments, folder: Path) -> str:
    """What `python -m mypy...` says; empty where it finds nothing."""
    cache = REPOSITORY / "build" / "mypy"  # most of a run is reading PyTorch
    environment = {**os.environ, "MYPYPATH": str(PACKAGE), "PYTHONPATH": str(PACKAGE), "MYPY_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        capture_output=True, text=True, env=environment, cwd=folder, timeout=600,
    )  # fmt: skip
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_name_of_the_modules_is_in_the_stubs(folder):
    allowed, settings = folder / "allowed", folder / "mypy.ini"
    allowed.write_text(PYBIND11)
    settings.write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")  # stubtest compares names; types are compared below
    names = [f"ghostshard._native.{module}" for module in MODULES]
    assert mypy("mypy.stubtest", "--concise", "--mypy-config-file", settings, "--allowlist", allowed, *names, folder=folder) == ""


def signatures(module: str) -> dict[str, tuple[object, ast.FunctionDef]]:
    """Qualified names of what is callable: the compiled object, and its place in the stub."""
    found = {}
    compiled = load(module)
    for node in ast.parse((STUBS / f"{module}.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[f"{module}.{node.name}"] = (getattr(compiled, node.name), node)
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not member.decorator_list:
                    found[f"{module}.{node.name}.{member.name}"] = (
                        getattr(getattr(compiled, node.name), member.name),
                        member,
                    )
    return found


CALLABLES = {name: pair for module in MODULES for name, pair in signatures(module).items()}


def parameters(function: ast.FunctionDef) -> dict[str, tuple[str, str]]:
    """Name of each parameter but self: where it may stand, and its type in one spelling."""
    arguments = function.args
    places = [("by place or name", one) for one in arguments.posonlyargs + arguments.args if one.arg != "self"]
    places += [("by name", one) for one in arguments.kwonlyargs]
    return {one.arg: (where, plainly(one.annotation)) for where, one in places}


def plainly(annotation: ast.expr | None) -> str:
    text = ast.unparse(annotation) if annotation is not None else "None"
    for long, short in [("typing.SupportsFloat", "float"), ("typing.SupportsInt", "int"), ("collections.abc.", ""),
                        ("torch.", ""), ("ghostshard._native.engine.", "")]:  # fmt: skip
        text = text.replace(long, short)
    text = re.sub(r"typing\.Annotated\[(.*), 'FixedSize\(\d+\)'\]", r"\1", text)
    # A std::string takes both, and what is bytes here is not text; an undefined tensor comes out as None.
    return text.replace("bytes", "str").replace("list[Tensor | None]", "list[Tensor]")


# pybind11 writes the signature it checks arguments against into the docstring, and stubtest cannot read it there.
@pytest.mark.parametrize("name", CALLABLES)
def test_parameters_and_results_are_the_stubs(name):
    compiled, stub = CALLABLES[name]
    written = ast.parse(f"def {compiled.__doc__.splitlines()[0]}: ...").body[0]
    assert parameters(written) == parameters(stub)
    assert plainly(written.returns) == plainly(stub.returns)


def test_a_users_script_passes_strict_checks(folder):
    script = REPOSITORY / "tests" / "python" / "typed" / "user.py"
    found = mypy("mypy", "--strict", "--follow-imports=silent", script, folder=folder)
    assert found == ""


def test_a_wrong_call_is_found(folder):
    script = folder / "wrong.py"
    script.write_text(
        "from ghostshard.accountants import ContourAccountant, privacy_curve\n"
        "ContourAccountant().get_epsilon(delta='1e-5')\n"
        "upper: str = privacy_curve([(1.0, 0.1, 3)])[0].upper\n"
    )
    found = mypy("mypy", "--strict", "--follow-imports=silent", script, folder=folder)
    assert "wrong.py:2: error" in found and "wrong.py:3: error" in found
