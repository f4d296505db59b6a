"""The rules for options, with a sentence for each: what the optimizers of this package take at construction, in groups and in states.

torch.optim's Adam and its kin have options that these rules have not. Python code for torch may name them with the values that leave a
rule as it is; other values are refused, because a rule that ignores them descends where its caller wants to ascend.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import torch

_OTHER_RULES = ("amsgrad", "maximize")  # of torch's options: they change the steps
_OTHER_WAYS = ("foreach", "capturable", "differentiable", "fused")  # they say how torch computes the same steps
_COUPLED = "decoupled_weight_decay"  # False: weight decay goes through the moments
OF_TORCH = (*_OTHER_RULES, *_OTHER_WAYS, _COUPLED)

# What only the groups of other optimizers hold, whose states look like ours.
_OTHERS = {"momentum_decay": "torch.optim.NAdam", "dampening": "torch.optim.SGD"}


def check(rule: bool, text: str, found: object) -> None:
    if not rule:
        raise ValueError(f"{text}, got {found!r}")


def is_number(value: object) -> bool:
    """Finite. A tensor of one element may stand for it, as torch's learning rates do; True and False are none."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and value.dtype != torch.bool and not value.is_complex() and bool(value.isfinite())
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def is_within(value: Any, least: float, below: float = math.inf) -> bool:
    return is_number(value) and bool(least <= value < below)


def is_above_0(value: Any) -> bool:
    return is_number(value) and bool(value > 0)


def is_integer(value: Any, least: int) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least


def is_pair(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2


def check_flag(group: Mapping[str, Any], name: str) -> None:
    check(isinstance(group[name], bool), f"{name} must be True or False", group[name])


def check_rate(group: Mapping[str, Any]) -> None:
    check(is_within(group["lr"], 0), "the learning rate must be finite and >= 0", group["lr"])


def check_given(kind: str, options: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Those that an optimizer of this kind got beside its own. TypeError for a name that torch's Adam has not either."""
    for name in options:
        if name not in (*_OTHER_RULES, *_OTHER_WAYS):
            raise TypeError(f"{name} is not an option of {kind}, which takes {', '.join(own)}")
    check_foreign(kind, options)


def check_foreign(kind: str, group: Mapping[str, Any], *, is_loaded: bool = False) -> None:
    """Options of torch's in a group. is_loaded: it comes of a state, where the way torch computed its steps tells nothing of ours."""
    for name in _OTHER_RULES if is_loaded else (*_OTHER_RULES, *_OTHER_WAYS):
        check(group.get(name) in (None, False), f"{name} is not an option of {kind}: leave it out, or give None or False", group.get(name))
    if not group.get(_COUPLED, True) and group.get("weight_decay"):
        raise ValueError(
            f"{_COUPLED} must be True, got {group[_COUPLED]!r} with a weight_decay of {group['weight_decay']!r}: as in torch.optim.Adam it "
            f"decays by way of the gradients, and {kind} by way of the weights"
        )


def check_origin(kind: str, group: Mapping[str, Any]) -> None:
    """ValueError for a group out of a state whose moments mean something else."""
    others = [other for name, other in _OTHERS.items() if name in group]
    if _COUPLED in group and "amsgrad" not in group:
        others.append("torch.optim.RAdam")  # the only one of Adam's kin without it
    if others:
        raise ValueError(f"a state must be one of {kind} or torch.optim.AdamW, got one of {others[0]}, which has another rule")
