"""Ways to train a family: everything, by an adapter, with frozen parts, sharded over two ranks; and PEFT's methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import torch
from torch import nn


def full(model: nn.Module, _adapted: Any) -> nn.Module:
    return model


def frozen(model: nn.Module, _adapted: Any) -> nn.Module:
    """The first half of the parameters, and every third of the rest."""
    parameters = list(model.parameters())
    for i, parameter in enumerate(parameters):
        parameter.requires_grad_(i >= len(parameters) // 2 and i % 3 != 0)
    return model


def lora(model: nn.Module, adapted: Any) -> nn.Module:
    return stirred(peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=4, target_modules=adapted, lora_dropout=0.0)))


def stirred(model: nn.Module) -> nn.Module:
    """Adapters begin with zeros, which hide errors: none does here."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model.train()


WAYS: dict[str, Callable[[nn.Module, Any], nn.Module]] = {"all parameters": full, "LoRA": lora, "frozen parts": frozen}

_BY_LAYERS = {
    "LoRA": lambda t: peft.LoraConfig(r=2, target_modules=t),
    "rsLoRA": lambda t: peft.LoraConfig(r=2, target_modules=t, use_rslora=True),
    "DoRA": lambda t: peft.LoraConfig(r=2, target_modules=t, use_dora=True),
    "PiSSA": lambda t: peft.LoraConfig(r=2, target_modules=t, init_lora_weights="pissa"),
    "LoRA with biases": lambda t: peft.LoraConfig(r=2, target_modules=t, bias="lora_only"),
    "AdaLoRA": lambda t: peft.AdaLoraConfig(init_r=3, target_r=2, total_step=10, target_modules=t),
    "IA3": lambda t: peft.IA3Config(target_modules=t, feedforward_modules=[]),
    "VeRA": lambda t: peft.VeraConfig(r=4, target_modules=t),
    "LoHa": lambda t: peft.LoHaConfig(r=2, target_modules=t),
    "LoKr": lambda t: peft.LoKrConfig(r=2, target_modules=t),
    "OFT": lambda t: peft.OFTConfig(r=0, oft_block_size=4, target_modules=t),
    "BOFT": lambda t: peft.BOFTConfig(boft_block_size=4, target_modules=t),
    "HRA": lambda t: peft.HRAConfig(r=2, target_modules=t),
    "FourierFT": lambda t: peft.FourierFTConfig(n_frequency=4, target_modules=t),
    "RandLoRA": lambda t: peft.RandLoraConfig(r=2, target_modules=t),
    "VB-LoRA": lambda t: peft.VBLoRAConfig(r=2, num_vectors=6, vector_length=4, topk=2, target_modules=t),
    "MiSS": lambda t: peft.MissConfig(r=2, target_modules=t),
    "SHiRA": lambda t: peft.ShiraConfig(r=2, target_modules=t),
    "C3A": lambda t: peft.C3AConfig(block_size=4, target_modules=t),
    "WaveFT": lambda t: peft.WaveFTConfig(n_frequency=4, target_modules=t),
    "RoAd": lambda t: peft.RoadConfig(group_size=4, target_modules=t),
    "DeLoRA": lambda t: peft.DeloraConfig(r=2, target_modules=t),
    "GraLoRA": lambda t: peft.GraloraConfig(r=4, gralora_k=2, target_modules=t),
}  # fmt: skip
_OTHERS = {
    "LoRA on embeddings": lambda e, n: peft.LoraConfig(r=2, target_modules=[e]),
    "LayerNorm tuning": lambda e, n: peft.LNTuningConfig(target_modules=[n]),
    "trainable tokens": lambda e, n: peft.TrainableTokensConfig(token_indices=[1, 5, 9], target_modules=[e]),
    "modules to save": lambda e, n: peft.LoraConfig(r=2, target_modules="all-linear", modules_to_save=[n]),
}  # fmt: skip
_PROMPTS = {
    "prompt tuning": lambda task: peft.PromptTuningConfig(task_type=task, num_virtual_tokens=3),
    "prefix tuning": lambda task: peft.PrefixTuningConfig(task_type=task, num_virtual_tokens=3),
    "p-tuning": lambda task: peft.PromptEncoderConfig(task_type=task, num_virtual_tokens=3, encoder_hidden_size=8),
}  # fmt: skip
_PARTS = {"llama": (["q_proj", "v_proj"], "embed_tokens", "input_layernorm"), "gpt2": (["c_attn"], "wte", "ln_1")}

# By name: model -> model with the method's parameters.
METHODS: dict[str, Callable[[nn.Module, str], nn.Module]] = {}
for _name, _make in _BY_LAYERS.items():
    METHODS[_name] = lambda model, family, make=_make: stirred(peft.get_peft_model(model, make(_PARTS[family][0])))
for _name, _make in _OTHERS.items():
    METHODS[_name] = lambda model, family, make=_make: stirred(peft.get_peft_model(model, make(*_PARTS[family][1:])))
for _name, _make in _PROMPTS.items():
    METHODS[_name] = lambda model, family, make=_make: stirred(peft.get_peft_model(model, make("CAUSAL_LM")))

__all__ = ["METHODS", "WAYS", "full"]
