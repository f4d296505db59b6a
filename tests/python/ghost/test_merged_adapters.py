"""LoRA's adapters that are merged into the weights for an evaluation and taken out again, in half precision, where sums do not come back."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from private_run import Run
from torch import nn

WRITTEN = "is not what the last step of the private optimizer made of it"
WAY_OUT = r"keep state_dict\(\) before merge_adapter\(\) and load it after unmerge_adapter\(\)"


class Model(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.body, self.head = nn.Linear(6, 64, dtype=dtype), nn.Linear(64, 3, dtype=dtype)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x.to(self.body.weight.dtype)))).float()


def run_of(dtype=torch.bfloat16, adapters=("default",), **options):
    torch.manual_seed(4)
    config = LoraConfig(r=2, lora_alpha=16, target_modules=["body", "head"], init_lora_weights=False, **options)
    model = get_peft_model(Model(dtype), config, autocast_adapter_dtype=dtype is torch.float16)
    for name in adapters[1:]:
        model.add_adapter(name, config, autocast_adapter_dtype=False)
    model.base_model.set_adapter(list(adapters))
    return Run(model=model)


def base_weights(run):
    return [value.clone() for name, value in run.model.state_dict().items() if "base_layer" in name]


def evaluated(run, times=1, **options):
    """As after every epoch. Returns whether the weights are what they were."""
    before = base_weights(run)
    for _ in range(times):
        run.model.merge_adapter(**options)
        with torch.no_grad():
            run.module(torch.zeros(2, 6))
        run.model.unmerge_adapter()
    return all(torch.equal(one, two) for one, two in zip(before, base_weights(run), strict=True))


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


def refused(run, batches):
    with pytest.raises(RuntimeError, match=WRITTEN) as caught:
        run.backward(*next(batches))
    caught.match(WAY_OUT)


def test_what_is_not_the_adapters_sum_is_refused():
    """By as little as a unit in the last place, of one row."""
    run = run_of()
    batches = iter(run.loader)
    run.step(*next(batches))
    evaluated(run)
    weight = run.model.base_model.model.head.base_layer.weight
    weight.data.view(torch.int16)[0] += 1
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
