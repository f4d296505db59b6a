"""A model while it is private: rules in the place of its layers' forwards, the guard, and hooks around its own forward."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from . import batch
from .checks.guard import Guard, warn_of_uncovered
from .layout import Layout, original_class, own_parameters
from .loss import PrivateLoss, loss_of_transformers
from .recording import RecordingEngine
from .rules import Layer, Rule, instantiable, per_example, rule_for, tensor_parallel


class PatchedForward:
    """Takes the place of a module's forward. A copy of the module gets its own class's forward back."""

    def __init__(self, engine: RecordingEngine, name: str, module: nn.Module, rule: Rule, guard: Guard):
        self.layer = Layer(engine, name, module, with_children=rule is per_example)
        self.rule = rule
        self._guard = guard
        entries = (engine.layout.parameters[number] for number in self.layer.numbers.values())
        self._slots = [(slot, entry) for entry in entries for slot in entry.slots if slot.module is module]
        functools.update_wrapper(self, self.layer.original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer = self.layer
        if not layer.engine.recording or not layer.trainable():
            return layer.original(*args, **kwargs)
        self._guard(self._slots)  # no block's forward was called if the model was entered by a method
        if layer.engine.ranks.model_ranks > 1:
            return tensor_parallel.forward(layer, self.rule, args, kwargs)
        return self.rule(layer, *args, **kwargs)

    def __deepcopy__(self, memo: dict) -> Callable[..., Any]:
        copied = memo[id(self.layer.module)]  # its state, with this in it, is being copied now
        return types.MethodType(original_class(self.layer.module).forward, copied)


class PatchedModel:
    """Patches `model` in place; `detach()` undoes it."""

    def __init__(self, engine: RecordingEngine, model: nn.Module, *, fsdp: bool):
        if any(isinstance(module.__dict__.get("forward"), PatchedForward) for module in model.modules()):
            raise ValueError(
                "the model is private already: a second make_private() would clip and charge it twice. Take it back first "
                "(module.remove_hooks(), or hooks.cleanup() with wrap_model=False), or build the model anew"
            )
        self._engine: RecordingEngine | None = engine  # None: a copy's, which is not private
        self._model = model
        self._batch_first = engine.batch_first
        # The Hugging Face model in it (a PEFT model holds one), if any.
        self._transformer = next((module for module in model.modules() if "loss_type" in vars(module)), None)
        self._given: batch.Inputs | None = None  # of the last forward
        self._repeating = False
        self._handles: list = []
        self._patched: list[nn.Module] = []
        self._guard = Guard(gathers=fsdp)
        # Before fully_shard's own hook, which gathers parameters.
        self._handles.append(model.register_forward_pre_hook(self._meet, prepend=True))
        self._handles.append(model.register_forward_pre_hook(self._before_forward, with_kwargs=True))
        self._handles.append(model.register_forward_hook(self._after_forward, always_call=True))
        self._patch_layers(engine)
        self._guard_blocks(engine.layout, fsdp=fsdp)
        for module in model.modules():
            if isinstance(module, nn.parallel.DistributedDataParallel):
                module.require_backward_grad_sync = False  # there is no gradient for its reducer to wait for

    def _patch_layers(self, engine: RecordingEngine) -> None:
        covered: set[int] = set()
        for name, module in self._model.named_modules():
            if id(module) in covered or not list(own_parameters(module)):
                continue
            rule = rule_for(module)
            if rule is None:
                if not instantiable(module):
                    warn_of_uncovered(name, module)
                    continue
                rule = per_example
                covered.update(id(each) for each in module.modules())
            module.forward = PatchedForward(engine, name, module, rule, self._guard)
            self._patched.append(module)

    def _guard_blocks(self, layout: Layout, *, fsdp: bool) -> None:
        # A block's parameters are plain tensors once FSDP2's own hook, which comes first, has gathered them.
        for number, block in enumerate(layout.blocks):
            slots = [(slot, entry) for entry in layout.parameters if entry.block == number for slot in entry.slots]
            if not fsdp:
                self._guard(slots)
            module = self._model.get_submodule("" if block == "model" else block) if fsdp else self._model
            self._handles.append(module.register_forward_pre_hook(functools.partial(self._guard, slots)))

    def enable(self, enabled: bool) -> None:
        self._guard.enabled = enabled

    def detach(self) -> None:
        """Leaves the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._guard.remove()
        for module in self._patched:
            del module.forward
        self._patched.clear()

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward within a backward, which records nothing and leaves the last forward's inputs as they are."""
        self._repeating = True
        try:
            return self._model(*args, **kwargs)
        finally:
            self._repeating = False

    def __deepcopy__(self, memo: dict) -> PatchedModel:
        """A copied model is not private: its hooks belong to an object that knows no engine."""
        idle = object.__new__(PatchedModel)
        idle._engine = idle._transformer = idle._given = None
        idle._repeating = False
        idle._batch_first = True
        return idle

    def _meet(self, *_: Any) -> None:
        if self._engine is not None and not self._repeating:
            self._engine.meet()

    def _before_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        if self._repeating:
            return None
        engine = self._engine
        given = self._given = batch.read(
            module, self._transformer, args, kwargs, batch_first=self._batch_first,
            recording=engine is not None and engine.recording,
        )  # fmt: skip
        if engine is not None:
            engine.begin_forward(given)
        return given.args, given.kwargs

    def _after_forward(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        if self._repeating:
            return output
        engine, given = self._engine, self._given
        if engine is not None:
            engine.end_forward()
        if output is None:
            return None
        output = given.output_of_units(output)
        if engine is None or given.labels is None:
            return output
        if not hasattr(output, "logits"):
            raise ValueError("labels with return_dict=False: the model's loss needs its output by name")
        losses = loss_of_transformers(self._transformer, output, given.labels, engine.loss_reduction, given.packing)
        output["loss"] = PrivateLoss(engine, losses, engine.loss_reduction)
        if hasattr(output, "move_to_end"):
            output.move_to_end("loss", last=False)  # outputs[0] is the loss, as where the model forms it
        return output


__all__ = ["PatchedModel"]
