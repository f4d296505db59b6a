"""A layer without hooks and patches, whose forward torch.func can call."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from ..layout import original_class, own_parameters
from .layer import Layer, local

_HOLDERS = (nn.ModuleList, nn.ModuleDict)  # nobody calls them
_COMPUTING = (BasePruningMethod, SpectralNorm, WeightNorm)


def instantiable(module: nn.Module) -> bool:
    """Whether torch.func can take this module and its children as one layer: they are gathered together, and one example's
    output does not follow from another's input."""
    return not (sharded_apart(module) or any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in module.modules()))


def sharded_apart(module: nn.Module) -> bool:
    """Whether FSDP2 gathers a layer inside of it by itself."""
    return any(isinstance(each, FSDPModule) for each in module.modules() if each is not module)


def taken_whole(module: nn.Module) -> bool:
    """Whether a layer without parameters of its own answers for its children's: for those in a ParameterList or ParameterDict, which
    nobody calls, and for PEFT's DoRA, whose children take each other as arguments. A list that a layer inside of it holds, too (a bank of
    vectors that PEFT's model shares out), is that layer's."""
    lists = {} if type(module) in _HOLDERS else {id(each): each for each in _lists_of(module) if any(True for _ in each.parameters())}
    if lists:
        inner = (each for each in module.modules() if each is not module and type(each) not in _HOLDERS)
        held = {id(each) for layer in inner for each in _lists_of(layer)}
        if not lists.keys() <= held:
            return True
    dora = getattr(module, "lora_magnitude_vector", None)
    return isinstance(dora, nn.ModuleDict) and len(dora) > 0


def _lists_of(module: nn.Module) -> Iterator[nn.Module]:
    """The ParameterLists and ParameterDicts that it holds, also in a ModuleList or ModuleDict."""
    for child in module.children():
        if isinstance(child, (nn.ParameterList, nn.ParameterDict)):
            yield child
        elif type(child) in _HOLDERS:
            yield from _lists_of(child)


def refuse_computed_weights(model: nn.Module) -> None:
    """ValueError for weights that a hook computes before the layer's forward, where no rule sees it."""
    for name, module in model.named_modules():
        hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values() if isinstance(hook, _COMPUTING)]
        if hooks and any(parameter.requires_grad for _, parameter in own_parameters(module)):
            raise ValueError(
                f"{name} ({original_class(module).__name__}): a hook ({hooks[0]}) computes its weight from other parameters, so their "
                "gradients would pass every rule. Use torch.nn.utils.parametrizations, or make it permanent (remove_spectral_norm, "
                "remove_weight_norm, prune.remove)"
            )


HAS_CAPTURES = "_output_capturing_hooks_installed"  # by Transformers, at a model's first forward that gives hidden states: a skeleton, which has none of them, gets its own
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def skeleton(module: nn.Module, known: dict[int, nn.Module] | None = None) -> nn.Module:
    """The layer without hooks and patches, its parameters this rank's plain tensors: a forward for torch.func. Children that
    stand in lists and dicts besides are the same there. known: by id of the module."""
    known = {} if known is None else known
    if id(module) in known:
        return known[id(module)]
    kind = original_class(module)
    bare = known[id(module)] = object.__new__(_unflattened(kind) if isinstance(module, nn.RNNBase) else kind)
    state = bare.__dict__
    state.update((key, value) for key, value in module.__dict__.items() if key != "forward")
    state.update((hooks, OrderedDict()) for hooks in _HOOKS)
    if HAS_CAPTURES in state:
        state[HAS_CAPTURES] = False
    state["_parameters"] = {name: local(value) for name, value in module._parameters.items()}
    state["_modules"] = {name: child if child is None else skeleton(child, known) for name, child in module._modules.items()}
    for key, value in module.__dict__.items():
        if key not in ("_parameters", "_modules", "_buffers", "_flat_weights", "forward", *_HOOKS) and isinstance(value, (list, tuple, dict, MethodType, functools.partial)):
            state[key] = _of_skeleton(module, value, known)
    return bare


@functools.cache
def _unflattened(kind: type[nn.RNNBase]) -> type[nn.RNNBase]:
    """The class, whose forward takes the weights that its attributes are now, and not those of the list that it keeps."""
    now = property(lambda self: [getattr(self, name, None) for name in self._flat_weights_names], lambda self, _: None)
    return type(kind.__name__, (kind,), {"_flat_weights": now})


def _of_skeleton(module: nn.Module, value: Any, known: dict[int, nn.Module]) -> Any:
    if isinstance(value, nn.Module):
        return skeleton(value, known)
    if isinstance(value, nn.Parameter):
        raise ValueError(
            f"{original_class(module).__name__} keeps parameters in a list or dict, where torch.func cannot put one example's. If it stands in "
            "a module that has a parameter of its own beside it, make that parameter a layer (an nn.Module that is called); else register a rule for it "
            "(ghostshard.register_rule)"
        )
    if isinstance(value, MethodType):
        return MethodType(value.__func__, _of_skeleton(module, value.__self__, known))
    if type(value) is functools.partial:
        return functools.partial(_of_skeleton(module, value.func, known), *_of_skeleton(module, value.args, known), **_of_skeleton(module, value.keywords, known))
    if type(value) in (list, tuple):
        return type(value)(_of_skeleton(module, each, known) for each in value)
    if type(value) is dict:
        return {key: _of_skeleton(module, each, known) for key, each in value.items()}
    return value


@contextmanager
def no_way_back(layer: Layer) -> Iterator[None]:
    """RuntimeError if the skeleton calls the layer's own children, whose parameters torch.func does not see: all their gradients would
    be zero."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(
            f"{layer.name} ({original_class(layer.module).__name__}) calls its children by another way than its attributes, lists or "
            "dicts, so torch.func cannot follow it: register a rule for it (ghostshard.register_rule)"
        )

    children = [each for each in layer.module.modules() if each is not layer.module and "forward" not in vars(each)]
    for child in children:
        child.__dict__["forward"] = refuse
    try:
        yield
    finally:
        for child in children:
            del child.__dict__["forward"]


__all__ = ["HAS_CAPTURES", "instantiable", "no_way_back", "refuse_computed_weights", "sharded_apart", "skeleton", "taken_whole"]
