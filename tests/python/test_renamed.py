"""Old names of modules work for one release, warn at the line that uses them, and hand out the same objects."""

import importlib
import subprocess
import sys
import warnings

import pytest

# Old module: (new module, a name in both).
RENAMED = {
    "ghostshard.data": ("ghostshard.texts", "read_packed"),
    "ghostshard.data.packed": ("ghostshard.texts.packed", "PackedData"),
    "ghostshard.data.split": ("ghostshard.texts.split", "split_indices"),
    "ghostshard.data.text": ("ghostshard.texts.text", "TextUnit"),
    "ghostshard.data.vocabulary": ("ghostshard.texts.vocabulary", "load_vocabulary"),
    "ghostshard.data_loading": ("ghostshard.loaders", "GhostDataLoader"),
    "ghostshard.data_loading.batch_memory": ("ghostshard.loaders.batch_memory", "BatchMemoryManager"),
    "ghostshard.data_loading.empty_batch": ("ghostshard.loaders.empty_batch", "CollateOrEmpty"),
    "ghostshard.data_loading.loader": ("ghostshard.loaders.loader", "settings_of"),
    "ghostshard.data_loading.poisson": ("ghostshard.loaders.poisson", "PoissonBatchSampler"),
}


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_hands_out_the_same_objects(old):
    new, name = RENAMED[old]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        there = importlib.import_module(old)
    assert getattr(there, name) is getattr(importlib.import_module(new), name)


@pytest.mark.parametrize("line, old, new", [
    ("from ghostshard.data import read_packed", "ghostshard.data", "ghostshard.texts"),
    ("from ghostshard.data.vocabulary import load_vocabulary", "ghostshard.data", "ghostshard.texts"),
    ("import ghostshard.data_loading", "ghostshard.data_loading", "ghostshard.loaders"),
])  # fmt: skip
def test_a_users_script_that_imports_an_old_name_is_warned_at_its_line(tmp_path, line, old, new):
    script = tmp_path / "script.py"
    script.write_text(f"import sys\n{line}\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{script}:2: DeprecationWarning: {old} is {new} now; the old name goes with the next release" in done.stderr


@pytest.mark.parametrize("old, new", [
    ("ghostshard.data", "ghostshard data"), ("ghostshard.demo", "python examples/gpt2/demo/demo.py"),
])  # fmt: skip
def test_an_old_command_runs_and_warns(run_module, old, new):
    done = run_module(old, "--help")
    assert done.code == 0 and done.out.startswith(f"usage: {new} ")
    assert f"DeprecationWarning: python -m {old} is {new} now" in done.err


def test_the_command_that_generates_keeps_its_name_without_a_warning(run_module):
    done = run_module("ghostshard.generate", "--help")
    assert done.code == 0 and done.out.startswith("usage: ghostshard generate ")
    assert done.err == ""
