"""Checkpointing of a model whose embeddings are frozen: Transformers and PEFT make their outputs leaves, which are no parameters."""

import copy

import pytest
import torch
from oracle import clipped_sum, worst_difference
from peft import LoraConfig, get_peft_model
from private import Private
from transformers import LlamaConfig, LlamaForCausalLM

KEEP = {"use_reentrant": False}


def llama():
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=37, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2))
    return model.train()


def lora(model):
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def checkpointed_before():
    model = llama()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=KEEP)
    return lora(model)


def checkpointed_after():
    model = lora(llama())
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=KEEP)
    model.enable_input_require_grads()
    return model


def inputs_alone():
    model = lora(llama())
    model.enable_input_require_grads()
    return model


def without_peft():
    model = llama()
    model.get_input_embeddings().requires_grad_(False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=KEEP)
    model.enable_input_require_grads()
    return model


@pytest.mark.parametrize("build", [checkpointed_before, checkpointed_after, inputs_alone, without_peft], ids=lambda build: build.__name__)
def test_each_examples_gradient_is_its_own(build):
    model = build()
    twin = copy.deepcopy(model)
    ids = torch.randint(0, 37, (5, 9), generator=torch.Generator().manual_seed(5))
    loss = lambda model, values: model(input_ids=values[0], labels=values[0]).loss
    private = Private(model, 0.05)
    loss(private.module, (ids,)).backward()
    assert worst_difference(private.released(), clipped_sum(twin, loss, [(ids,)], 0.05)) < 1e-5
