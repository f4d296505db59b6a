"""Folders of transformers in, folders for transformers out: the same losses, the same likeliest tokens, the same weights.

The program shows no logits. What it shows determines them: the loss of a text with one loss token is minus the
log-probability of that token, and over all tokens of a vocabulary these are the logits up to their softmax's constant.
"""

import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
import torch
from program import PLAIN, PRIVATE, Finished, Program, arguments, metrics, texts, weights, write_data
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

LOGIT_TOLERANCE = 1e-4
LOSS_TOLERANCE = 1e-5

BASE = {"vocab_size": 16, "n_positions": 10, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}

# Settings of the model and of how transformers saves it.
SHAPES = {
    "tied": ({}, {}),
    "untied": ({"tie_word_embeddings": False}, {}),
    "inner_width": ({"n_inner": 40}, {}),
    "gelu": ({"activation_function": "gelu"}, {}),
    "relu": ({"activation_function": "relu"}, {}),
    "gelu_pytorch_tanh": ({"activation_function": "gelu_pytorch_tanh"}, {}),
    "odd_sizes": ({"vocab_size": 13, "n_positions": 9, "n_embd": 21, "n_head": 3, "n_inner": 13, "n_layer": 3}, {}),
    "one_layer_one_head": ({"n_layer": 1, "n_head": 1, "n_embd": 17}, {}),
    "coarse_norm": ({"layer_norm_epsilon": 0.1}, {}),
    "base_model_names": ({}, {"base": True}),
    "shards": ({}, {"max_shard_size": "10KB"}),
    "shards_untied": ({"tie_word_embeddings": False}, {"max_shard_size": "10KB"}),
    "bfloat16": ({}, {"dtype": torch.bfloat16}),
    "float16_untied": ({"tie_word_embeddings": False}, {"dtype": torch.float16}),
}


def make_network(**config) -> GPT2LMHeadModel:
    """Every parameter random and large enough to matter, biases and norms included."""
    torch.manual_seed(1)
    network = GPT2LMHeadModel(GPT2Config(**{**BASE, **config})).eval()
    for name, parameter in network.named_parameters():
        middle = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
        torch.nn.init.normal_(parameter, middle, 0.3)
    return network


def save(network: GPT2LMHeadModel, folder: Path, base: bool = False, dtype: torch.dtype | None = None,
         max_shard_size: str = "1GB") -> GPT2LMHeadModel:  # fmt: skip
    """Writes the folder; the network it stands for, in float32."""
    if dtype is not None:
        network = network.to(dtype)
    (network.transformer if base else network).save_pretrained(folder, max_shard_size=max_shard_size)
    return network.float()


def log_probabilities(network: GPT2LMHeadModel, text: list[int]) -> torch.Tensor:
    """For each position of the text, of each next token; in float64."""
    with torch.no_grad():
        return network(torch.tensor([text])).logits[0].double().log_softmax(-1)


def mean_loss(network: GPT2LMHeadModel, units: list[list[int]]) -> float:
    losses = []
    for unit in units:
        logs = log_probabilities(network, unit[:-1])
        losses += [-logs[position, token].item() for position, token in enumerate(unit[1:])]
    return sum(losses) / len(losses)


def untouched(program: Program, data: str, run: str) -> Finished:
    """One step too small to change a weight: what the model was is what it is."""
    return program.run(arguments(PLAIN, eval_data=data, output=run, steps="1", optimizer="sgd", learning_rate="1e-30"))


def first_loss(program: Program, data: str) -> float:
    run = data.removesuffix(".safetensors") + "-run"
    done = untouched(program, data, run)
    assert done.code == 0, done.err
    return metrics(program.folder / run)[0]["eval_loss"]


