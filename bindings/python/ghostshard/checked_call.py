"""The rules that a call of make_private() in modes "ghost" and "ghost_fsdp" must keep, whatever the run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from numbers import Real
from typing import Any

import numpy as np
import opacus
import torch
from opacus.accountants.registry import _ACCOUNTANTS
from opacus.grad_sample import AbstractGradSampleModule
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn, optim
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader

from .errors import did_you_mean
from .keywords import refuse_no_flags

__all__ = ["MODES", "check_call", "check_engine", "check_target", "plain_criterion", "refuse_unknown_mode"]

MODES = ("ghost", "ghost_fsdp")
_MODES_OF_OPACUS = ("hooks", "functorch", "ew", "no_op")
_STEPS_OF_OPACUS = ("_prepare_model", "_prepare_optimizer", "_prepare_data_loader", "_prepare_criterion")
_LARGEST = 1e30


def check_engine(accountant: Any, secure_mode: Any, own: Iterable[str]) -> None:
    """Of PrivacyEngine(). own: accountants of ours; others are Opacus', or registered there."""
    refuse_no_flags("PrivacyEngine()", {"secure_mode": secure_mode})
    known = list(dict.fromkeys((*own, *_ACCOUNTANTS)))
    if not isinstance(accountant, str):
        raise TypeError(f"accountant must be a name, one of {', '.join(map(repr, known))}, got {_shown(accountant)}. One with a history goes on by engine.accountant.load_state_dict(its state_dict())")
    if accountant not in known:
        raise ValueError(f"accountant must be one of {', '.join(map(repr, known))}, got {accountant!r}{did_you_mean(accountant.lower(), known)}")


def plain_criterion(criterion: Any, loss_reduction: str) -> Any:
    """The default for None; of a private one, which a loop over several runs hands in again, the one beneath, as of a private optimizer."""
    while isinstance(criterion, DPLossFastGradientClipping):
        criterion = criterion.criterion
    return nn.CrossEntropyLoss(reduction=loss_reduction) if criterion is None else criterion


def refuse_unknown_mode(mode: Any) -> None:
    if mode in (*MODES, *_MODES_OF_OPACUS):
        return
    cut = ". A model that parallelize_module() has cut takes 'ghost', or 'ghost_fsdp' if FSDP2 shards it too" if mode == "ghost_tp" else ""
    raise ValueError(f"grad_sample_mode must be one of {', '.join(map(repr, MODES))}, or of Opacus' own {', '.join(map(repr, _MODES_OF_OPACUS))}; got {mode!r}{cut}")


def check_call(
    engine: opacus.PrivacyEngine,
    generator: Any,
    module: nn.Module,
    optimizer: optim.Optimizer,
    data_loader: DataLoader,
    criterion: Any,
    mode: str,
    noise_multiplier: Any,
    max_grad_norm: Any,
    rand_on_empty: bool,
) -> None:
    _refuse_steps_of_its_own(engine)
    _check_kinds(module, optimizer, data_loader, criterion)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ValueError(f"noise_generator must be a torch.Generator, or None for noise of the operating system's generator, got {generator!r}")
    if generator is not None and engine.secure_mode:
        raise ValueError("Passing seed is prohibited in secure mode")
    if isinstance(module, AbstractGradSampleModule):
        raise ValueError("the module is wrapped for private training already: pass the model itself")
    known = set(module.parameters())
    if any(p not in known for p in chain.from_iterable(group["params"] for group in optimizer.param_groups)):
        raise ValueError(
            "Module parameters are different than optimizer Parameters: build the optimizer from this module, after "
            "FSDP2Wrapper if that is used"
        )
    if mode == "ghost_fsdp" and not isinstance(module, FSDPModule):
        raise ValueError(
            "grad_sample_mode='ghost_fsdp' needs a model under FSDP2: FSDP2Wrapper(model), or fully_shard; got "
            f"{type(module).__name__}"
        )
    if mode == "ghost" and isinstance(module, FSDPModule):
        raise ValueError("a model under FSDP2 takes grad_sample_mode='ghost_fsdp'")
    _check_terms(noise_multiplier, max_grad_norm)
    if rand_on_empty:
        raise ValueError(
            "rand_on_empty puts a random example where nothing was drawn, so that one example more or less moves "
            "the sum by up to twice the clip norm; an empty batch is a step like any other here"
        )


