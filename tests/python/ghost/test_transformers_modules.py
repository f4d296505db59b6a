"""Modules of Transformers that route, choose or read a child's weight, and losses that a module inside of a model forms."""

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench/coverage"))
from families import Family, causal, masked, of_pairs
from one_step import RIGHT, step_of

_ROUTED = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 8, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
    "routed_scaling_factor": 1.0,
}  # fmt: skip
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "num_key_value_heads": 2, "head_dim": 4}
FAMILIES = [
    causal("deepseek_v2", **_ROUTED, **_LATENT), causal("deepseek_v3", **_ROUTED, **_LATENT), causal("glm4_moe", **_ROUTED), causal("dots1", **_ROUTED),
    causal("longcat_flash", **_LATENT, n_routed_experts=4, zero_expert_num=1, moe_topk=2, expert_ffn_hidden_size=8, ffn_hidden_size=16),
    causal("llama4_text", num_local_experts=3, intermediate_size_mlp=24, interleave_moe_layer_step=1, attention_chunk_size=4),
    Family("switch_transformers", "Seq2SeqLM", of_pairs, {"decoder_start_token_id": 0, "num_experts": 3, "encoder_sparse_step": 2, "decoder_sparse_step": 1}),
    causal("lfm2", layer_types=["conv", "full_attention"]), causal("recurrent_gemma", lru_width=16, attention_window_size=8, num_hidden_layers=3),
    masked("xlm"), masked("flaubert"),
]  # fmt: skip


def built(family):
    torch.manual_seed(1)
    try:
        model = family.build()
    except ValueError as error:  # another version of Transformers
        pytest.skip(str(error)[:80])
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_model_is_exact(family):
    model = built(family)
    with torch.no_grad():
        for parameter in model.parameters():  # some begin with zeros, or are left as they are
            parameter.copy_(torch.randn_like(parameter) * (0.1 if parameter.dim() > 1 else 0.05) + (parameter.dim() == 1))
    assert step_of(model, family.batch(model.config)) < RIGHT


STATES = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
WITH_CACHES = [
    causal("gpt_oss", num_local_experts=2, num_experts_per_tok=1, layer_types=["sliding_attention", "full_attention"], sliding_window=3),
    causal("lfm2", layer_types=["conv", "full_attention"]),
    causal("qwen3_next", **STATES, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, shared_expert_intermediate_size=8, layer_types=["linear_attention", "full_attention"]),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", WITH_CACHES, ids=lambda family: family.name)
def test_a_cache_that_the_model_makes_by_itself_changes_nothing(family):
    """Layers that are computed unit by unit get it as an argument."""
    model = built(family)
    model.config.use_cache = True
    assert step_of(model, family.batch(model.config)) < RIGHT


def test_a_cache_that_holds_something_is_refused():
    family = WITH_CACHES[0]
    model = family.build()
    batch = family.batch(model.config)
    with torch.no_grad():
        batch["past_key_values"] = model(batch["input_ids"], use_cache=True).past_key_values
    with pytest.raises(ValueError, match="got .'DynamicCache'.; .*or call the model with use_cache=False and without a cache"):
        step_of(model, batch)
