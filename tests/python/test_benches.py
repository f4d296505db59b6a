"""The programs that measure: that each runs, at tiny sizes on the CPU, and that its arithmetic is right.

How fast anything is, no test looks at.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
ENVIRONMENT["OMP_NUM_THREADS"] = "1"


def run(*words, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=ENVIRONMENT, timeout=240)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def built(binary):
    """built(name): a program beside the training program."""

    def find(name: str) -> Path:
        if not os.access(binary.parent / name, os.X_OK):
            pytest.fail(f"{binary.parent / name} is not there: `make build` builds it", pytrace=False)
        return binary.parent / name

    return find


# --- kernels ----------------------------------------------------------------------------------------------------------

UNITS, LENGTH, WIDTH, VOCABULARY = 4, 5, 32, 97  # of the model "tiny"
LAYERS = {"qkv": (32, 96), "attention_out": (32, 32), "mlp_in": (32, 128), "mlp_out": (128, 32), "head": (32, 97)}
PEERS = {
    "gram_norm": {"bmm", "einsum"}, "passing_norm": {"bmm", "einsum"}, "scaled_sum_rows": {"addmm"},
    "per_unit_gradient+scaled_sum_held": {"addmm", "einsum"}, "scaled_sum_held": {"einsum"},
    "embedding_norm": {"index_add"}, "embedding_scaled_sum": {"embedding_backward"}, "affine_norms": {"einsum"}, "add_gaussian": {"normal"},
}  # fmt: skip


def kernels(program: Path, device: str, folder: Path) -> dict:
    file = folder / "kernels.json"
    sizes = ["--models=tiny", f"--lengths={LENGTH}", f"--rows={UNITS * LENGTH}", "--repeats=2", "--copy-mib=1"]
    done = run(program, f"--device={device}", *sizes, "--commit=abc", f"--benchmark_out={file}")
    assert "error" not in done.stdout
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def on_cpu(built, tmp_path_factory) -> dict:
    return kernels(built("device_kernels"), "cpu", tmp_path_factory.mktemp("cpu"))


@pytest.fixture(scope="module")
def on_emulated(built, tmp_path_factory) -> dict:
    return kernels(built("device_kernels_emulated"), "emulated", tmp_path_factory.mktemp("emulated"))


def measured(result: dict) -> dict[tuple, dict]:
    """By (operation, layer, dtype), "" where an operation has none."""
    found = {}
    for row in result["benchmarks"]:
        assert "error_message" not in row, row
        words = row["name"].split("/tiny")[0].split("/")
        dtype = next((part for part in row["name"].split("/") if "float" in part), "")
        found[words[0], words[1] if len(words) > 1 else "", dtype] = row
    return found


def test_every_kernel_is_measured_beside_its_peers(on_cpu):
    found = measured(on_cpu)
    for operation, peers in PEERS.items():
        rows = [row for key, row in found.items() if key[0] == operation]
        assert rows, operation
        for row in rows:
            assert {key.removeprefix("ours_over_") for key in row if key.startswith("ours_over_")} == peers
    assert {layer for operation, layer, _ in found if operation == "gram_norm"} == set(LAYERS)
    assert on_cpu["context"]["commit"] == "abc" and on_cpu["context"]["device"]


def test_operations_and_bytes_are_counted_right(on_cpu):
    """Beside loops: of every pair of rows of a unit, of every row, of every value."""
    found = measured(on_cpu)
    rows, pairs = UNITS * LENGTH, UNITS * sum(1 for t in range(LENGTH) for _ in range(t + 1))
    for layer, (inputs, outputs) in LAYERS.items():
        values = inputs * outputs
        row_bytes = 4 * rows * (inputs + outputs)
        expected = {
            "gram_norm": (2 * pairs * (inputs + outputs), row_bytes),
            "passing_norm": (min(2 * pairs * (inputs + outputs), 2 * rows * values), row_bytes),
            "scaled_sum_rows": (2 * rows * values, row_bytes + 8 * values),
            "scaled_sum_held": (2 * UNITS * values, 4 * UNITS * values + 8 * values),
            "per_unit_gradient+scaled_sum_held": (
                2 * rows * values + 4 * UNITS * values, row_bytes + 8 * UNITS * values + 8 * values),
        }  # fmt: skip
        for operation, (flops, moved) in expected.items():
            row = found[operation, layer, "float32"]
            assert (row["flops"], row["bytes"]) == (flops, moved), (operation, layer)
    assert found["embedding_norm", "", "float32"]["bytes"] == rows * (4 * WIDTH + 8)
    assert found["affine_norms", "", "float32"]["bytes"] == 8 * rows * WIDTH + 8 * UNITS * WIDTH
    assert found["add_gaussian", "mlp", ""]["bytes"] == 8 * 4 * WIDTH * WIDTH
    assert found["add_gaussian", "table", ""]["bytes"] == 8 * VOCABULARY * WIDTH


def test_rates_are_counts_over_the_time(on_cpu):
    copy = float(on_cpu["context"]["copy_gb_per_s"])
    for row in measured(on_cpu).values():
        assert math.isclose(row["gb_per_s"], row["bytes"] / row["us"] / 1e3, rel_tol=1e-9)
        if row["flops"]:
            assert math.isclose(row["tflops"], row["flops"] / row["us"] / 1e6, rel_tol=1e-9)
        if "of_copy" in row:
            assert math.isclose(row["of_copy"], row["gb_per_s"] / copy, rel_tol=1e-5)  # printed with six decimals
        for peer in (key.removeprefix("ours_over_") for key in row if key.startswith("ours_over_")):
            assert row[f"{peer}_us"] > 0 and row[f"ours_over_{peer}"] > 0
    memory_bound = {key[0] for key, row in measured(on_cpu).items() if "of_copy" in row}
    assert memory_bound == {"scaled_sum_held", "embedding_norm", "embedding_scaled_sum", "affine_norms", "add_gaussian"}


def test_a_device_has_16_bit_rows_too(on_emulated, on_cpu):
    """By events in its queue; every result was compared with the peers' there."""
    found = measured(on_emulated)
    expected = {key[:2] for key in measured(on_cpu) if key[2]}
    assert {key[:2] for key in found if key[2] == "float32"} == expected
    for dtype in ("bfloat16", "float16"):  # held gradients are float32 whatever the rows were
        assert {key[:2] for key in found if key[2] == dtype} == {key for key in expected if key[0] != "scaled_sum_held"}
    half, whole = found["gram_norm", "qkv", "bfloat16"], found["gram_norm", "qkv", "float32"]
    assert (half["bytes"], half["flops"]) == (whole["bytes"] / 2, whole["flops"])
    assert on_emulated["context"]["device"] == "emulated:0"


