"""What Opacus' private modules and optimizers have and ours cannot: names, each with the reason and the way out."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["VIRTUAL_STEP", "PartsOfAStep", "refuse_of_a_module"]

_NORMS = (
    "norms of single examples are private, and nothing hands them out: an example is clipped within the backward in which its norm is known. For a clip norm that fits them take "
    'clipping="adaptive", whose quantile of the norms is released with noise'
)
_HOOKS = "layers are recorded without hooks of autograd"

_OF_A_MODULE = {
    "get_norm_sample": _NORMS, "per_sample_gradient_norms": _NORMS, "autograd_grad_sample_hooks": _HOOKS, "add_hooks": f"{_HOOKS}; enable_hooks() and disable_hooks() are there",
    "max_grad_norm": "the clip norm is the optimizer's, which schedules set: optimizer.max_grad_norm",
    "validate": "make_private() looks at the model; PrivacyEngine().validate(module=…, optimizer=…, data_loader=…) asks before",
    "is_supported": "layers without a rule go through the per-example gradients of that layer alone; make_private() refuses by name what cannot",
}  # fmt: skip

VIRTUAL_STEP = (
    "a private optimizer has no 'virtual_step': parts of a batch are those of one draw. Give make_private() accumulation_steps=k, so that the loader cuts each draw into k batches "
    "(step() after the last), or use Opacus' BatchMemoryManager"
)


class PartsOfAStep:
    """Opacus' pre_step() in parts, which custom loops call one by one: there is no gradient without noise to call them on."""

    def accumulate(self) -> None:
        _refuse("accumulate")

    def add_noise(self) -> None:
        _refuse("add_noise")

    def scale_grad(self) -> None:
        _refuse("scale_grad")


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(
        f"{name}() is a part of Opacus' pre_step(). Here clipped sums leave the backward into noise that is there already, and are divided by the expected batch once, by step(): "
        "call step(), or pre_step() and then original_optimizer.step()"
    )


def refuse_of_a_module(kind: str, name: str) -> None:
    """AttributeError with the reason, for a name of Opacus' private modules that ours do not have."""
    if (reason := _OF_A_MODULE.get(name)) is not None:
        raise AttributeError(f"{kind!r} object has no attribute {name!r}: {reason}")