def write_folder(work: Path, shape: str) -> GPT2LMHeadModel:
    """model/ as transformers writes it, with data for its vocabulary."""
    config, how = SHAPES[shape]
    shutil.rmtree(work / "model", ignore_errors=True)
    network = save(make_network(**config), work / "model", **how)
    write_data(work / "data.safetensors", texts([5, 2, 5, 3, 4, 3, 2, 6], network.config.vocab_size))
    write_data(work / "public.safetensors", public_texts(network), "public")
    return network


def public_texts(network: GPT2LMHeadModel) -> list[list[int]]:
    """The first as long as the model takes: one token is only predicted."""
    return texts([network.config.n_positions + 1, 2, 7, 3, 5], network.config.vocab_size, seed=3)


@pytest.fixture
def folder_of(program):
    return lambda shape: write_folder(program.folder, shape)


@pytest.fixture(scope="module", params=SHAPES)
def untouched_run(request, binary, tmp_path_factory):
    """A network and the program in the folder of its untouched run."""
    work = tmp_path_factory.mktemp(request.param) / "work"
    work.mkdir()
    network = write_folder(work, request.param)
    program = Program(binary, work)
    done = untouched(program, "public.safetensors", "run")
    assert done.code == 0, done.err
    yield network, program
    program.kill_all()


def test_losses_are_those_of_transformers(untouched_run):
    network, program = untouched_run
    loss = metrics(program.folder / "run")[0]["eval_loss"]
    assert abs(loss - mean_loss(network, public_texts(network))) < LOSS_TOLERANCE


def test_the_likeliest_tokens_are_those_of_transformers(untouched_run):
    network, program = untouched_run
    positions = network.config.n_positions
    prompt = texts([4], network.config.vocab_size, seed=8)[0]
    done = program.run(["--model", "model", "--generate-tokens", ",".join(map(str, prompt)), "--temperature", "0",
                        "--max-new-tokens", str(positions - 4)])  # fmt: skip
    expected = list(prompt)
    while len(expected) < positions:
        likeliest, next_ = log_probabilities(network, expected)[-1].topk(2)
        assert likeliest[0] - likeliest[1] > LOGIT_TOLERANCE, "a tie: choose another prompt"
        if next_[0] == network.config.eos_token_id:
            break
        expected.append(next_[0].item())
    assert (done.code, done.out) == (0, "tokens: " + ",".join(map(str, expected[4:])) + "\n")


@pytest.mark.parametrize("shape, length", [("tied", 1), ("odd_sizes", 9)], ids=["tied_first_row", "odd_sizes_last_row"])
def test_every_logit_of_a_row_is_that_of_transformers(program, folder_of, shape, length):
    """One run for each token of the vocabulary; their probabilities add to 1."""
    network = folder_of(shape)
    size = network.config.vocab_size
    context = texts([length], size, seed=4)[0]
    mask = numpy.zeros(length + 1, numpy.uint8)
    mask[-1] = 1

    def log_probability(token: int) -> float:
        data = f"token{token}.safetensors"
        write_data(program.folder / data, [[*context, token]], loss_mask=mask)
        return -first_loss(program, data)

    with ThreadPoolExecutor(2) as pool:
        found = torch.tensor(list(pool.map(log_probability, range(size))), dtype=torch.float64)
    expected = log_probabilities(network, context)[-1]
    assert expected.max() - expected.min() > 1, "logits must differ for this to say something"
    assert abs(found.exp().sum().item() - 1) < LOGIT_TOLERANCE
    assert (found - expected).abs().max().item() < LOGIT_TOLERANCE


def load(folder: Path) -> GPT2LMHeadModel:
    network, loading = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True, local_files_only=True)
    assert not any(loading.values()), loading
    return network.eval()


def difference(one: GPT2LMHeadModel, other: GPT2LMHeadModel) -> float:
    """The largest difference of their logits, relative to the largest logit."""
    text = torch.tensor([texts([one.config.n_positions], one.config.vocab_size, seed=6)[0]])
    with torch.no_grad():
        a, b = one(text).logits, other(text).logits
    return ((a - b).abs().max() / a.abs().max()).item()


