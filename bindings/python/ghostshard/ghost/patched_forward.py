"""A layer while the model is private: its rule in the place of its forward."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from .. import _native
from .checks.guard import Guard
from .checks.looks import Looks
from .layout import original_class, plain_forward
from .recording import RecordingEngine, anchor, made_by_a_layer
from .rows import InOrder
from .rules import BY_ROWS, Layer, Rule, beside_children, per_example, same_output, tensor_parallel
from .rules.layer import time_first
from .settled import is_copied, of_all, of_copies, settled, settled_arguments
from .shared import Shared, plain, shared
from .tensor_trees import mapped, tensors_in
from .traces import left_out

_NO_GRAPH = (
    " (Nothing before this layer trains, so that no graph shows whose its rows are. If the model flattens them in their order, as windows of pictures are, give it one: register on the frozen "
    "layer whose output it flattens, before make_private(), layer.register_forward_hook(lambda layer, args, output: output.requires_grad_()); of what it makes of its input itself, give the input "
    "one in the loop, x.requires_grad_())"
)


class PatchedForward:
    """Takes the place of a module's forward. A copy of the module gets its own class's forward back."""

    def __init__(self, engine: RecordingEngine, name: str, module: nn.Module, rule: Rule, guard: Guard):
        self.layer = Layer(engine, name, module, with_children=rule is per_example)
        self.rule = rule
        self._compares_itself = rule is per_example or rule is beside_children  # the one does, the other is the forward
        self._compared = self._compares_itself
        self._looks = None if _reads_settings(module, rule) else Looks()
        self._guard = guard
        self._code = original_class(module), original_class(module).forward
        self._native, self._number = _native.load("engine"), hash(name) % 2**64
        entries = (engine.layout.parameters[number] for number in self.layer.numbers.values())
        self._slots = [(slot, entry) for entry in entries for slot in entry.slots if slot.module is module]
        functools.update_wrapper(self, self.layer.original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer = self.layer
        if not layer.trainable():
            output = self._own(args, kwargs)
            return made_by_a_layer(self._of_flattened(output, args)) if layer.engine.recording else output
        if self.rule is beside_children:
            if not layer.engine.recording:
                return self._own(args, kwargs)
            self._guard(self._slots)
            return self.rule(layer, *args, **kwargs)
        self._native.leave_out(self._number)  # its rule computes what it would, by other operations
        try:
            return self._by_rule(args, kwargs)
        finally:
            self._native.go_on()

    def _by_rule(self, args: tuple, kwargs: dict) -> Any:
        layer = self.layer
        if not layer.engine.recording:
            return self._own(args, kwargs)
        if layer.engine.in_forward:
            return self._recorded(*((args, kwargs) if torch.compiler.is_compiling() else layer.engine.provenance.within_layer(args, kwargs)))
        args, kwargs, found = layer.engine.provenance.read_layer(args, kwargs, batch_first=layer.engine.batch_first)
        output = self._recorded(args, kwargs)
        if found is None:
            return output
        layer.engine.provenance.mark(output, found)
        return layer.engine.provenance.give_back(output, found)

    def _own(self, args: tuple, kwargs: dict) -> Any:
        """The layer's own forward."""
        for module in self.layer.module.modules():
            if isinstance(module, nn.RNNBase):  # fully_shard may have gathered its weights past the list that it keeps of them
                module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]  # type: ignore[misc]
        return self.layer.original(*args, **kwargs)

    def _of_flattened(self, output: Any, args: tuple) -> Any:
        """The output of a frozen layer. If it has no gradient and its rows are those of an argument that the model flattened, the graph says so."""
        layer, first = self.layer, args[0] if args else None
        if not isinstance(first, torch.Tensor) or isinstance(first, Shared) or first.requires_grad or not layer.engine.in_forward:
            return output
        if type(output) is not torch.Tensor or output.requires_grad or not output.is_floating_point() or output.shape[:1] != first.shape[:1]:
            return output
        with left_out():
            parts = layer.parts(first)
            return output if parts == 1 else InOrder.apply(anchor(), layer.folded(output, parts)).flatten(0, 1)

    def _refuse_other_code(self) -> None:
        """RuntimeError if the layer is of another class than its rule was chosen for."""
        now = original_class(self.layer.module)
        if (now, now.forward) != self._code:
            raise RuntimeError(
                f"{self.layer.name} became another {now.__name__} after make_private(), by its class or its class's forward, and a private step would go on computing "
                f"what {self._code[0].__name__} did: change it before make_private()"
            )

    def _compare_anew_if_set(self) -> None:
        """What was compared at first use may be another layer since: an attribute sends its forward another way."""
        if self._looks is None or torch.compiler.is_compiling() or (look := self._looks.of(self.layer.module, of_forward=True)) in self._looks:
            return
        self._looks.add(look)
        self._compared = self._compares_itself
        self.layer.compared = False
        self.layer.folds.clear()
        self.layer.of_each.clear()

    def _recorded(self, args: tuple, kwargs: dict) -> Any:
        layer = self.layer
        self._refuse_other_code()
        self._compare_anew_if_set()
        self._guard(self._slots)  # no block's forward was called if the model was entered by a method
        if layer.engine.ranks.model_ranks > 1:
            return tensor_parallel.forward(layer, self.rule, args, kwargs)
        try:
            output = self._output(args, kwargs)
        except ValueError as error:
            if "Rows must stay with their units" in str(error) and not any(each.requires_grad for each in tensors_in(args)):
                raise ValueError(str(error) + _NO_GRAPH) from error
            raise
        if not (self._compared or layer.compared) and not torch.compiler.is_compiling():
            self._compare(output, args, kwargs)
        return output

    def _output(self, args: tuple, kwargs: dict) -> Any:
        """The rule's. A layer that acts on last extents alone takes two more kinds of input: one that all units share, unit by unit,
        and [units · rows, ...] if the order of its rows is certain."""
        layer, first = self.layer, args[0] if args else None
        if self.rule in BY_ROWS and isinstance(first, torch.Tensor):
            if is_copied(layer, first):
                return of_copies(layer, self.rule, first, *args[1:], **kwargs)
            if isinstance(first := settled(layer, 0, of_all(layer, first), whole=True), Shared):
                return shared(self.rule(layer, first.behind, *args[1:], **kwargs))
            args = (first, *args[1:])
            if (parts := layer.parts(first)) > 1:
                return self.rule(layer, layer.folded(first, parts), *args[1:], **kwargs).flatten(0, 1)
        else:
            args, kwargs = settled_arguments(layer, args, kwargs)
        if any(isinstance(value, Shared) for value in tensors_in((args, kwargs))) and self.rule is not per_example:
            if next(layer.module.children(), None) is None:
                return per_example(layer, *args, **kwargs)
            raise ValueError(
                f"{layer.name} ({original_class(layer.module).__name__}) gets a tensor that all units share, and its rule takes "
                f"none: register one (ghostshard.register_rule){time_first(layer)}"
            )
        return self.rule(layer, *args, **kwargs)

    def _compare(self, output: Any, args: tuple, kwargs: dict) -> None:
        """At first use, and when the layer is set otherwise. RuntimeError if the layer's own forward gives something else than its rule."""
        with torch.no_grad():
            own = self._own(mapped(plain, args), mapped(plain, kwargs))
        found, expected = tensors_in(output), tensors_in(own)
        floats = [(one, two) for one, two in zip(found, expected) if two.is_floating_point()]
        if len(found) != len(expected) or not all(same_output(one, two) for one, two in floats):
            raise RuntimeError(
                f"{self.layer.name} ({original_class(self.layer.module).__name__}) gives another output than the rule of its class: "
                "was its forward changed, or an attribute of it? Register a rule for what it computes (ghostshard.register_rule)"
            )
        self._compared = True

    def __reduce__(self) -> tuple:
        return plain_forward, (self.layer.module,)  # for copies, and for models that are saved whole


def _reads_settings(module: nn.Module, rule: Rule) -> bool:
    """The rules of torch's own layers read at each call all that these are set to."""
    return rule is not per_example and original_class(module).__module__.startswith("torch.nn.")


__all__ = ["PatchedForward"]
