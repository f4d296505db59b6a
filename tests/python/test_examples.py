"""examples/*.py: which device they train on, and one of them from its command line."""

import json
import os
import subprocess
import sys

import pytest
import torch


@pytest.fixture
def ranks(repository, monkeypatch):
    monkeypatch.syspath_prepend(str(repository / "examples"))
    import ranks

    return ranks


# name: (what is wanted, CUDA devices, whether the engine has kernels for them, ranks of this host, this one) -> device
CHOICES = {
    "cpu_is_asked_for": (("cpu", 8, True, 1, 0), "cpu"),
    "auto_without_a_gpu": (("auto", 0, False, 2, 0), "cpu"),
    "auto_with_one_for_each": (("auto", 2, True, 2, 1), "cuda:1"),
    "auto_with_too_few": (("auto", 1, True, 2, 0), "cpu"),
    "auto_without_kernels": (("auto", 1, False, 1, 0), "cpu"),
    "cuda_with_one_for_each": (("cuda", 8, True, 8, 5), "cuda:5"),
}
REFUSED = {
    "no_gpu": (("cuda", 0, False, 1, 0), "each of the 1 rank(s) here needs a CUDA device of its own, this machine has 0"),
    "too_few": (("cuda", 1, True, 2, 1), "each of the 2 rank(s) here needs a CUDA device of its own, this machine has 1"),
    "no_kernels": (("cuda", 1, False, 1, 0), "this build of ghostshard has no CUDA kernels"),
}


@pytest.fixture
def choose(ranks, monkeypatch):
    def chosen(wanted: str, devices: int, kernels: bool, here: int, own: int) -> torch.device:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
        engine = type("Engine", (), {"has_kernels": staticmethod(lambda device: kernels)})
        monkeypatch.setattr(ranks._native, "load", lambda name: engine)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
        monkeypatch.setenv("LOCAL_RANK", str(own))
        return ranks.device_of_this_rank(wanted)

    return chosen


@pytest.mark.parametrize("machine, device", CHOICES.values(), ids=CHOICES)
def test_each_rank_takes_its_own_device(choose, machine, device):
    assert choose(*machine) == torch.device(device)


@pytest.mark.parametrize("machine, sentence", REFUSED.values(), ids=REFUSED)
def test_a_gpu_that_is_asked_for_and_not_there(choose, machine, sentence):
    with pytest.raises(ValueError, match="--device cuda") as refused:
        choose(*machine)
    assert sentence in str(refused.value)


def start(repository, tmp_path, *flags: str) -> subprocess.CompletedProcess:
    texts = tmp_path / "texts"
    texts.write_text("\n".join(f"text {i}" for i in range(24)))
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, repository / "examples" / "finetune_llama_lora.py", f"--texts={texts}", f"--output={tmp_path / 'run'}",
         "--epochs=1", "--batch=8", "--max-length=12", *flags],
        env=os.environ | place, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device, which would be taken")
def test_an_example_says_that_there_is_no_gpu(repository, tmp_path):
    done = start(repository, tmp_path, "--device=cuda")
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    assert "error: --device cuda: each of the 1 rank(s) here needs a CUDA device of its own" in done.stderr


def test_an_example_trains_where_there_is_a_device_for_it(repository, tmp_path):
    done = start(repository, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "adapters" / "adapter_model.safetensors").is_file()
    assert json.loads((tmp_path / "run" / "privacy_report.json").read_text())
