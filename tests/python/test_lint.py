"""tools/run_clang_tidy.py: sources are read together, and what is wrong is found as if each were read by itself."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

# Prints a finding of each source, read itself or included, that holds the word BAD; fails if two hold the same NAME.
TIDY = """#!{python}
import re, sys
path = next(word for word in sys.argv[1:] if word.endswith(".cpp"))
text = open(path).read()
parts = re.findall(r'#include "(.*[.]cpp)"', text) or [path]
with open({log!r}, "a") as log:
    print(*(part.split("/")[-1] for part in parts), file=log)
texts = [open(part).read() for part in parts]
bad = [f"{{part}}:1:1: error: it is bad [bad]" for part, text in zip(parts, texts) if "BAD" in text]
if sum("NAME" in text for text in texts) > 1:
    bad = [f"{{path}}:1:1: error: redefinition of 'NAME'"]
print(*bad, sep="\\n", end="\\n" if bad else "")
sys.exit(bool(bad))
"""


class Lint:
    def __init__(self, module, root: Path):
        self.module, self.root, self.log = module, root, root / "calls"

    def source(self, name: str, text: str = "") -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def run(self, capsys) -> tuple[int, str, list[str]]:
        """Exit status, output, and what each call of clang-tidy read."""
        sources = sorted(path for path in self.root.glob("dp/*.cpp"))
        tree = self.root / "build" / "tree"
        tree.mkdir(parents=True, exist_ok=True)
        entries = [{"file": str(path), "command": f"c++ -Idp -c {path}"} for path in sources]
        (tree / "compile_commands.json").write_text(json.dumps(entries))
        self.log.write_text("")
        self.module.included.__defaults__[0].clear()
        status = self.module.main()
        return status, capsys.readouterr().out, self.log.read_text().splitlines()


@pytest.fixture
def lint(repository, tmp_path, monkeypatch) -> Lint:
    spec = importlib.util.spec_from_file_location("run_clang_tidy", repository / "tools" / "run_clang_tidy.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "tools").mkdir()
    for name in (".clang-tidy", "tools/lint-requirements.txt"):
        (tmp_path / name).write_text("")
    tidy = tmp_path / "tidy"
    tidy.write_text(TIDY.format(python=sys.executable, log=str(tmp_path / "calls")))
    tidy.chmod(0o755)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "LINT", tmp_path / "build" / "lint")
    monkeypatch.setattr(module, "TIDY", tidy)
    monkeypatch.setattr(module, "precompiled_header", lambda sources: [])
    monkeypatch.setattr(sys, "argv", ["run_clang_tidy", "--jobs", "1", "--tree", "build/tree"])
    return Lint(module, tmp_path)


def test_clean_sources_are_read_eight_at_a_time_and_once(lint, capsys):
    for i in range(10):
        lint.source(f"dp/s{i}.cpp")
    status, _, calls = lint.run(capsys)
    assert (status, calls) == (0, ["s0.cpp s1.cpp s2.cpp s3.cpp s4.cpp s5.cpp s6.cpp s7.cpp", "s8.cpp s9.cpp"])
    assert lint.run(capsys)[2] == []
    lint.source("dp/s3.cpp", "// another text")
    assert lint.run(capsys)[2] == ["s3.cpp"]


def test_a_finding_among_several_is_the_sources_own(lint, capsys):
    for name in ("a", "b", "c"):
        lint.source(f"dp/{name}.cpp", "BAD" if name == "b" else "")
    status, output, calls = lint.run(capsys)
    assert (status, calls) == (1, ["a.cpp b.cpp c.cpp", "a.cpp", "b.cpp", "c.cpp"])
    assert "dp/b.cpp:1:1: error: it is bad" in output and "1 findings in 1 sources" in output
    assert lint.run(capsys)[2] == ["b.cpp"]  # the others are remembered as clean, this one is not


def test_sources_that_cannot_be_read_together_are_read_apart(lint, capsys):
    for name in ("a", "b"):
        lint.source(f"dp/{name}.cpp", "NAME")
    lint.source("dp/program.cpp", "#include <string>\nint main() {}\n")
    status, _, calls = lint.run(capsys)
    assert status == 0 and sorted(calls) == ["a.cpp", "a.cpp b.cpp", "b.cpp", "program.cpp"]


def git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(root), *identity, *words], check=True, capture_output=True)


def test_what_changed_since_a_commit_is_read_alone(lint, capsys, monkeypatch):
    for name in ("a", "b", "c", "d"):
        lint.source(f"dp/{name}.cpp", f'#include "dp/{name}.h"\n')
        lint.source(f"dp/{name}.h")
    git(lint.root, "init", "-q")
    git(lint.root, "add", "dp")
    git(lint.root, "commit", "-q", "-m", "all")
    lint.source("dp/a.cpp", "// another text")
    lint.source("dp/b.h", "// another text")
    git(lint.root, "add", "dp/a.cpp")
    git(lint.root, "commit", "-q", "-m", "two")
    lint.source("dp/e.cpp")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--since", "HEAD~1"])
    (lint.root / ".git" / "info" / "exclude").write_text("/tools\n/tidy\n/calls\n/build\n.clang-tidy\n")
    assert lint.run(capsys)[2] == ["a.cpp b.cpp e.cpp"]
    git(lint.root, "add", "-f", ".clang-tidy")
    git(lint.root, "commit", "-q", "-m", "other rules")
    assert lint.run(capsys)[2] == ["c.cpp d.cpp"]  # besides those found clean above


def test_a_commit_that_git_does_not_know_lets_every_source_be_read(lint, capsys, monkeypatch):
    lint.source("dp/a.cpp")
    git(lint.root, "init", "-q")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--since", "HEAD~30"])
    status, output, calls = lint.run(capsys)
    assert (status, calls) == (0, ["a.cpp"]) and "git does not know HEAD~30, so every source is read" in output
