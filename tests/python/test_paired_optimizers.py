"""bench/paired_optimizers.py and its program: runs of one seed share weights, batches and noise, and none is private."""

import json
import sys

import pytest
from program import CONFIG, Program, texts, write_data

FLAGS = ["--model-config", "config.json", "--data", "data.safetensors", "--eval-data", "public.safetensors", "--output", "never",
         "--noise-multiplier", "1", "--expected-batch", "4", "--steps", "3"]  # fmt: skip


@pytest.fixture
def paired(binary, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_data(tmp_path / "data.safetensors", texts([5] * 12, seed=2), declared="public")
    write_data(tmp_path / "private.safetensors", texts([5] * 12, seed=3), declared="private")
    write_data(tmp_path / "public.safetensors", texts([5, 9, 2, 7], seed=1), declared="public")
    return Program(binary.parent / "paired_run", tmp_path)


def test_runs_of_one_seed_are_the_same_and_of_another_differ(paired):
    def loss(*words: str) -> dict:
        done = paired.run([*FLAGS, *words])
        assert done.code == 0, done.err
        return json.loads(done.out)

    first = loss("--seed", "5")
    assert first["before"] != first["after"]
    assert loss("--seed", "5") == first
    assert loss("--seed", "6")["after"] != first["after"]
    other = loss("--seed", "5", "--optimizer", "sgd")
    assert other["before"] == first["before"] and other["after"] != first["after"]
    assert not (paired.folder / "never").exists()


def test_noise_that_anybody_can_compute_is_for_public_texts_alone(paired):
    done = paired.run([word.replace("data.safetensors", "private.safetensors") for word in FLAGS])
    assert done.code == 2 and "the noise of this program protects nothing, --data must be declared public" in done.err


def test_differences_are_of_pairs(repository, monkeypatch):
    monkeypatch.syspath_prepend(str(repository / "bench"))
    import paired_optimizers

    found = paired_optimizers.differences({"a": [3.0, 4.0], "b": [3.5, 4.1]})
    assert list(found) == ["b"]
    assert found["b"]["of_pairs"] == pytest.approx([0.5, 0.1])
    assert found["b"]["mean"] == pytest.approx(0.3)
    assert found["b"]["standard_error"] == pytest.approx(0.2)
    del sys.modules["paired_optimizers"]
