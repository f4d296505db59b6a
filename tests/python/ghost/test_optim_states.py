"""States of ghostshard.optim: those of other rules are refused, and hooks see them as torch's do."""

import copy

import optim_twins as twins
import pytest
import torch
from private_run import Run
from torch import nn

from ghostshard.optim import SOAP, AdamW, AdamW8bit, Muon, Shampoo

LR = 0.01
KINDS = {
    "adamw": lambda p: AdamW(p, LR),
    "adamw8bit": lambda p: AdamW8bit(p, LR, least_coded=0),
    "muon": lambda p: Muon(p, LR),
    "shampoo": lambda p: Shampoo(p, LR, side=8),
    "soap": lambda p: SOAP(p, LR, side=8),
}


def stepped(make, steps: int = 3, dtype=torch.float32) -> torch.optim.Optimizer:
    parameters = [nn.Parameter(torch.ones(*shape, dtype=dtype)) for shape in ((9, 12), (5,))]
    optimizer = make(parameters)
    for step in range(steps):
        for number, p in enumerate(parameters):
            p.grad = twins.gradient(p, number, step).to(dtype)
        optimizer.step()
    return optimizer


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


def refused(optimizer, state, sentence: str) -> None:
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=sentence):
        optimizer.load_state_dict(state)
    assert same(optimizer.state_dict(), before), "nothing was taken"


# Of other rules ------------------------------------------------------------------------------------------------------


def test_shampoo_and_soap_do_not_take_each_others_tiles():
    shampoo, soap = stepped(KINDS["shampoo"]), stepped(KINDS["soap"])
    refused(soap, shampoo.state_dict(), r"the state of parameter 0 \(9, 12\) has no 'soap_tiles': it is not one of SOAP, it has .*'shampoo_tiles'")
    refused(shampoo, soap.state_dict(), r"the state of parameter 0 \(9, 12\) has no 'shampoo_tiles': it is not one of Shampoo")


def as_before(state: dict) -> dict:
    """With the name that either rule's tiles had."""
    name_of = lambda name: "tiles" if name.endswith("_tiles") else name
    return {**state, "state": {number: {name_of(name): value for name, value in each.items()} for number, each in state["state"].items()}}


@pytest.mark.parametrize("kind, other", [("shampoo", "soap"), ("soap", "shampoo")])
def test_states_from_before_the_tiles_had_two_names_are_taken_by_their_rule(kind, other):
    there, here = stepped(KINDS[kind]), stepped(KINDS[kind], steps=1)
    here.load_state_dict(as_before(there.state_dict()))
    assert same(here.state_dict(), there.state_dict())
    refused(stepped(KINDS[other]), as_before(there.state_dict()), "has no '.*_tiles'")


def test_an_engines_checkpoint_of_shampoo_is_not_soaps(tmp_path):
    runs = []
    for kind in (Shampoo, SOAP):
        run = Run(model=nn.Linear(6, 43))
        run.optimizer.original_optimizer = kind(run.model.parameters(), LR)
        runs.append(run)
        run.step(*next(iter(run.loader)))
    runs[0].engine.save_checkpoint(path=tmp_path / "step1", module=runs[0].module, optimizer=runs[0].optimizer)
    with pytest.raises(Exception, match="soap_tiles"):
        runs[1].engine.load_checkpoint(path=tmp_path / "step1", module=runs[1].module, optimizer=runs[1].optimizer)


def of_torch(name: str, **options):
    return lambda p: getattr(torch.optim, name)(p, lr=LR, **options)


OTHERS = {
    "adam_with_decay": (of_torch("Adam", weight_decay=0.1), "decoupled_weight_decay must be True, got False with a weight_decay of 0.1"),
    "nadam": (of_torch("NAdam"), "a state must be one of .* or torch.optim.AdamW, got one of torch.optim.NAdam, which has another rule"),
    "radam": (of_torch("RAdam"), "got one of torch.optim.RAdam, which has another rule"),
    "sgd": (of_torch("SGD", momentum=0.9), "got one of torch.optim.SGD, which has another rule"),
    "amsgrad": (of_torch("AdamW", amsgrad=True), "amsgrad is not an option of"),
    "maximize": (of_torch("AdamW", maximize=True), "maximize is not an option of"),
}


