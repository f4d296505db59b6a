"""What the tree promises: files free of machine paths, an environment that imports what the README names."""

import re
import subprocess
from pathlib import Path

import pytest

# Built from pieces, so that this file passes its own test.
MACHINE_PATH = re.compile("(?<![\\w.$}])/(?:" + "|".join(["ho" + "me/\\w", "ro" + "ot/", "wo" + "rk/", "Us" + "ers/\\w"]) + ")")


def tracked_files(root: Path) -> list[Path]:
    """Files in git or about to be; without git (an unpacked archive) nothing can be said."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True
    )
    if listed.returncode != 0:
        pytest.skip("the tree is no git checkout")
    return [root / name for name in listed.stdout.decode().split("\0") if name and (root / name).is_file()]


def machine_paths(text: str, root: Path) -> list[str]:
    return [line.strip() for line in text.split("\n") if MACHINE_PATH.search(line) or str(root) in line]


def test_no_file_names_a_place_on_somebodys_machine(repository):
    wrong = {}
    for file in tracked_files(repository):
        lines = machine_paths(file.read_bytes().decode("utf-8", errors="replace"), repository)
        if lines:
            wrong[str(file.relative_to(repository))] = lines[0]
    assert not wrong


LINES = {
    "home": ("see /ho" + "me/ann/x", True),
    "root": ("'/ro" + "ot/.cache'", True),
    "mount": ("cd /wo" + "rk/tree", True),
    "system": ("/usr/share/games/fortunes", False),
    "relative": ("data/ho" + "me/ann", False),
    "variable": ("$HOME/ro" + "ot/x", False),
}


@pytest.mark.parametrize("line, is_wrong", LINES.values(), ids=LINES.keys())
def test_the_check_for_machine_paths_sees(line, is_wrong, repository):
    assert bool(machine_paths(line, repository)) == is_wrong


def test_the_environment_imports_what_the_readme_names():
    import opacus
    import transformers

    import ghostshard

    assert opacus.__version__ == "1.6.0"
    assert ghostshard.__version__ and transformers.__version__


def test_the_package_says_that_it_is_typed(repository):
    import ghostshard

    assert Path(ghostshard.__file__).with_name("py.typed").is_file()


def test_every_requirement_is_pinned_and_in_the_lock(repository):
    def pins(name: str) -> dict[str, str]:
        lines = (line.partition("#")[0].strip() for line in (repository / name).read_text().splitlines())
        found = [line.partition("==") for line in lines if line]
        assert all(version for _, _, version in found), f"{name} must pin with =="
        return {package.lower(): version for package, _, version in found}

    lock = pins("requirements.lock")
    for package, version in {**pins("requirements.txt"), **pins("requirements-run.txt")}.items():
        assert lock[package] == version
