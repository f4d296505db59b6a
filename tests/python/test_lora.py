"""Low-rank adapters, from the command line to what transformers and PEFT would load."""

import json

import numpy
import pytest
import torch
from program import CONFIG, PLAIN, PRIVATE, arguments, everything_in, metrics, texts, weights
from safetensors.numpy import load_file
from transformers import GPT2LMHeadModel

WIDTH = CONFIG["n_embd"]
RANK, ALPHA = 2, 6.0
LORA = {"--lora-rank": str(RANK), "--lora-alpha": str(ALPHA), "--learning-rate": "0.1", "--eval-data": "public.safetensors"}
TARGETS = {"attn.c_attn": (WIDTH, 3 * WIDTH), "mlp.c_proj": (4 * WIDTH, WIDTH)}


def adapter(run):
    return load_file(run / "adapter" / "adapter_model.safetensors")


@pytest.fixture
def run(program):
    """A private run with adapters on two projections of each block."""
    done = program.run(arguments({**PRIVATE, **LORA}, lora_targets=",".join(TARGETS)))
    assert done.code == 0, done.err
    return program.folder / "run"


def test_only_adapters_are_trained_and_the_merged_model_says_so(run, program):
    base, merged, trained = load_file(program.folder / "model" / "model.safetensors"), weights(run), adapter(run)
    assert base.keys() == merged.keys()
    for name, values in base.items():
        module = name.removesuffix(".weight")
        key = f"base_model.model.{module}.lora_A.weight"
        if key not in trained:
            assert numpy.array_equal(values, merged[name]), name
            continue
        down, up = trained[key].astype(float), trained[key.replace("lora_A", "lora_B")].astype(float)
        assert numpy.abs(up).max() > 0
        expected = values + ALPHA / RANK * (up @ down).T
        # Formed in float64 and rounded once.
        assert numpy.abs(merged[name] - expected).max() <= 2**-24 * 1.01 * numpy.abs(expected).max()


def test_the_adapter_folder_is_what_peft_reads(run):
    """Names, shapes and keys by PEFT's file format: lora_A is Linear(in, r), lora_B is Linear(r, out)."""
    assert {name for name in everything_in(run) if name.startswith("adapter")} == {
        "adapter", "adapter/adapter_config.json", "adapter/adapter_model.safetensors",
    }  # fmt: skip
    shapes = {name: values.shape for name, values in adapter(run).items()}
    expected = {}
    for layer in range(CONFIG["n_layer"]):
        for module, (inputs, outputs) in TARGETS.items():
            prefix = f"base_model.model.transformer.h.{layer}.{module}"
            expected |= {f"{prefix}.lora_A.weight": (RANK, inputs), f"{prefix}.lora_B.weight": (outputs, RANK)}
    assert shapes == expected
    config = json.loads((run / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["fan_in_fan_out"]) == ("LORA", RANK, ALPHA, True)
    assert (config["bias"], config["task_type"], config["base_model_name_or_path"]) == ("none", "CAUSAL_LM", "model")
    modules = {name for name, _ in GPT2LMHeadModel.from_pretrained(run / "model").named_modules()}
    assert len(config["target_modules"]) == len(TARGETS) * CONFIG["n_layer"]
    assert set(config["target_modules"]) <= modules


def test_transformers_computes_the_loss_that_the_run_ended_with(run):
    network, info = GPT2LMHeadModel.from_pretrained(run / "model", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    losses = []
    for unit in texts([5, 9, 2, 7], seed=1):  # public.safetensors
        with torch.no_grad():
            logs = network.eval()(torch.tensor([unit[:-1]])).logits[0].double().log_softmax(-1)
        losses += [-logs[position, token].item() for position, token in enumerate(unit[1:])]
    lines = metrics(run)
    # Merged or apart is the same function: float32 rounding of a mean of losses of order 3.
    assert lines[-1]["eval_loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert abs(lines[-1]["eval_loss"] - lines[0]["eval_loss"]) > 1e-4


def test_the_start_is_the_base_model(program):
    plain = program.run(arguments({**PLAIN, "--eval-data": "public.safetensors"}, output="plain", steps="1"))
    lora = program.run(arguments({**PLAIN, **LORA}, output="lora", steps="1"))
    assert plain.code == lora.code == 0
    first = [metrics(program.folder / name)[0]["eval_loss"] for name in ("plain", "lora")]
    assert first[0] == first[1]


def test_the_report_counts_the_adapters_parameters(run):
    report = json.loads((run / "privacy_report.json").read_text())
    expected = CONFIG["n_layer"] * sum(RANK * (inputs + outputs) for inputs, outputs in TARGETS.values())
    assert report["mechanism"]["trainable_parameters"] == expected


def test_two_ranks_train_the_same_adapters(program):
    (program.folder / "key").write_bytes(bytes(32))
    (program.folder / "key").chmod(0o600)
    words = {output: arguments({**PLAIN, **LORA}, output=output) for output in ("one", "two")}
    assert program.run(words["one"]).code == 0
    assert [rank.code for rank in program.run_ranks(words["two"], words["two"])] == [0, 0]
    one, two = adapter(program.folder / "one"), adapter(program.folder / "two")
    for name in one:
        numpy.testing.assert_allclose(one[name], two[name], rtol=1e-3, atol=1e-5)