@pytest.mark.parametrize("make, sentence", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("own", KINDS)
def test_states_of_other_rules_are_refused_by_name(own, make, sentence):
    refused(stepped(KINDS[own]), stepped(make).state_dict(), sentence)


@pytest.mark.parametrize("make", [of_torch("AdamW"), of_torch("AdamW", foreach=True), of_torch("Adam")], ids=["adamw", "foreach", "adam_without_decay"])
def test_states_of_the_same_rule_are_taken_and_go_on_after_the_group_has_changed(make):
    there, here = stepped(make), stepped(KINDS["adamw"], steps=1)
    here.load_state_dict(there.state_dict())
    assert same(here.state_dict()["state"][0]["exp_avg"], there.state_dict()["state"][0]["exp_avg"])
    here.param_groups[0]["weight_decay"] = 0.1
    again = stepped(KINDS["adamw"])
    again.load_state_dict(here.state_dict())
    assert again.param_groups[0]["weight_decay"] == 0.1


@pytest.mark.parametrize("make", [KINDS["adamw"], KINDS["shampoo"], KINDS["soap"]], ids=["adamw", "shampoo", "soap"])
def test_steps_below_0_and_states_of_nothing_are_sentences(make):
    optimizer = stepped(make)
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][7] = state["state"][1]
    refused(optimizer, state, "states must be of the parameters in the groups, got 7")
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["step"] = torch.tensor(-5.0)
    refused(optimizer, state, r"the step of parameter 0 \(9, 12\) must be finite and >= 0, got tensor\(-5.\)")


# Hooks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_hooks_see_the_states_that_are_saved_and_loaded(make):
    """In bfloat16, where torch's own way would round them."""
    there, here = stepped(make, dtype=torch.bfloat16), stepped(make, steps=1, dtype=torch.bfloat16)
    saved, seen = copy.deepcopy(there.state_dict()), []
    here.register_load_state_dict_pre_hook(lambda optimizer, state: seen.append(("before", copy.deepcopy(state))))
    here.register_load_state_dict_post_hook(lambda optimizer: seen.append(("after", copy.deepcopy(optimizer.state_dict()))))
    here.register_state_dict_pre_hook(lambda optimizer: seen.append(("saving", None)))
    here.register_state_dict_post_hook(lambda optimizer, state: seen.append(("saved", copy.deepcopy(state))))
    here.load_state_dict(there.state_dict())
    assert [name for name, _ in seen] == ["before", "saving", "saved", "after"]
    assert all(same(state, saved) for name, state in seen if state is not None)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_what_hooks_give_is_used(make):
    there, here = stepped(make), stepped(make, steps=1)
    state = there.state_dict()
    name = next(name for name in state["state"][0] if name.endswith(("tiles", "buffer", "avg")))
    zeros = {**state["state"][0], name: torch.zeros_like(state["state"][0][name])}
    handle = here.register_load_state_dict_pre_hook(lambda _, given: {**given, "state": {**given["state"], 0: zeros}})
    here.load_state_dict(state)
    assert here.state_dict()["state"][0][name].count_nonzero() == 0
    handle.remove()
    here.register_load_state_dict_pre_hook(lambda _, given: given.update(state={}))  # of a shallow copy, as torch's is
    here.load_state_dict(state)
    assert here.state_dict()["state"] == {} and len(state["state"]) == 2
    here.register_state_dict_post_hook(lambda _, packed: {**packed, "more": 1})
    assert here.state_dict()["more"] == 1


def test_a_hook_that_fails_leaves_the_hooks_and_the_states():
    optimizer = stepped(KINDS["adamw"])
    before = copy.deepcopy(optimizer.state_dict())

    def fails(*_):
        raise RuntimeError("no")

    handle = optimizer.register_load_state_dict_pre_hook(fails)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            optimizer.load_state_dict({"state": {}, "param_groups": before["param_groups"]})
    assert same(optimizer.state_dict(), before)
    handle.remove()
    seen = []
    optimizer.register_load_state_dict_post_hook(seen.append)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    assert seen == []
    optimizer.load_state_dict(before)
    assert seen == [optimizer]