def test_a_saved_folder_loads_back_to_the_same_logits(untouched_run):
    network, program = untouched_run
    saved = load(program.folder / "run" / "model")
    assert saved.dtype == torch.float32
    assert saved.config.tie_word_embeddings == network.config.tie_word_embeddings
    assert difference(network, saved) < 1e-6


@pytest.mark.parametrize("shape", ["tied", "untied", "odd_sizes", "bfloat16"])
def test_a_privately_trained_folder_loads_and_differs(program, folder_of, shape):
    network = folder_of(shape)
    words = arguments(PRIVATE, eval_data="public.safetensors")
    assert program.run(words).code == 0
    saved = load(program.folder / "run" / "model")
    assert difference(network, saved) > 1e-4
    changed = {name for name, value in saved.state_dict().items() if not torch.equal(value, network.state_dict()[name])}
    assert changed == set(network.state_dict())
    # The file holds what the program itself had at the end.
    last = metrics(program.folder / "run")[-1]["eval_loss"]
    assert abs(last - mean_loss(saved.float(), public_texts(saved))) < LOSS_TOLERANCE


def test_a_head_trained_apart_starts_as_the_embedding_and_is_saved(program, folder_of):
    network = folder_of("tied")
    words = arguments(PRIVATE, untied="", eval_data="public.safetensors")
    assert program.run(words).code == 0
    run = program.folder / "run"
    assert abs(metrics(run)[0]["eval_loss"] - mean_loss(network, public_texts(network))) < LOSS_TOLERANCE
    saved = load(run / "model")
    assert saved.config.tie_word_embeddings is False
    assert not torch.equal(saved.lm_head.weight, saved.transformer.wte.weight)


def test_frozen_parameters_keep_every_bit(program, folder_of):
    folder_of("untied")
    before = {**load(program.folder / "model").state_dict()}
    assert program.run(arguments(PRIVATE, freeze="transformer.w*")).code == 0
    same = {name for name, value in weights(program.folder / "run").items() if numpy.array_equal(value, before[name])}
    assert same == {"transformer.wte.weight", "transformer.wpe.weight"}


def test_fresh_weights_are_drawn_as_the_config_says(program):
    config = {**BASE, "vocab_size": 2000, "n_embd": 64, "n_layer": 8, "initializer_range": 0.05, "model_type": "gpt2"}
    (program.folder / "fresh.json").write_text(json.dumps(config))
    words = arguments(PLAIN, model=None, model_config="fresh.json", data="long.safetensors", optimizer="sgd",
                      learning_rate="1e-30", steps="1")  # fmt: skip
    write_data(program.folder / "long.safetensors", texts([5] * 8, 2000))
    assert program.run(words).code == 0
    state = load(program.folder / "run" / "model").state_dict()
    embedding, projection = state["transformer.wte.weight"], state["transformer.h.3.mlp.c_proj.weight"]
    # A standard deviation from N draws has a relative error of 1/sqrt(2N): 0.002 and 0.006 here.
    assert math.isclose(embedding.std().item(), 0.05, rel_tol=0.02)
    assert math.isclose(projection.std().item(), 0.05 / math.sqrt(2 * 8), rel_tol=0.04)
    assert torch.equal(state["transformer.ln_f.weight"], torch.ones(64))
    assert state["transformer.h.0.attn.c_attn.bias"].abs().max() < 1e-20


@pytest.mark.parametrize("untouched_run", ["base_model_names"], indirect=True)
def test_a_base_model_of_transformers_loads_what_the_program_saved(untouched_run):
    network, program = untouched_run
    loaded = GPT2Model.from_pretrained(program.folder / "run" / "model", local_files_only=True)
    assert torch.equal(loaded.h[1].mlp.c_fc.weight, network.transformer.h[1].mlp.c_fc.weight)
