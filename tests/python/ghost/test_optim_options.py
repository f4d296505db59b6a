"""What options and parameters the optimizers of ghostshard.optim take, at construction, in groups and in states, and their sentences."""

import math

import pytest
import torch
from torch import nn

from ghostshard.optim import SOAP, AdamW, AdamW8bit, Muon, Shampoo

KINDS = [AdamW, AdamW8bit, Muon, Shampoo, SOAP]


def parameter(*shape: int, dtype=torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.ones(*shape, dtype=dtype))


def wrong(kind, sentence: str, **options) -> dict:
    """Each option with each of its values, by an id."""
    return {f"{kind.__name__}-{name}-{value}": (kind, {name: value}, f"{sentence}, got ") for name, values in options.items() for value in values}


nan, inf = math.nan, math.inf
WRONG = {
    **wrong(AdamW, "the learning rate must be finite and >= 0", lr=[-1.0, nan, inf, "0.1", None, True, torch.ones(2), torch.tensor(inf)]),
    **wrong(AdamW, r"betas must be two numbers within \[0, 1\)", betas=[(0.9, 1.0), (-0.1, 0.9), (0.9,), (0.9, 0.99, 0.999), 0.9, None, (nan, 0.9), "ab"]),
    **wrong(AdamW, "eps must be finite and > 0", eps=[0.0, -1.0, nan, inf, "a"]),
    **wrong(AdamW8bit, "weight_decay must be finite and >= 0", weight_decay=[-0.1, nan, inf, None]),
    **wrong(AdamW, "second_moment_floor must be finite and > 0, or None", second_moment_floor=[0.0, nan, inf, "a", True]),
    **wrong(AdamW, "stochastic_rounding must be True or False", stochastic_rounding=["no", 1, None]),
    **wrong(AdamW8bit, "least_coded must be a number >= 0", least_coded=[-1, nan, "a"]),
    **wrong(Muon, r"momentum must be a number within \[0, 1\)", momentum=[1.0, -0.1, nan, "a", 5]),
    **wrong(Muon, "nesterov must be True or False", nesterov=["no"]),
    **wrong(Muon, "noise must be keep, drop or correct", noise=["x", None]),
    **wrong(Muon, "pieces must be an extent of 0 or 1 and a count of at least 1, or None", pieces=[3, (0,), (0, 1.5), (0, 0), (0, -1), (-1, 2)]),
    **wrong(Muon, r"pieces must divide one of the two extents of \(12, 8\)", pieces=[(0, 5), (2, 1)]),
    **{key: each for kind in (Muon, Shampoo, SOAP) for key, each in wrong(kind, "matrices must be True or False", matrices=["no", None]).items()},
    **wrong(Shampoo, "the side of a tile must be an integer of at least 1", side=[0, 2.5, "a", inf, True]),
    **wrong(SOAP, "refresh_every must be an integer of at least 1", refresh_every=[0, 1.5, "a", inf]),
    **wrong(SOAP, r"factor_beta must be a number within \[0, 1\)", factor_beta=[1.0, -1, nan, None]),
    **wrong(Shampoo, r"noise_floor must be a number in \[0, 1\]", noise_floor=[1.5, -1, nan, "a"]),
}  # fmt: skip


@pytest.mark.parametrize("kind, options, sentence", WRONG.values(), ids=WRONG)
def test_options_out_of_their_range_are_sentences(kind, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        kind([parameter(12, 8)], **options)
    with pytest.raises(ValueError, match=sentence):
        kind([{"params": [parameter(12, 8)], **options}])
    optimizer = kind([parameter(12, 8)])
    state = optimizer.state_dict()
    state["param_groups"][0].update(options)
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match=sentence):
        optimizer.load_state_dict(state)
    assert optimizer.state_dict() == before


@pytest.mark.parametrize("lr", [0, 0.0, torch.tensor(0.0), torch.tensor(0.1), torch.tensor([0.1])])
@pytest.mark.parametrize("kind", KINDS)
def test_rates_may_be_0_and_tensors(kind, lr):
    p = parameter(3, 3)
    optimizer = kind([p], lr)
    p.grad = torch.eye(3)
    optimizer.step()
    assert torch.equal(p, torch.ones(3, 3)) == (lr == 0)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["lr"] == lr


@pytest.mark.parametrize("lr", [-0.1, inf, nan])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_that_a_schedule_puts_out_of_range_is_a_sentence(kind, lr):
    p = parameter(3, 3)
    optimizer = kind([p])
    optimizer.param_groups[0]["lr"], p.grad = lr, torch.eye(3)
    with pytest.raises(ValueError, match=f"the learning rate must be finite and >= 0, got {lr}"):
        optimizer.step()
    assert torch.equal(p, torch.ones(3, 3))


# Of torch's optimizers -----------------------------------------------------------------------------------------------

OF_TORCH = ["maximize", "amsgrad", "foreach", "fused", "capturable", "differentiable"]