# --- steps ------------------------------------------------------------------------------------------------------------

SIZES = {"layers": 2, "width": 32, "heads": 2, "vocab": 97, "length": 8, "texts": 3, "microbatches": 2, "repeats": 2}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_beside_the_plain_step(built, tmp_path, dtype):
    file = tmp_path / "step.json"
    flags = [f"--{name}={value}" for name, value in SIZES.items()]
    flags += [f"--compute-dtype={dtype}", "--peak-tflops=0.5", "--commit=abc", f"--output={file}"]
    done = run(built("step_compare"), *flags)
    result = json.loads(done.stdout)
    assert json.loads(file.read_text()) == result
    assert {name: result[name] for name in SIZES} == SIZES
    assert (result["commit"], result["compute_dtype"]) == ("abc", dtype) and result["device"]
    # A block's four matrices and the head, six operations each; attention's two products of T rows, thrice, a layer.
    weights = 2 * 12 * 32 * 32 + 97 * 32
    assert result["model_flops_per_token"] == 6 * weights + 12 * 2 * 32 * 8
    for side in ("private", "plain"):
        row = result[side]
        assert math.isclose(row["tokens_per_second"], 2 * 3 * 8 / row["seconds"], rel_tol=1e-9)
        flops = row["tokens_per_second"] * result["model_flops_per_token"]
        assert math.isclose(row["mfu"], flops / 0.5e12, rel_tol=1e-9)
        phases = sum(row[name] for name in ("forward", "backward", "clipped sum", "noise+reduce", "optimizer"))
        assert 0 < phases <= 2 * row["slowest"]
    assert result["throughput_private_over_plain"] > 0


SENTENCES = {
    "no_such_device_for_kernels": ("device_kernels", ["--device", "cuda:99"], 2, "this build or this machine does not have it"),
    "no_device_at_all": ("device_kernels", ["--device", "moon"], 2, "--device must be cpu, cuda or cuda:N, got 'moon'"),
    "no_such_device_for_steps": ("step_compare", ["--device", "cuda:99"], 2, "error: device cuda:99: this"),
    "misspelt": ("step_compare", ["--device", "cuda:x"], 2, "--device must be cpu, cuda (each rank"),
    "peak": ("step_compare", ["--peak-tflops", "0"], None, "--peak-tflops"),
    "two_sizes": ("step_compare", ["--model", "124M", "--layers", "3"], None, "excludes"),
}  # fmt: skip


