"""The arrows between the folders: which includes a folder may have, and which words it must not know.

        accountant        kernels          fsdp          leaves: include nothing of ours but themselves
             ^               ^               ^
             +---------------+---------------+
                             dp                          the only place where the three meet
                   ^         ^         ^
             bindings     examples    bench              public headers only

The top of a leaf is its API: from outside only `accountant/x.h`, `kernels/x.h` and `fsdp/x.h` are included, never a
header in one of their folders (tests may look inside). Within accountant/ and dp/ the rooms have an order of their own:

    accountant    types, events, accountant <- ledger, rounds, blt_rows
                  types, events, accountant <- losses <- gaussian <- contour | grid (both on threads) <- engines
                  then calibration (with tradeoff), report, cli, which know the engines by make_accountant alone
                  gaussian, contour, ledger <- receipt, which only cli knows
    ledger <- budget_register
    dp            recording <- mechanism | planning <- run
                  optimizers, gathering: they know fsdp and kernels alone, no sum, no gradient of a unit, no plan
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
    "bench": {"accountant", "kernels", "fsdp", "dp", "examples", "bench"},  # what is measured is the example's step
}

# Which rooms a room may include besides itself. `api` is accountant's types, events and the interface of all engines.
ROOMS = {
    "accountant": {
        "api": set(),
        "threads": set(),
        "ledger": {"api"},
        "losses": {"api"},
        "gaussian": {"api", "losses"},
        "contour": {"api", "threads", "losses", "gaussian"},
        "grid": {"api", "threads", "losses", "gaussian"},
        "engines": {"api", "threads", "losses", "gaussian", "contour", "grid"},
        "calibration": {"api"},
        "report": {"api", "ledger"},
        "receipt": {"api", "ledger", "losses", "gaussian", "contour"},
        "budget_register": {"api", "ledger"},
        "cli": {"api", "ledger", "calibration", "report", "receipt", "budget_register"},
    },
    "dp": {
        "recording": set(),
        "mechanism": {"recording"},
        "planning": {"recording"},
        "optimizers": set(),
        "gathering": set(),
        "run": {"recording", "mechanism", "planning"},
    },
}
# The room of a file that lies in no folder, by its name without the ending.
TOP = {
    "types": "api",
    "shown": "api",
    "did_you_mean": "api",
    "plain_number": "api",
    "typed_value": "api",
    "standard_streams": "api",
    "events": "api",
    "event_rules": "api",
    "accountant": "api",
    "dp_event": "api",
    "rdp_at_orders": "api",
    "zcdp": "api",
    "ledger": "ledger",
    "rounds": "ledger",
    "blt_rows": "ledger",
    "budget_register": "budget_register",
    "calibration": "calibration",
    "tradeoff": "calibration",
    "receipt": "receipt",
    "report": "report",
    "report_verify": "report",
}

LEAVES = ("accountant", "kernels", "fsdp")

# The files inside an operation's folder in kernels/, always of these names, and those that an operation has besides.
OPERATION = {"device.h", "kernels.cuh", "launch.cu", "on_device.cpp", "workspace.h", "workspace.cpp"}
OPERATION_HAS_BESIDES = {
    "clip_factors": {"formula.h"},  # one formula for host and device
    "coded_weights": {"formula.h", "host_loops.cpp", "host_loops.h"},  # the codes, for both
    "gaussian": {"box_muller.cpp", "box_muller.h", "box_muller_pair.h", "chacha20_block.h"},  # the noise, for both
    "linear_norm": {"tile_plan.cpp", "tile_plan.h"},  # the host's choice of tiles
    "norm_parts": {"bound.h"},  # the rounding that host and device share
    "quantised_moments": {"formula.h", "host_loops.cpp", "host_loops.h"},  # the rule, for both
}
# Folders in kernels/ that belong to no operation.
SHARED_BY_OPERATIONS = {"device", "host"}

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


def is_public(header: str) -> bool:
    """Whether other folders may include this header."""
    return header.endswith((".h", ".cuh")) and (header.split("/")[0] not in LEAVES or header.count("/") == 1)


def room(path: str) -> str | None:
    """The room of a file or header of accountant/ or dp/, or nothing if it has none."""
    parts = path.split("/")
    found = parts[1] if len(parts) > 2 else TOP.get(parts[1].split(".")[0])
    return found if found in ROOMS[parts[0]] else None


def wrong_room(path: str, header: str) -> str | None:
    """What is wrong with this include between two files of one folder."""
    folder = path.split("/")[0]
    if folder not in ROOMS or header.split("/")[0] != folder:
        return None
    own, other = room(path), room(header)
    if own is None or other is None:
        return f"{path if own is None else header} is in no room of {folder}/"
    if own != other and other not in ROOMS[folder][own]:
        return f"{folder}'s {own} must not include {header}"
    return None


def wrong_name(path: str) -> str | None:
    """What is wrong with the name of a file in an operation's folder."""
    parts = path.split("/")
    if len(parts) < 3 or parts[0] != "kernels" or parts[1] in SHARED_BY_OPERATIONS:
        return None
    if "/".join(parts[2:]) in OPERATION | OPERATION_HAS_BESIDES.get(parts[1], set()):
        return None
    return f"the files of an operation are {', '.join(sorted(OPERATION))}"


