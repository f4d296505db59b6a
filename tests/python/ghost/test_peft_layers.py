"""PEFT's methods whose layers form weights of their children's, share vectors out, or adapt parameters of a mixture of experts: each is one layer."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private import Private

from ghostshard.ghost.patched_forward import PatchedForward
from ghostshard.ghost.rules import per_example

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16,
    "pad_token_id": 0, "use_cache": False,
}  # fmt: skip
PROJECTIONS = {"target_modules": ["q_proj", "v_proj"]}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def mixtral():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2))


def gpt2():
    sizes = {"vocab_size": 23, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "use_cache": False}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def prompts_by_an_lstm():
    kind = {"encoder_reparameterization_type": "LSTM", "encoder_hidden_size": 8, "encoder_num_layers": 1, "encoder_dropout": 0.0}
    return peft.PromptEncoderConfig(num_virtual_tokens=3, task_type="CAUSAL_LM", **kind)


METHODS = {
    "a bank of vectors": (llama, lambda: peft.VBLoRAConfig(r=2, num_vectors=6, vector_length=4, topk=2, **PROJECTIONS)),
    "one vector of all layers": (llama, lambda: peft.UniLoraConfig(r=2, theta_d_length=16, **PROJECTIONS)),
    "vectors in a dict of dicts": (llama, lambda: peft.TinyLoraConfig(r=2, u=4, **PROJECTIONS)),
    "one vector in a dict of dicts": (llama, lambda: peft.TinyLoraConfig(r=2, u=4, weight_tying=1.0, **PROJECTIONS)),
    "weights of a network": (llama, lambda: peft.PeanutConfig(r=2, depth=1, **PROJECTIONS)),
    "weights of paths": (mixtral, lambda: peft.GloraConfig(r=2, **PROJECTIONS)),
    "experts": (mixtral, lambda: peft.LoraConfig(r=2, target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])),
    "a parameter of a linear layer": (llama, lambda: peft.LoraConfig(r=2, target_modules=[], target_parameters=["up_proj.weight"])),
    "a turned weight": (gpt2, lambda: peft.HiraConfig(r=2, target_modules=["c_attn"])),
    "prompts by an LSTM": (llama, prompts_by_an_lstm),
    "prompts by an LSTM, before experts": (mixtral, prompts_by_an_lstm),
}  # fmt: skip


def adapted(build, config):
    """Adapters begin with zeros, which hide errors: none does here."""
    torch.manual_seed(2)
    model = peft.get_peft_model(build(), config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape))
    return model.train()


def loss(model, batch):
    return model(input_ids=batch[0], labels=batch[0]).loss


def twin(model):
    """Mixtures of experts know float64 in a loop over experts alone."""
    found = copy.deepcopy(model)
    for module in found.modules():
        if hasattr(getattr(module, "config", None), "_experts_implementation"):
            module.config._experts_implementation = "eager"
    return found


def rules_of(model):
    return {name: module.forward.rule for name, module in model.named_modules() if isinstance(vars(module).get("forward"), PatchedForward)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build, config", METHODS.values(), ids=METHODS)
def test_the_sum_is_exact(build, config):
    model = adapted(build, config())
    batch = (torch.randint(1, 23, (4, 7)),)
    expected = oracle.clipped_sum(twin(model), loss, [batch], 0.1)
    private = Private(model, 0.1)
    loss(private.module, batch).backward()
    assert oracle.worst_difference(private.released(), expected) < SUM_TOLERANCE


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["a bank of vectors", "one vector of all layers", "vectors in a dict of dicts"])
def test_layers_that_share_vectors_are_layers_each(method):
    """Not the whole model, as PEFT's model holds the vectors, too."""
    build, config = METHODS[method]
    model = adapted(build, config())
    Private(model, 0.1)
    assert all(name.endswith(("q_proj", "v_proj")) for name, rule in rules_of(model).items() if rule is per_example)


@pytest.mark.filterwarnings("ignore")
def test_a_layer_that_averages_over_the_batch_is_said_to_mix():
    """Lily's router."""
    if not hasattr(peft, "LilyConfig"):
        pytest.skip("this PEFT has no Lily")
    private = Private(adapted(llama, peft.LilyConfig(r=2, **PROJECTIONS)), 0.1)
    with pytest.raises(RuntimeError, match="gives an example alone another output than in its batch: it mixes examples"):
        loss(private.module, (torch.randint(1, 23, (4, 7)),)).backward()
