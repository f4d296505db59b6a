"""What layers gave in a model's forward, and the model's own forward over parts of that (own_loss.py)."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .handed_in import HandedIn
from .layout import original_class, own_parameters, plain_forward
from .tensor_trees import tensors_in
from .traces import left_out

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def loss_of(output: Any) -> Any:
    """What a model's output names its loss; None: nothing."""
    return output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)


def _forms_a_loss(output: Any) -> bool:
    """One number is a mean over the batch."""
    return any(value.dim() == 0 and value.is_floating_point() for value in tensors_in(output))


def _matches(module: nn.Module, output: Any) -> bool:
    """A module without parameters that gives whole numbers alone, such as which masks belong to which queries: of an example it is called again."""
    values = tensors_in(output)
    return bool(values) and not any(value.is_floating_point() for value in values) and next(module.parameters(), None) is None


def _writes_to(loss: torch.Tensor) -> int:
    """How often it was written to."""
    with torch._C.DisableTorchFunctionSubclass():  # a loss that all units share takes no other question
        return loss._version


class Outputs:
    """What the outermost called modules inside of the model gave in one forward, in the order of their calls."""

    def __init__(self) -> None:
        self._of: dict[int, list[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def keep(self, calls: list[tuple[nn.Module, Any]]) -> None:
        for module, output in calls:
            self._of.setdefault(id(module), []).append(output)

    def replayed(self, module: nn.Module, part: Callable[[Any], Any]) -> nn.Module:
        """The model, in which these modules give their outputs again, the part's rows alone. Its parameters are not called."""
        bare = object.__new__(original_class(module))
        state = bare.__dict__
        state.update((key, value) for key, value in module.__dict__.items() if key != "forward")
        state.update((hooks, OrderedDict()) for hooks in _HOOKS)
        if id(module) in self._of:
            following = iter(self._of[id(module)])
            state["forward"] = lambda *_, **__: part(next(following))
        else:
            state["_modules"] = {name: child if child is None else self.replayed(child, part) for name, child in module._modules.items()}
        return bare


class Layers:
    """Keeps what the outermost called modules inside of a model give, and what the Transformers model in it takes and gives.

    A module that forms a loss of the batch is computed again for each example, by what is inside of it: the Transformers model itself, what is around it,
    and any without parameters of its own (a criterion, XLM's last layer). So is one that gives whole numbers alone (a matcher)."""

    def __init__(self, whole: Any, model: Any):
        self._whole, self._model = whole, model
        self._around = set() if model is None else {id(each) for each in whole.modules() if any(inside is model for inside in each.modules())}
        self._outputs: Outputs | None = None
        self._calls: list[tuple[nn.Module, Any]] = []
        self._entered: list[int] = []  # how many calls there were before those of the modules that are under way
        self.args: tuple = ()
        self.kwargs: dict = {}
        self._loss: Any = None  # the model's own, of the last forward
        self._writes = 0  # how often it had been written to then
        self._handles: list = []

    def _attach(self) -> None:
        for module in self._whole.modules():
            if module is not self._whole:
                self._handles.append(module.register_forward_pre_hook(self._enter))
                self._handles.append(module.register_forward_hook(self._leave, always_call=True))
        if "forward" not in vars(self._model):  # no hook: PEFT calls the model's forward itself
            self._model.forward = _Captured(self._model, self)

    def begin(self, *, active: bool) -> None:
        if active and not self._handles:
            self._attach()
        self._outputs = Outputs() if active else None
        self._calls, self._entered = [], []
        self.args, self.kwargs, self._loss = (), {}, None

    def end(self) -> Outputs | None:
        outputs, self._outputs = self._outputs, None
        if outputs is not None:
            outputs.keep(self._calls)
        self._calls = []
        return outputs

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if isinstance(vars(self._model).get("forward") if self._model is not None else None, _Captured):
            del self._model.forward

    def took(self, args: tuple, kwargs: dict) -> None:
        if self._outputs is not None:
            handed = HandedIn(args, kwargs)
            self.args, self.kwargs = handed.args, handed.kwargs

    def gave(self, output: Any) -> None:
        if self._outputs is not None and isinstance(loss := loss_of(output), torch.Tensor):
            self._loss, self._writes = loss, _writes_to(loss)

    def handed_on(self, loss: Any, *, copied: bool) -> bool:
        """Whether what is around the Transformers model gives the loss that this one gave, and has not written to it (`output.loss += term`). copied: or
        another tensor of the same value, as where PEFT has the model computed as one layer."""
        return loss is None or (_writes_to(loss) == self._writes if loss is self._loss else copied)

    def _enter(self, *_: Any) -> None:
        self._entered.append(len(self._calls))

    def _leave(self, module: nn.Module, _args: Any, output: Any) -> None:
        with left_out():
            self._note(module, output)

    def _note(self, module: nn.Module, output: Any) -> None:
        before = self._entered.pop() if self._entered else len(self._calls)
        if self._outputs is None:
            self._calls = []
        elif not (_matches(module, output) or (_forms_a_loss(output) and (id(module) in self._around or not list(own_parameters(module))))):
            self._calls = [*self._calls[:before], (module, output)]  # in the place of what is inside of it

    def __reduce__(self) -> tuple:
        return Layers, (None, None)  # of a model that was copied, or saved whole


class _Captured:
    """Takes the place of a model's forward, while its loss is compared or computed example by example."""

    def __init__(self, model: nn.Module, layers: Layers):
        self._model, self._layers, self._forward = model, layers, model.forward
        functools.update_wrapper(self, model.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with left_out():
            self._layers.took(args, kwargs)
        output = self._forward(*args, **kwargs)
        self._layers.gave(output)
        return output

    def __reduce__(self) -> tuple:
        return plain_forward, (self._model,)


__all__ = ["Layers", "Outputs", "loss_of"]