@pytest.mark.parametrize("name, words, code, sentence", SENTENCES.values(), ids=SENTENCES)
def test_mistakes_are_sentences(built, name, words, code, sentence):
    done = subprocess.run([built(name), *words], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == code if code else done.returncode > 0
    assert sentence in done.stderr


# --- from Python ------------------------------------------------------------------------------------------------------


@pytest.fixture
def peers(repository, monkeypatch):
    monkeypatch.syspath_prepend(str(repository / "bench"))
    import peers

    return peers


def test_peers_from_python_take_their_steps(peers, monkeypatch, tmp_path):
    tiny = {"layers": 2, "width": 16, "heads": 2, "vocab": 31, "length": 6, "texts": 2, "untied": True}
    monkeypatch.setitem(peers.SHAPES, "tiny", tiny)
    file = tmp_path / "peers.json"
    words = ["--shapes=tiny", "--engines", "fsdp2", "ghostshard", "--microbatches=1", "--ranks=1", "--repeats=1"]
    monkeypatch.setattr(sys, "argv", ["peers.py", *words, "--texts=3", f"--output={file}"])
    peers.main()
    (result,) = json.loads(file.read_text())["runs"]
    assert result["texts"] == 3 and set(result["engines"]) == {"fsdp2", "ghostshard"}
    ours, theirs = result["engines"]["ghostshard"], result["engines"]["fsdp2"]
    assert math.isclose(ours["throughput_over_fsdp2"], theirs["seconds"] / ours["seconds"], rel_tol=1e-9)


def short_optimizers(monkeypatch, folder, *words) -> dict:
    """The engines' rows."""
    import optimizers

    file = folder / "optimizers.json"
    monkeypatch.setattr(sys, "argv", ["optimizers.py", "--short", f"--output={file}", *words])
    optimizers.main()
    report = json.loads(file.read_text())
    (result,) = report["runs"]
    assert report["commit"] and result["shape"] == "short"
    assert all("Memory of a rank" in lines[0] for lines in result["plan"].values())
    return result["engines"]


def sent_by_optimizer(row) -> list[float]:
    return [row[f"optimizer_{kind}_mb"] for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")]


MATRICES_MB = 4e-6 * 2 * 12 * 32**2  # of the short form's two blocks, in float32


@pytest.mark.long
def test_optimizers_from_python_take_their_steps(peers, monkeypatch, tmp_path):
    rows = short_optimizers(monkeypatch, tmp_path, "--engines", "ghostshard/torch_adamw", "ghostshard/muon")
    adamw, muon = rows["ghostshard/torch_adamw"], rows["ghostshard/muon"]
    assert sent_by_optimizer(adamw) == [0, 0, 0, 0]
    # Of a matrix that the other rank owns, its half goes there; of one of its own the other's half goes back.
    assert sent_by_optimizer(muon)[:3] == [0, 0, 0] and math.isclose(muon["optimizer_all_to_all_mb"], MATRICES_MB / 2, rel_tol=1e-3)
    assert math.isclose(muon["step_over_adamw"], muon["seconds"] / adamw["seconds"], rel_tol=1e-9)
    assert all(0 < row["optimizer_seconds"] < row["seconds"] for row in rows.values())
    assert math.isclose(adamw["state_mb"] - muon["state_mb"], MATRICES_MB / 2, rel_tol=0.01)  # one moment instead of two, of its half


@pytest.mark.long
def test_optimizers_from_python_beside_torchs(peers, monkeypatch, tmp_path):
    plain = ["fsdp2/torch_adamw", "fsdp2/torch_muon_gathered", "fsdp2/torch_muon", "fsdp2/muon"]
    private = ["ghostshard/adamw", "ghostshard/adamw8bit", "ghostshard/muon", "ghostshard/soap"]
    rows = short_optimizers(monkeypatch, tmp_path, "--engines", *plain, *private)
    for name in ("fsdp2/torch_adamw", "ghostshard/adamw", "ghostshard/adamw8bit"):
        assert sent_by_optimizer(rows[name]) == [0, 0, 0, 0]
    assert sent_by_optimizer(rows["fsdp2/muon"]) == sent_by_optimizer(rows["ghostshard/muon"])
    gather, reduce, every, to_all = sent_by_optimizer(rows["ghostshard/soap"])  # all agree on one number: whether all gradients are finite
    assert [gather, reduce, to_all] == [0, 0, rows["ghostshard/muon"]["optimizer_all_to_all_mb"]] and every <= 8e-6
    # DTensor gathers gradients whole: each rank sends its half to the other.
    assert math.isclose(rows["fsdp2/torch_muon_gathered"]["optimizer_all_gather_mb"], MATRICES_MB / 2, rel_tol=0.01)
    assert rows["fsdp2/torch_muon"]["optimizer_all_gather_mb"] > MATRICES_MB  # in each iteration
    assert rows["ghostshard/adamw8bit"]["state_mb"] < rows["ghostshard/adamw"]["state_mb"]


def test_peers_need_a_gpu_for_each_rank(peers, monkeypatch, capsys):
    import torch

    monkeypatch.setattr(sys, "argv", ["peers.py", "--device=cuda", "--ranks=99"])
    with pytest.raises(SystemExit) as ended:
        peers.main()
    assert ended.value.code == 2
    expected = f"each rank needs a CUDA device of its own, this machine has {torch.cuda.device_count()}"
    assert expected in capsys.readouterr().err


def test_an_engine_that_ends_says_why(peers):
    engine = peers.PythonEngine([sys.executable, "-c", "raise ValueError('no ' + 'kernels here')"], 1)
    engine.ranks[0].wait()
    with pytest.raises(SystemExit, match="no kernels here"):
        engine.step("step")


def random_run(**engines) -> dict:
    found = {engine: {"lower": low, "upper": high, "seconds": 0.01, "mib": 5} for engine, (low, high) in engines.items()}
    return {"family": "few steps", "seed": 1, "run": 0, "delta": 1e-6, **found}


@pytest.mark.parametrize(
    "contour, prv, code",
    [((1.0, 1.2), (1.1, 1.3), 0), ((1.0, 1.2), (1.21, 1.3), 1), ((1.21, 1.3), (1.0, 1.2), 1), ((1.2, 1.1), (1.0, 1.3), 1),
     ((1.0, "nan"), (1.0, 1.3), 1), ((1.0, "inf"), (1.0, 1.3), 0)],
    ids=["meet", "below", "above", "ends in the wrong order", "no number", "no bound"],
)  # fmt: skip
def test_the_table_of_random_runs_counts_contradictions(repository, tmp_path, contour, prv, code):
    (tmp_path / "runs.jsonl").write_text(json.dumps(random_run(contour=contour, prv=prv)) + "\n")
    out = run(sys.executable, repository / "bench" / "accountant_fuzz" / "table.py", tmp_path / "runs.jsonl", code=code).stdout
    assert ("; 0 contradictions" in out) == (code == 0)


def test_random_runs_are_the_same_each_time_and_their_brackets_meet(built, repository, tmp_path):
    words = ["--seed", 7, "--runs", 1, "--families", "few steps,corners"]
    first, again = (run(built("accountant_fuzz"), *words).stdout for _ in range(2))
    drawn = [[(row["phases"], row["contour"]["upper"]) for row in map(json.loads, text.splitlines())] for text in (first, again)]
    assert drawn[0] == drawn[1] and len(drawn[0]) == 2
    (tmp_path / "runs.jsonl").write_text(first)
    run(sys.executable, repository / "bench" / "accountant_fuzz" / "table.py", tmp_path / "runs.jsonl")


def test_sampling_cost_cuts_what_was_drawn(repository):
    done = run(sys.executable, repository / "bench/sampling_cost.py", "--units", 20000, "--batch", 200)
    _, _, row = done.stdout.strip().splitlines()
    units, drawn, _, kept, *_ = (cell.strip() for cell in row.strip("|").split("|"))
    assert units == "20,000" and int(kept) == min(int(drawn), 196)


@pytest.mark.long
def test_check_cost_counts_both_the_checks_and_the_look_with_other_examples(repository):
    done = run(sys.executable, repository / "bench/check_cost.py", "--shape", "small", "--steps", 1)
    row = json.loads(done.stdout)
    assert 0 < row["checks_ms"] < row["step_ms"]
    assert row["a_600th_percent"] == pytest.approx(row["with_other_examples_ms"] / row["step_ms"] / 6, rel=0.01)