def check_target(data_loader: Any, target_epsilon: Any, keywords: dict[str, Any]) -> None:
    """Of make_private_with_epsilon(), before it plans. keywords: those that it hands on."""
    refuse_no_flags("make_private_with_epsilon()", keywords)
    if "noise_multiplier" in keywords:
        raise TypeError("make_private_with_epsilon() finds the noise multiplier for target_epsilon itself: leave noise_multiplier out, or call make_private() with it")
    if not _is_number(target_epsilon):
        raise TypeError(f"target_epsilon must be a number, got {_shown(target_epsilon)}")
    if keywords.get("grad_sample_mode") in MODES:
        _check_loader(data_loader)


def _refuse_steps_of_its_own(engine: opacus.PrivacyEngine) -> None:
    """A subclass that replaces one of Opacus' steps asks for another model, optimizer, loader or loss, and our modes call none of them."""
    for name in _STEPS_OF_OPACUS:
        if getattr(type(engine), name) is not getattr(opacus.PrivacyEngine, name) or name in vars(engine):
            raise ValueError(
                f"{type(engine).__name__} has a {name}() of its own, which modes {', '.join(map(repr, MODES))} never call: they make model, optimizer, loader and criterion "
                f"themselves, and what {name}() asks for would be left out. Leave it out, and change what make_private() is given or returns; clipping=, sampling= and "
                "its other keywords ask for other steps"
            )


def _check_kinds(module: Any, optimizer: Any, data_loader: Any, criterion: Any) -> None:
    """TypeError for an argument that is of another kind than its name says."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be the model, an nn.Module, got {_shown(module)}")
    if isinstance(optimizer, (list, tuple)):
        raise TypeError(
            f"optimizer must be one optimizer, got a {type(optimizer).__name__} of {len(optimizer)}: a private step is released once, to one. Give all parameters to one, with a "
            'group for each part: SGD([{"params": head.parameters(), "lr": 0.1}, …])'
        )
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {_shown(optimizer)}")
    _check_loader(data_loader)
    if isinstance(criterion, type):
        raise TypeError(f"criterion must be made first: {criterion.__name__}(), got the class {criterion.__name__}")
    if not callable(criterion):
        raise TypeError(f"criterion must be a function of outputs and targets, or a module such as nn.CrossEntropyLoss(), got {_shown(criterion)}")


def _check_loader(data_loader: Any) -> None:
    if not (hasattr(data_loader, "dataset") and hasattr(data_loader, "batch_sampler")):
        raise TypeError(
            f"data_loader must be a torch.utils.data.DataLoader, from whose data set batches are drawn, got {_shown(data_loader)}. Batches that come from elsewhere need one too, of the "
            "same examples, which says how many there are and how large a batch is: make_private(own_batches=True)"
        )


def _check_terms(noise_multiplier: Any, max_grad_norm: Any) -> None:
    """ValueError for a clip norm or a noise multiplier with which no step could begin. (Schedules may set others, which a step looks at.)"""
    if isinstance(max_grad_norm, (list, tuple)):
        raise ValueError("max_grad_norm must be one number in modes 'ghost' and 'ghost_fsdp' (per_layer shares it out), got a list")
    if not (_is_number(noise_multiplier) and 0 <= noise_multiplier <= _LARGEST):
        raise ValueError(f"noise_multiplier must be a finite number >= 0 (0: no noise, and no guarantee), and at most {_LARGEST:g}, got {noise_multiplier!r}")
    if not (_is_number(max_grad_norm) and 1 / _LARGEST <= max_grad_norm <= _LARGEST):
        raise ValueError(f"max_grad_norm must be a finite number > 0, from {1 / _LARGEST:g} to {_LARGEST:g}, got {max_grad_norm!r}")


def _is_number(value: Any) -> bool:
    """torch and NumPy have numbers of their own, which schedules make."""
    single = isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim == 0
    return not isinstance(value, (bool, np.bool_)) and (single or isinstance(value, Real)) and not math.isnan(value)


def _shown(value: Any) -> str:
    words = repr(value)
    return f"{words if len(words) <= 60 else '…'} ({type(value).__name__})"