def broken_arrows(path: str, source: str) -> list[str]:
    """What is wrong with one file at `path` (relative to the root), a line each."""
    folder = path.split("/")[0]
    wrong = [f"{path}: {name}" for name in [wrong_name(path)] if name]
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
            elif target != folder and not is_public(header):
                wrong.append(f"{path}:{number}: {folder} must include public headers only, includes {header}")
            elif inside := wrong_room(path, header):
                wrong.append(f"{path}:{number}: {inside}")
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
    "dp_includes_all_three": ("dp/run/a.h", '#include "accountant/types.h"\n#include "fsdp/mesh.h"\n', False),
    "dp_includes_pybind11": ("dp/a.h", "#include <pybind11/pybind11.h>\n", True),
    "dp_includes_example": ("dp/a.h", '#include "examples/gpt2/model.h"\n', True),
    "example_includes_dp": ("examples/gpt2/a.cpp", '#include "dp/mechanism/plan.h"\n', False),
    "example_includes_the_top_of_a_leaf": ("examples/gpt2/a.cpp", '#include "accountant/ledger.h"\n', False),
    "example_includes_inside_of_accountant": ("examples/a.cpp", '#include "accountant/ledger/sha256.h"\n', True),
    "dp_includes_inside_of_kernels": ("dp/run/a.cpp", '#include "kernels/host/checks.h"\n', True),
    "bench_includes_inside_of_fsdp": ("bench/a.cpp", '#include "fsdp/checkpoint/files.h"\n', True),
    "leaf_includes_its_inside": ("kernels/a.cpp", '#include "kernels/host/checks.h"\n', False),
    "gaussian_includes_events": ("accountant/gaussian/a.cpp", '#include "accountant/events.h"\n', False),
    "gaussian_includes_contour": ("accountant/gaussian/a.h", '#include "accountant/contour/contour_line.h"\n', True),
    "contour_includes_gaussian": ("accountant/contour/a.h", '#include "accountant/gaussian/chernoff.h"\n', False),
    "contour_includes_grid": ("accountant/contour/a.cpp", '#include "accountant/grid/grid.h"\n', True),
    "grid_includes_contour": ("accountant/grid/a.cpp", '#include "accountant/contour/contour_line.h"\n', True),
    "engine_includes_both": (
        "accountant/engines/a.cpp",
        '#include "accountant/contour/contour_line.h"\n#include "accountant/grid/grid.h"\n',
        False,
    ),
    "types_include_ledger": ("accountant/types.h", '#include "accountant/ledger.h"\n', True),
    "ledger_includes_engine": ("accountant/ledger.cpp", '#include "accountant/engines/rdp.h"\n', True),
    "calibration_includes_engine": ("accountant/calibration.cpp", '#include "accountant/engines/rdp.h"\n', True),
    "report_includes_cli": ("accountant/report/a.cpp", '#include "accountant/cli/numbers.h"\n', True),
    "cli_includes_report": ("accountant/cli/a.cpp", '#include "accountant/report.h"\n', False),
    "accountant_has_a_file_in_no_room": ("accountant/helpers.cpp", '#include "accountant/types.h"\n', True),
    "accountant_has_a_header_in_no_room": ("accountant/events.cpp", '#include "accountant/helpers.h"\n', True),
    "recording_includes_mechanism": ("dp/recording/a.cpp", '#include "dp/mechanism/plan.h"\n', True),
    "recording_includes_planning": ("dp/recording/a.cpp", '#include "dp/planning/step_plan.h"\n', True),
    "mechanism_includes_recording": ("dp/mechanism/a.cpp", '#include "dp/recording/tape.h"\n', False),
    "mechanism_includes_planning": ("dp/mechanism/a.cpp", '#include "dp/planning/step_costs.h"\n', True),
    "mechanism_includes_run": ("dp/mechanism/a.cpp", '#include "dp/run/session.h"\n', True),
    "planning_includes_mechanism": ("dp/planning/a.cpp", '#include "dp/mechanism/plan.h"\n', True),
    "run_includes_all": ("dp/run/a.h", '#include "dp/mechanism/plan.h"\n#include "dp/planning/step_plan.h"\n', False),
    "optimizers_include_fsdp": ("dp/optimizers/a.cpp", '#include "fsdp/optimizer.h"\n', False),
    "optimizers_include_recording": ("dp/optimizers/a.cpp", '#include "dp/recording/tape.h"\n', True),
    "optimizers_include_mechanism": ("dp/optimizers/a.cpp", '#include "dp/mechanism/clipped_sum.h"\n', True),
    "optimizers_include_run": ("dp/optimizers/a.cpp", '#include "dp/run/session.h"\n', True),
    "operation_has_a_usual_file": ("kernels/scaled_sum/launch.cu", "", False),
    "operation_has_a_listed_file": ("kernels/norm_parts/bound.h", "", False),
    "operation_has_another_file": ("kernels/scaled_sum/helpers.h", "", True),
    "operation_has_a_folder": ("kernels/scaled_sum/device/kernels.cuh", "", True),
    "shared_kernels_have_any_file": ("kernels/device/panel.cuh", "", False),
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
