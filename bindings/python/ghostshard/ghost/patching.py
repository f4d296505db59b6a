"""A model while it is private: rules in the place of its layers' forwards, the guard, and hooks around its own forward."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from . import batch
from .checks.guard import Guard, warn_of_uncovered
from .checks.own_loss import OwnLoss
from .checks.state import State
from .layout import Layout, original_class, own_parameters
from .loss import PrivateLoss, loss_of_transformers, targets_of_transformers
from .recording import RecordingEngine
from .rules import Layer, Rule, instantiable, per_example, refuse_computed_weights, rule_for, same_output, tensor_parallel


class PatchedForward:
    """Takes the place of a module's forward. A copy of the module gets its own class's forward back."""

    def __init__(self, engine: RecordingEngine, name: str, module: nn.Module, rule: Rule, guard: Guard):
        self.layer = Layer(engine, name, module, with_children=rule is per_example)
        self.rule = rule
        self._compared = rule is per_example  # which compares by itself
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
        output = self.rule(layer, *args, **kwargs)
        if not self._compared and not torch.compiler.is_compiling():
            self._compare(output, args, kwargs)
        return output

    def _compare(self, output: Any, args: tuple, kwargs: dict) -> None:
        """At first use. RuntimeError if the layer's own forward gives something else than its rule."""
        with torch.no_grad():
            own = self.layer.original(*args, **kwargs)
        if not same_output(output, own):
            raise RuntimeError(
                f"{self.layer.name} ({original_class(self.layer.module).__name__}) gives another output than the rule of its class: "
                "was its forward changed, or an attribute of it? Register a rule for what it computes (ghostshard.register_rule)"
            )
        self._compared = True

    def __reduce__(self) -> tuple:
        return _plain_forward, (self.layer.module,)  # for copies, and for models that are saved whole


def _plain_forward(module: nn.Module) -> Callable[..., Any]:
    return types.MethodType(original_class(module).forward, module)


def _idle_patches() -> PatchedModel:
    """Of a model that was copied, or saved whole: it is not private, so its hooks belong to an object that knows no engine."""
    idle = object.__new__(PatchedModel)
    idle._engine = idle._transformer = idle._given = idle._state = idle.own_loss = None
    idle._repeating = False
    idle._batch_first = idle._own_loss_known = True
    return idle


def _has_forward_of_its_own(module: nn.Module) -> bool:
    forward = vars(module).get("forward")
    return forward is not None and getattr(forward, "__func__", None) is not original_class(module).forward


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
        self._state: State | None = None  # before it, if the model's own loss must still be compared
        self._own_loss_known = self._transformer is None
        self.own_loss: OwnLoss | None = None  # of the last forward, to be compared in its backward
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
        refuse_computed_weights(self._model)
        covered: set[int] = set()
        for name, module in self._model.named_modules():
            if id(module) in covered or not list(own_parameters(module)):
                continue
            rule = rule_for(module)
            if _has_forward_of_its_own(module):
                if any(parameter.requires_grad for _, parameter in own_parameters(module)):
                    raise ValueError(
                        f"{name} ({original_class(module).__name__}) has a forward of its own in the place of its class's: no rule "
                        "computes that. Make it the forward of a class (and register a rule, if it needs one), or freeze it"
                    )
                continue
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

    def compare_own_loss(self) -> bool:
        """Whether the model's own loss of its labels is the one that trains (checks/own_loss.py); ValueError if it is another."""
        if self.own_loss is None:
            if self._given is not None:  # other ranks compare, and a forward may need them all
                with torch.no_grad():
                    self.again(*self._given.args, **self._given.kwargs)
            return False
        differs = self.own_loss.differs()
        if differs:
            raise ValueError(
                f"{type(self._transformer).__name__} forms a loss of its own: not the one that Transformers has for its kind, and "
                "that is formed here for each example (class weights, label smoothing, a router's loss, model.loss_function). Leave "
                "labels out and pass logits and targets to the criterion that make_private returned"
            )
        return differs is False

    def know_own_loss(self) -> None:
        """Some rank has compared it: no further batch is."""
        self._own_loss_known = True

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward within a backward, which records nothing and leaves the last forward's inputs as they are."""
        self._repeating = True
        try:
            return self._model(*args, **kwargs)
        finally:
            self._repeating = False

    def __reduce__(self) -> tuple:
        return _idle_patches, ()

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
        self.own_loss = self._state = None
        if engine is not None:
            if given.labels is not None and not self._own_loss_known:
                self._state = State(module, engine.ranks.device)
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
        if self._state is not None:
            counts = targets_of_transformers(self._transformer, given.labels, losses, given.packing)
            self.own_loss = OwnLoss(self.again, given, self._state, losses.detach(), counts, engine.loss_reduction)
        output["loss"] = PrivateLoss(engine, losses, engine.loss_reduction)
        if hasattr(output, "move_to_end"):
            output.move_to_end("loss", last=False)  # outputs[0] is the loss, as where the model forms it
        return output


__all__ = ["PatchedModel"]
