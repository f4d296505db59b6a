"""The arrows between the folders: which includes a folder may have, and which words it must not know.

        accountant        kernels          fsdp          leaves: include nothing of ours but themselves
             ^               ^               ^
             +---------------+---------------+
                             dp                          the only place where the three meet
                   ^         ^         ^
             bindings     examples    bench              public headers only
"""

import re
from pathlib import Path

import pytest

OURS = ("accountant", "kernels", "fsdp", "dp", "bindings", "examples", "bench", "tests")

# Which of our folders a folder may include.
MAY_INCLUDE = {
    "accountant": {"accountant"},
    "kernels": {"kernels"},
    "fsdp": {"fsdp"},
    "dp": {"accountant", "kernels", "fsdp", "dp"},
    "bindings": {"accountant", "kernels", "fsdp", "dp", "bindings"},
    "examples": {"accountant", "kernels", "fsdp", "dp", "examples"},
    "bench": {"accountant", "kernels", "fsdp", "dp", "bench"},
}

# Foreign headers a folder must do without.
FOREIGN = {
    "accountant": r"torch/|ATen/|c10/|cuda|nccl|gloo/|pybind11/",
    "kernels": r"torch/csrc/distributed/|gloo/|nccl|pybind11/",
    "fsdp": r"pybind11/",
    "dp": r"pybind11/",
}

# Words a folder must not contain; in "code", comments do not count.
WORDS = {
    "kernels": ("text", r"privacy"),
    "fsdp": ("code", r"clip|noise|noisy|privacy"),
}

SUFFIXES = {".h", ".hpp", ".cpp", ".cu", ".cuh", ".inl"}


def without_comments(source: str) -> str:
    """The source with comments blanked and strings kept; line numbers stay."""
    token = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
    keep = lambda match: match[0] if match[0][0] in "\"'" else "\n" * match[0].count("\n")
    return token.sub(keep, source)


def broken_arrows(path: str, source: str) -> list[str]:
    """What is wrong with one file at `path` (relative to the root), a line each."""
    folder = path.split("/")[0]
    wrong = []
    code = without_comments(source)
    for number, line in enumerate(code.split("\n"), start=1):
        include = re.match(r'\s*#\s*include\s*[<"]([^">]+)[">]', line)
        if include is None:
            continue
        header = include[1]
        if ".." in header.split("/"):
            wrong.append(f"{path}:{number}: includes {header}; includes go by path from the root")
        target = header.split("/")[0]
        if target in OURS and "/" in header:
            if target not in MAY_INCLUDE[folder]:
                wrong.append(f"{path}:{number}: {folder} must not include {header}")
            elif target != folder and ("/detail/" in header or not header.endswith((".h", ".cuh"))):
                wrong.append(f"{path}:{number}: {folder} must include public headers only, includes {header}")
        elif re.match(FOREIGN.get(folder, r"(?!)"), header):
            wrong.append(f"{path}:{number}: {folder} must not include {header}")
    if folder in WORDS:
        where, words = WORDS[folder]
        for number, line in enumerate((source if where == "text" else code).split("\n"), start=1):
            if found := re.search(words, line, re.IGNORECASE):
                wrong.append(f"{path}:{number}: {folder} must not know the word {found[0]!r}")
    return wrong


def sources(root: Path, folder: str) -> list[Path]:
    return sorted(file for file in (root / folder).rglob("*") if file.suffix in SUFFIXES)


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_layers(repository, folder):
    wrong = [
        line
        for file in sources(repository, folder)
        for line in broken_arrows(file.relative_to(repository).as_posix(), file.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_leaves_and_dp_have_sources_to_look_at(repository):
    for folder in ("accountant", "kernels", "fsdp", "dp"):
        assert sources(repository, folder), folder


SEEN = {
    # name: (path, source, is wrong)
    "leaf_includes_itself": ("kernels/a.cpp", '#include "kernels/a.h"\n', False),
    "leaf_includes_leaf": ("kernels/a.cpp", '#include "fsdp/mesh.h"\n', True),
    "leaf_includes_root": ("fsdp/a.cpp", '#include "dp/mechanism/plan.h"\n', True),
    "accountant_includes_aten": ("accountant/a.h", "#include <ATen/ATen.h>\n", True),
    "accountant_includes_torch": ("accountant/a.h", "#  include <torch/types.h>\n", True),
    "accountant_includes_c10": ("accountant/a.h", "#include <c10/util/Exception.h>\n", True),
    "kernels_include_c10d": ("kernels/a.cpp", "#include <torch/csrc/distributed/c10d/Store.hpp>\n", True),
    "kernels_include_aten": ("kernels/a.cpp", "#include <ATen/ATen.h>\n", False),
    "dp_includes_all_three": ("dp/a.h", '#include "accountant/types.h"\n#include "fsdp/mesh.h"\n', False),
    "dp_includes_pybind11": ("dp/a.h", "#include <pybind11/pybind11.h>\n", True),
    "dp_includes_example": ("dp/a.h", '#include "examples/gpt2/model.h"\n', True),
    "example_includes_dp": ("examples/gpt2/a.cpp", '#include "dp/mechanism/plan.h"\n', False),
    "example_includes_detail": ("examples/gpt2/a.cpp", '#include "dp/detail/tape.h"\n', True),
    "example_includes_source": ("examples/gpt2/a.cpp", '#include "dp/recording/tape.cpp"\n', True),
    "bench_includes_tests": ("bench/a.cpp", '#include "tests/oracle.h"\n', True),
    "include_upwards": ("bench/a.cpp", '#include "../dp/plan.h"\n', True),
    "include_in_a_comment": ("kernels/a.h", '// #include "dp/mechanism/plan.h"\n/* \n#include "dp/mechanism/plan.h"\n*/\n', False),
    "kernels_say_privacy": ("kernels/a.h", "// one privacy unit\n", True),
    "kernels_say_private": ("kernels/a.h", "class A { private: int x; };\n", False),
    "fsdp_has_noise": ("fsdp/a.cpp", "float noise = 0;\n", True),
    "fsdp_clips": ("fsdp/a.cpp", "void clipGradients();\n", True),
    "fsdp_prints_noise": ("fsdp/a.cpp", 'auto text = "noise // here";\n', True),
    "fsdp_mentions_noise": ("fsdp/a.cpp", "int x;  // noise, for one, may wait here\n", False),
}


@pytest.mark.parametrize("path, source, is_wrong", SEEN.values(), ids=SEEN.keys())
def test_the_check_sees(path, source, is_wrong):
    assert bool(broken_arrows(path, source)) == is_wrong
