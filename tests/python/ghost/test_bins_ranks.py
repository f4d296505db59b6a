"""Balls-in-bins sampling on two ranks under FSDP2: one deal, that of the C++ program under the same key, and one charge."""

import json
import sys

import pytest
from launch import HERE, run_ranks

sys.path.append(str(HERE.parent / "loaders"))
from coin_twin import dealt

N, BINS = 20, 5


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bins")
    run_ranks(HERE / "bins_ranks_main.py", 2, str(folder), "begin")
    run_ranks(HERE / "bins_ranks_main.py", 1, str(folder), "go_on")
    read = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return read, [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def test_two_ranks_share_the_deal_of_the_cpp_program(found):
    first, second = found[0]["begin0"], found[0]["begin1"]
    assert first["keys"] == second["keys"] and len(set(first["keys"])) == 2
    for key, *shares in zip(first["keys"], first["passes"], second["passes"], strict=True):
        for step, parts in enumerate(zip(*shares, strict=True)):
            assert sorted(sum(parts, [])) == [unit for unit in range(N) if dealt(bytes.fromhex(key), unit, BINS) == step]
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sorted(sum(first["passes"][0] + second["passes"][0], [])) == list(range(N))


def test_passes_are_charged_once_and_one_that_goes_on_is_another(found):
    read, (_, *lines) = found
    assert read["begin0"]["history"] == read["begin1"]["history"] == [[1.0, 1 / BINS, 2]]
    assert read["go_on0"]["history"] == [[1.0, 1 / BINS, 3]]
    charged = [(line["step"], line["attempt"], line["event"]["type"]) for line in lines if line["type"] == "release"]
    assert charged == [(step, 0, "balls_in_bins_gaussian") for step in (0, BINS, BINS + 2)]
    assert sorted(sum(read["go_on0"]["passes"][0], [])) == list(range(N))
    assert read["go_on0"]["keys"][0] not in read["begin0"]["keys"]
