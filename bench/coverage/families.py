"""Model families of Transformers at toy size: a configuration, a batch with labels, and which layers PEFT adapts.

Every model has dropout off, is built from its configuration alone, and takes a second or two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

VOCABULARY, LENGTH, EXAMPLES, CLASSES = 37, 7, 4, 3

# Under the names that configurations use; a configuration takes those that it knows.
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "n_embd": 16, "d_model": 16, "dim": 16, "emb_dim": 16, "embed_dim": 16,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "num_decoder_layers": 1, "encoder_layers": 1,
    "decoder_layers": 1, "num_attention_heads": 2, "n_head": 2, "n_heads": 2, "num_heads": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "d_kv": 8, "d_ff": 24, "intermediate_size": 24,
    "ffn_dim": 24, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "n_inner": 24, "hidden_dim": 24, "n_positions": 16,
    "max_position_embeddings": 16, "rotary_dim": 4, "embedding_size": 8, "word_embed_proj_dim": 16, "type_vocab_size": 2,
    "num_labels": CLASSES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "image_size": 8, "patch_size": 4, "num_channels": 3, "use_cache": False,
}  # fmt: skip
_OFF = ("dropout", "drop_rate", "drop_path", "layerdrop", "pdrop", "_drop", "jitter")


def configured(kind: str, **own: Any) -> Any:
    """A configuration of this model type at toy size."""
    known = type(transformers.AutoConfig.for_model(kind))
    names = set(known().to_dict())
    other = known.attribute_map
    sizes = {name: value for name, value in SIZES.items() if (name in names or name in other) and other.get(name) not in own}
    off = {
        name: 0.0 for name, value in known().to_dict().items()
        if isinstance(value, float) and any(part in name for part in _OFF)
    }  # fmt: skip
    return known(**({"num_labels": CLASSES} | sizes | off | own))


def texts(**_: Any) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, VOCABULARY, (EXAMPLES, LENGTH))}


def of_tokens(_config: Any) -> dict[str, torch.Tensor]:
    """Each text predicts itself; one label is left out."""
    ids = torch.randint(3, VOCABULARY, (EXAMPLES, LENGTH))
    labels = ids.clone()
    labels[1, 2:] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def of_pairs(_config: Any) -> dict[str, torch.Tensor]:
    """Source and target texts."""
    ids = torch.randint(3, VOCABULARY, (EXAMPLES, LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.randint(3, VOCABULARY, (EXAMPLES, 5))}


def of_texts(_config: Any) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, VOCABULARY, (EXAMPLES, LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.randint(0, CLASSES, (EXAMPLES,))}


def of_values(_config: Any) -> dict[str, torch.Tensor]:
    return of_texts(_config) | {"labels": torch.randn(EXAMPLES)}


def of_spans(_config: Any) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, VOCABULARY, (EXAMPLES, LENGTH))
    first = torch.randint(0, LENGTH // 2, (EXAMPLES,))
    return {"input_ids": ids, "start_positions": first, "end_positions": first + 2}


def of_pictures(config: Any) -> dict[str, torch.Tensor]:
    size = getattr(config, "image_size", 8)
    pictures = torch.randn(EXAMPLES, getattr(config, "num_channels", 3), size, size)
    return {"pixel_values": pictures, "labels": torch.randint(0, CLASSES, (EXAMPLES,))}


def of_captions(config: Any) -> dict[str, torch.Tensor]:
    size = config.vision_config.image_size
    return {
        "input_ids": torch.randint(3, VOCABULARY, (EXAMPLES, LENGTH)), "pixel_values": torch.randn(EXAMPLES, 3, size, size),
        "return_loss": True,
    }  # fmt: skip


def of_sounds(config: Any) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(EXAMPLES, 400), "labels": torch.randint(0, CLASSES, (EXAMPLES,))}


def of_spectra(config: Any) -> dict[str, torch.Tensor]:
    frames = 2 * config.max_source_positions
    return {
        "input_features": torch.randn(EXAMPLES, config.num_mel_bins, frames), "labels": torch.randint(3, VOCABULARY, (EXAMPLES, 5)),
    }  # fmt: skip


@dataclass(frozen=True)
class Family:
    name: str  # Transformers' model_type, and what else sets it apart
    head: str  # of AutoModelFor…
    batch: Callable[[Any], dict[str, Any]]
    config: dict[str, Any] = field(default_factory=dict)
    adapted: str | tuple[str, ...] = "all-linear"  # PEFT's target_modules

    def build(self) -> Any:
        config = configured(self.name.split()[0], **self.config)
        model = getattr(transformers, f"AutoModelFor{self.head}").from_config(config, attn_implementation="eager")
        model.config._experts_implementation = "eager"  # the others know no float64
        return model.train()


def causal(name: str, **config: Any) -> Family:
    return Family(name, "CausalLM", of_tokens, config)


def masked(name: str, **config: Any) -> Family:
    return Family(name, "MaskedLM", of_tokens, config)


def classes(name: str, **config: Any) -> Family:
    return Family(name, "SequenceClassification", of_texts, config)


def pictures(name: str, **config: Any) -> Family:
    return Family(name, "ImageClassification", of_pictures, config)


FAMILIES = [
    causal("gpt2"), causal("gpt_neo", attention_types=[[["global", "local"], 1]], num_layers=2),
    causal("gpt_neox"), causal("gptj"), causal("opt"), causal("bloom"), causal("codegen", n_head=4), causal("gpt_bigcode"),
    causal("llama"), causal("mistral"), causal("qwen2"), causal("qwen3"), causal("phi"), causal("phi3"), causal("gemma"),
    causal("gemma2"), causal("olmo"), causal("olmo2"), causal("stablelm"), causal("starcoder2"), causal("falcon"), causal("cohere"),
    causal("granite"), causal("smollm3"), causal("glm"), causal("helium"), causal("mpt"),
    causal("mixtral", num_local_experts=2), causal("mixtral router_loss", num_local_experts=2, output_router_logits=True),
    causal("qwen2_moe", num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, shared_expert_intermediate_size=8),
    causal("mamba", state_size=4, time_step_rank=2, expand=2), causal("rwkv", attention_hidden_size=16),
    causal("xglm", attention_heads=2), causal("biogpt"),
    causal("xlnet", d_head=8), causal("jetmoe", kv_channels=8, num_key_value_heads=2, num_local_experts=2, num_experts_per_tok=1),
    causal("gpt_oss", num_local_experts=2, num_experts_per_tok=1, sliding_window=4),
    masked("bert"), masked("roberta"), masked("distilbert"), masked("albert"), masked("electra"), masked("mpnet"), masked("camembert"),
    masked("deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]), masked("deberta-v2", relative_attention=True,
        pos_att_type=["c2p", "p2c"]), masked("modernbert", local_attention=4), masked("xlm-roberta"), masked("convbert"),
    masked("mobilebert", true_hidden_size=8, intra_bottleneck_size=8), masked("squeezebert", embedding_size=16, q_groups=1, k_groups=1, v_groups=1, post_attention_groups=1, intermediate_groups=1,
        output_groups=1), masked("fnet"), masked("nystromformer"),
    classes("bert"), Family("bert regression", "SequenceClassification", of_values, {"num_labels": 1}), classes("deberta-v2"), classes("llama"), classes("gpt2"), classes("xlnet"), classes("longformer", attention_window=4, max_position_embeddings=24),
    Family("bert tokens", "TokenClassification", of_tokens, {"num_labels": VOCABULARY}),
    Family("bert spans", "QuestionAnswering", of_spans, {"num_labels": 2}), Family("roberta spans", "QuestionAnswering", of_spans, {"num_labels": 2}),
    Family("rembert spans", "QuestionAnswering", of_spans, {"num_labels": 2, "input_embedding_size": 16, "output_embedding_size": 16}),
    *(Family(name, "Seq2SeqLM", of_pairs) for name in ("mt5", "bart", "mbart", "pegasus", "marian", "blenderbot-small", "m2m_100")),
    Family("t5", "Seq2SeqLM", of_pairs, {"decoder_start_token_id": 0}), Family("led", "Seq2SeqLM", of_pairs, {"attention_window": 4, "max_encoder_position_embeddings": 16, "max_decoder_position_embeddings": 16}),
    pictures("vit"), pictures("dinov2_with_registers"), pictures("beit"), pictures("dinov2"), pictures("swin", embed_dim=8, depths=[1, 1], num_heads=[2, 2],
        window_size=2, patch_size=2, image_size=8), pictures("convnext", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, image_size=16),
    pictures("segformer", hidden_sizes=[8, 8, 8, 8], num_attention_heads=[1, 1, 2, 2], depths=[1, 1, 1, 1], mlp_ratios=[2, 2, 2, 2], decoder_hidden_size=8, image_size=32),
    pictures("resnet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", image_size=16),
    pictures("poolformer", hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], image_size=32), pictures("vit_msn"), pictures("mobilenet_v2", image_size=32, depth_multiplier=0.25, finegrained_output=False),
    Family("clip", "ZeroShotImageClassification", of_captions, {
        "text_config": {**{k: SIZES[k] for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "max_position_embeddings", "pad_token_id", "bos_token_id", "eos_token_id")}}, "vision_config": {k: SIZES[k] for k in (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")}, "projection_dim": 8}),
    Family("wav2vec2", "AudioClassification", of_sounds, {"conv_dim": [8, 8], "conv_kernel": [10, 8], "conv_stride": [5, 4], "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False, "classifier_proj_size": 8}),
    Family("hubert", "AudioClassification", of_sounds, {"conv_dim": [8, 8], "conv_kernel": [10, 8], "conv_stride": [5, 4], "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False, "classifier_proj_size": 8}),
    Family("whisper", "SpeechSeq2Seq", of_spectra, {"num_mel_bins": 4, "max_source_positions": 6, "max_target_positions": 16}),
]  # fmt: skip
