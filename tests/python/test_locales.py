"""A report is the same whatever locale the process has set: with a decimal comma its curves and sentences would break."""

import os
import re
import shutil
import subprocess
import sys

import pytest

NUMBERS_OF_THE_LOCALE = re.compile(r"\b(?:v?s?n?f?printf|strto[df]|sto[df]|atof|s?scanf)\b(?!.*%02x)")
RUN = """
import locale, sys, warnings
locale.setlocale(locale.LC_ALL, sys.argv[1])
assert locale.localeconv()["decimal_point"] == sys.argv[2]
import torch
from torch.utils.data import DataLoader, TensorDataset
from ghostshard import PrivacyEngine
warnings.simplefilter("ignore")
engine = PrivacyEngine()
engine.attach_ledger("run/ledger.jsonl")
model = torch.nn.Linear(4, 2)
data = DataLoader(TensorDataset(torch.randn(100, 4), torch.randint(2, (100,))), batch_size=10)
model, optimizer, criterion, loader = engine.make_private(
    module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=data, noise_multiplier=1.5, max_grad_norm=0.7,
    criterion=torch.nn.CrossEntropyLoss(), grad_sample_mode="ghost")
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
engine.report("run")
"""


def test_the_accountant_writes_and_reads_no_number_by_the_locale(repository):
    """accountant/plain_number.h does. The program of cli/ sets no locale; the accountant is loaded into others, too."""
    found = [
        f"{path.relative_to(repository)}: {line.strip()}"
        for path in sorted((repository / "accountant").rglob("*"))
        if path.suffix in (".h", ".cpp") and path.parent.name != "cli"
        for line in path.read_text().splitlines()
        if NUMBERS_OF_THE_LOCALE.search(line.split("//")[0])
    ]
    assert not found


@pytest.fixture(scope="session")
def german(tmp_path_factory):
    """The folder of a locale with a decimal comma."""
    folder = tmp_path_factory.mktemp("locales")
    command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / "de_DE.UTF-8")]
    if shutil.which("localedef") is None or subprocess.run(command, capture_output=True).returncode > 1:
        pytest.skip("needs localedef and its sources (Debian's package locales)")
    return folder


def test_a_report_under_a_decimal_comma_is_as_any_other(german, account, tmp_path):
    done = subprocess.run([sys.executable, "-c", RUN, "de_DE.UTF-8", ","], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "LOCPATH": str(german)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    verified = account("verify", "--ledger", tmp_path / "run/ledger.jsonl", "--report", tmp_path / "run/privacy_report.json")
    assert verified.returncode == 0, verified.stdout
    curves = re.findall(r' d="(M[^"]*)"', (tmp_path / "run/privacy_report.html").read_text())
    assert curves and not any("," in curve for curve in curves)
