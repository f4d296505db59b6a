"""LoRA's adapters that are merged into the weights for an evaluation and taken out again, in half precision, where sums do not come back."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from private_run import Run
from torch import nn
from transformers.pytorch_utils import Conv1D

WRITTEN = "is not what the last step of the private optimizer made of it"
WAY_OUT = r"keep state_dict\(\) before merge_adapter\(\) and load it after unmerge_adapter\(\)"


class Model(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.body, self.head = nn.Linear(6, 64, dtype=dtype), nn.Linear(64, 3, dtype=dtype)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x.to(self.body.weight.dtype)))).float()


def run_of(dtype=torch.bfloat16, adapters=("default",), model=None, target_modules=("body", "head"), **options):
    torch.manual_seed(4)
    config = LoraConfig(r=2, lora_alpha=16, target_modules=list(target_modules), init_lora_weights=False, **options)
    model = get_peft_model(model or Model(dtype), config, autocast_adapter_dtype=dtype is torch.float16)
    for name in adapters[1:]:
        model.add_adapter(name, config, autocast_adapter_dtype=False)
    model.base_model.set_adapter(list(adapters))
    return Run(model=model)


def base_weights(run, ending=""):
    return [value.clone() for name, value in run.model.state_dict().items() if "base_layer" in name and name.endswith(ending)]


def evaluated(run, times=1, ending="", **options):
    """As after every epoch. Returns whether the weights (whose names end so) are what they were."""
    before = base_weights(run, ending)
    for _ in range(times):
        run.model.merge_adapter(**options)
        with torch.no_grad():
            run.module(torch.zeros(2, 6))
        run.model.unmerge_adapter()
    return all(torch.equal(one, two) for one, two in zip(before, base_weights(run, ending), strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("options", [{}, {"safe_merge": True}, {"times": 3}], ids=str)
def test_weights_that_adapters_were_merged_into_train_on(options, dtype):
    run, moved = run_of(dtype), False
    for x, y in run.loader:
        run.step(x, y)
        moved |= not evaluated(run, **options)
    assert run.charged == 5 and moved


def test_several_adapters_come_out_in_the_other_order():
    run, moved = run_of(adapters=("default", "second")), False
    for x, y in run.loader:
        run.step(x, y)
        moved |= not evaluated(run)
    assert run.charged == 5 and moved


@pytest.mark.parametrize("names", [["second"], ["second", "default"]], ids=str)
def test_adapters_may_be_merged_by_name(names):
    run, moved = run_of(adapters=("default", "second")), False
    for x, y in run.loader:
        run.step(x, y)
        moved |= not evaluated(run, adapter_names=names)
    assert run.charged == 5 and moved


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("options", [{}, {"safe_merge": True}], ids=str)
def test_biases_that_adapters_were_merged_into_train_on(options, dtype):
    run, moved = run_of(dtype, lora_bias=True), False
    for x, y in run.loader:
        run.step(x, y)
        moved |= not evaluated(run, ending="bias", **options)
    assert run.charged == 5 and moved


class Tables(nn.Module):
    """Of layers whose weights PEFT adds to in ways of their own."""

    def __init__(self, dtype):
        super().__init__()
        self.body, self.head = nn.Embedding(8, 6, dtype=dtype), Conv1D(3, 6).to(dtype)
        self.filter = nn.Conv2d(1, 2, 3, padding=1, dtype=dtype)

    def forward(self, x):
        found = self.body(x.abs().long().clamp(max=7))
        return self.head(torch.tanh(self.filter(found[:, None]).sum((1, 2)))).float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("options", [{}, {"safe_merge": True}], ids=str)
@pytest.mark.parametrize("target", ["body", "head", "filter"])
def test_layers_of_other_kinds_train_on(target, options, dtype):
    run, moved = run_of(dtype, model=Tables(dtype), target_modules=[target], fan_in_fan_out=target == "head"), False
    for x, y in run.loader:
        run.step(x, y)
        moved |= not evaluated(run, ending="weight", **options)
    assert run.charged == 5 and moved


def refused(run, batches):
    with pytest.raises(RuntimeError, match=WRITTEN) as caught:
        run.backward(*next(batches))
    caught.match(WAY_OUT)


@pytest.mark.parametrize("attribute", ["weight", "bias"])
def test_what_is_not_the_adapters_sum_is_refused(attribute):
    """By as little as a unit in the last place, of one row."""
    run = run_of(lora_bias=True)
    batches = iter(run.loader)
    run.step(*next(batches))
    evaluated(run)
    getattr(run.model.base_model.model.head.base_layer, attribute).data.view(torch.int16)[0] += 1
    refused(run, batches)


def test_a_table_that_is_not_the_adapters_sum_is_refused():
    run = run_of(model=Tables(torch.bfloat16), target_modules=["body"])
    batches = iter(run.loader)
    run.step(*next(batches))
    evaluated(run)
    run.model.base_model.model.body.base_layer.weight.data.view(torch.int16)[0] += 1
    refused(run, batches)


def test_adapters_that_were_replaced_meanwhile_are_refused():
    run = run_of()
    batches = iter(run.loader)
    run.step(*next(batches))
    for name, value in run.model.named_parameters():
        if "lora_B" in name:
            value.data.normal_()
    evaluated(run)
    refused(run, batches)


def test_weights_that_stay_merged_are_refused():
    run = run_of()
    batches = iter(run.loader)
    run.step(*next(batches))
    run.model.merge_adapter()
    with pytest.raises(RuntimeError, match=WRITTEN):
        run.optimizer.zero_grad()
        run.module.engine.weights.check()


def test_other_adapters_are_put_back_by_the_loop():
    run = run_of(use_dora=True)
    batches = iter(run.loader)
    run.step(*next(batches))
    kept = copy.deepcopy(run.model.state_dict())
    assert not evaluated(run)
    refused(run, batches)
    run.model.load_state_dict(kept)
    run.step(*next(batches))
    assert run.charged == 3  # the draw that was refused, too


def test_asking_leaves_the_adapters_where_they_are():
    run = run_of()
    batches = iter(run.loader)
    run.step(*next(batches))
    assert not evaluated(run)
    places = [value.data_ptr() for value in run.model.parameters()]
    run.step(*next(batches))
    assert places == [value.data_ptr() for value in run.model.parameters()]
