"""A receipt proves nothing of a ledger whose report claims nothing, whoever wrote it."""

import hashlib
import json

import pytest
from ledgers import write_chain

from ghostshard import check_receipt

EVENT = {"type": "poisson_gaussian", "sampling_rate": 0.1, "noise_multiplier": 2.0}
HEADER = {"type": "header", "schema": "ghostshard.ledger/1", "adjacency": "zero-out", "delta": 1e-5}
VOID = {
    "noise_repeated": ({}, [0, 1, 1], "their noise may cancel"),
    "another_sampler": ({"facts": {"sampler": {"executed": "shuffled"}}}, None, "the sampler that ran is not the poisson sampler"),
    "another_sampler_as_text": ({"facts": {"sampler": "shuffled"}}, None, "the sampler that ran is not the poisson sampler"),
    "another_sampler_announced": ({"sampler": "balls-in-bins"}, None, "the sampler that ran is not the poisson sampler"),
    "bands": ({"noise_bands": [1, 0.5]}, None, "do not cover runs with noise_bands"),
    "groups": ({"sampling_groups": 4}, None, "units are dealt to groups"),
}


@pytest.mark.parametrize("header, steps, sentence", VOID.values(), ids=VOID)
def test_a_receipt_of_a_void_ledger_is_not_proven(account, tmp_path, capsys, header, steps, sentence):
    """The receipt is an honest one of the same releases, put under the head of the void ledger."""
    write_chain(tmp_path / "honest.jsonl", HEADER, [EVENT] * 3)
    receipt = tmp_path / "receipt.json"
    done = account("report", "--ledger", tmp_path / "honest.jsonl", "--output", tmp_path / "audit", "--receipt", receipt)
    assert done.returncode == 0, done.stderr
    honest = ["--receipt", str(receipt), "--ledger", str(tmp_path / "honest.jsonl")]
    assert check_receipt.main(honest) == 0
    lines = write_chain(tmp_path / "void.jsonl", {**HEADER, **header}, [EVENT] * 3, steps)
    head = hashlib.sha256(lines[-1].encode()).hexdigest()
    receipt.write_text(json.dumps({**json.loads(receipt.read_text()), "ledger_head": head}))
    capsys.readouterr()
    assert check_receipt.main(["--receipt", str(receipt), "--ledger", str(tmp_path / "void.jsonl")]) == 1
    assert sentence in capsys.readouterr().out