@pytest.mark.parametrize("name", OF_TORCH)
@pytest.mark.parametrize("kind", KINDS)
def test_options_of_torchs_are_refused_unless_they_change_nothing(kind, name):
    optimizer, late = kind([parameter(2, 2)]), parameter(2, 2)
    with pytest.raises((TypeError, ValueError), match=name):
        kind([parameter(2, 2)], **{name: True})
    sentence = f"{name} is not an option of {kind.__name__}: leave it out, or give None or False, got True"
    with pytest.raises(ValueError, match=sentence):
        kind([{"params": [parameter(2, 2)], name: True}])
    with pytest.raises(ValueError, match=sentence):
        optimizer.add_param_group({"params": [late], name: True})
    assert len(optimizer.param_groups) == 1
    for nothing in (False, None):
        optimizer.add_param_group({"params": [parameter(2, 2)], name: nothing})
        AdamW([parameter(2, 2)], **{name: nothing})
    with pytest.raises(ValueError, match=sentence):
        AdamW([late], **{name: True}) if kind is AdamW else kind([{"params": [late], name: True}])


def test_a_name_that_nobody_knows_is_a_sentence():
    with pytest.raises(TypeError, match="weigth_decay is not an option of AdamW, which takes lr, betas, eps, weight_decay, second_moment_floor, stoch"):
        AdamW([parameter(2)], weigth_decay=0.1)
    for kind in KINDS:
        with pytest.raises(TypeError, match="typo"):
            kind([parameter(2)], typo=3)
    AdamW([{"params": [parameter(2)], "name": "head", "initial_lr": 0.1}])  # groups hold what schedulers and users write there


def test_groups_are_refused_with_a_decay_by_way_of_the_gradients():
    for kind in KINDS:
        with pytest.raises(ValueError, match="decoupled_weight_decay must be True, got False with a weight_decay of 0.1: as in torch.optim.Adam"):
            kind([{"params": [parameter(2)], "decoupled_weight_decay": False, "weight_decay": 0.1}])


# Parameters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_of_more_bits_are_sentences(kind, dtype):
    wide = parameter(3, 3, dtype=dtype)
    sentence = rf"{kind.__name__} computes in float32: parameters must be float32 or of fewer bits, got {dtype} for parameter"
    with pytest.raises(ValueError, match=rf"{sentence} 1 \(3, 3\). Convert the model"):
        kind([parameter(2), wide])
    with pytest.raises(ValueError, match=rf"{sentence} head \(3, 3\). Convert the model"):
        kind([("body", parameter(2)), ("head", wide)])
    optimizer = kind([parameter(2)])
    with pytest.raises(ValueError, match=sentence):
        optimizer.add_param_group({"params": [wide]})
    assert len(optimizer.param_groups) == 1
    for fewer in (torch.bfloat16, torch.float16):
        optimizer.add_param_group({"params": [parameter(3, 3, dtype=fewer)]})


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_becomes_one_of_more_bits_is_a_sentence(kind):
    model = nn.Linear(3, 3)
    optimizer = kind(model.parameters())
    model.double()
    model(torch.ones(1, 3).double()).sum().backward()
    with pytest.raises(ValueError, match=r"parameters must be float32 or of fewer bits, got torch.float64 for parameter 0 \(3, 3\)"):
        optimizer.step()


def test_a_group_that_is_refused_is_not_in():
    optimizer = Muon([parameter(6, 4)])
    before = list(optimizer.param_groups)
    with pytest.raises(ValueError, match="pieces must divide"):
        optimizer.add_param_group({"params": [parameter(6, 4)], "pieces": (0, 4)})
    assert optimizer.param_groups == before
    optimizer.add_param_group({"params": [parameter(6, 4)], "pieces": (0, 3)})


# Gradients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("value", [nan, inf, -inf, 1e19, 1e37])
@pytest.mark.parametrize("kind", [Shampoo, SOAP])
def test_gradients_that_no_factor_holds_are_a_sentence(kind, value, named):
    """Before anything moves: the next step is the one that would have followed without it."""
    parameters = [parameter(3), parameter(9, 12), parameter(9, 12)]
    optimizer = kind(list(zip("abc", parameters)) if named else parameters, refresh_every=1)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    before, states = [p.detach().clone() for p in parameters], [dict(state) for state in optimizer.state_dict()["state"].values()]
    states = [{name: each.clone() for name, each in state.items()} for state in states]
    parameters[2].grad[8, 3] = value
    of = "c" if named else "2"
    with pytest.raises(ValueError, match=rf"gradients of {kind.__name__}'s matrices must be finite and at most 8.9e\+17, those of parameter {of} \(9, 12\)"):
        optimizer.step()
    assert all(torch.equal(p, b) for p, b in zip(parameters, before))
    for state, kept in zip(optimizer.state_dict()["state"].values(), states, strict=True):
        assert all(torch.equal(state[name], kept[name]) for name in kept)


@pytest.mark.parametrize("kind", [Shampoo, SOAP])
def test_gradients_up_to_the_largest_are_computed_with(kind):
    p = parameter(9, 12)
    optimizer = kind([p], refresh_every=1)
    for step in range(4):
        p.grad = torch.full((9, 12), 8.8e17) * torch.randn(9, 12, generator=torch.Generator().manual_seed(step)).sign()
        optimizer.step()
    assert p.isfinite().all() and 0 < (p - 1).abs().max() < 0.1


@pytest.mark.parametrize("noise", ["drop", "correct"])
def test_gradients_that_have_no_singular_values_are_a_sentence(noise):
    p = parameter(3, 3)
    optimizer = Muon([p], noise=noise)
    p.grad = torch.full((3, 3), nan)
    with pytest.raises(ValueError, match=r"gradients of Muon's matrices must be finite and at most 3.4e\+38, those of parameter 0 \(3, 3\) are not"):
        optimizer.step()
