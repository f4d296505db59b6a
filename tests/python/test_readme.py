"""The README: short enough to be read, its program runs as it stands, its table and picture say what was measured."""

import json
import re
import subprocess
import sys

import pytest


@pytest.fixture
def readme(repository) -> str:
    return (repository / "README.md").read_text()


def test_it_has_at_most_700_words(readme):
    assert len(readme.split()) <= 700


def test_its_program_runs_as_it_stands(readme, tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert 0 < float(re.fullmatch(r"epsilon ([\d.]+)\n", done.stdout)[1]) < 10


ROWS = {"GhostShard": "ghostshard", "FSDP2": "fsdp2", "Opacus 1.6 `ghost_fsdp`": "opacus_fsdp", "Opacus 1.6 `ghost` ": "opacus_dpddp"}


def test_its_table_is_the_benchs_run(readme, repository):
    report = json.loads((repository / "bench" / "results" / "peers.json").read_text())
    (run,) = (run for run in report["runs"] if (run["shape"], run["microbatches"]) == ("21M_T512", 4))
    assert run["commit"] in readme
    for name, engine in ROWS.items():
        figures = run["engines"][engine]
        wanted = f"{figures['throughput_over_fsdp2']:.2f} | {figures['peak_memory_mib']:.0f} | {figures['loopback_mb']:.0f} |"
        assert any(line.startswith(f"| {name}") and line.endswith(wanted) for line in readme.splitlines()), (name, wanted)


def test_its_picture_is_drawn_by_the_bench(repository, tmp_path):
    command = [sys.executable, "bench/peers_picture.py", "--output", str(tmp_path / "peers")]
    subprocess.run(command, cwd=repository, check=True)
    for kind in ("light", "dark"):
        assert (tmp_path / f"peers-{kind}.svg").read_text() == (repository / "docs" / f"peers-{kind}.svg").read_text()


def test_its_links_lead_somewhere(readme, repository):
    links = set(re.findall(r"\]\(([^)#]+)[)#]", readme)) | set(re.findall(r'(?:src|srcset)="([^"]+)"', readme))
    assert links and not [link for link in links if not (repository / link).exists()]
