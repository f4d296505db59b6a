"""A model while it is private: rules in the place of its layers' forwards, the guard, and hooks around its own forward."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from . import batch, packing
from .adapters import adapters_are_off
from .checks.criterions import leave_own_losses_beside
from .checks.guard import Guard, warn_of_uncovered
from .checks.padded_gradients import nodes_of
from .checks.padding import padding_of
from .checks.parameters import refuse_complex
from .layout import Layout, original_class, own_parameters
from .loss import PrivateLoss
from .nobody import joined
from .own_loss import OwnLoss
from .provenance.opened import contents
from .recording import RecordingEngine, anchor, made_by_a_layer
from .rows import InOrder
from .rules import BY_ROWS, WITH_CHILDREN, Layer, Rule, beside_children, instantiable, look_up_tables, per_example, refuse_computed_weights, rule_for, same_output, scaled_rule, sharded_apart, taken_whole, tensor_parallel  # fmt: skip
from .settled import as_output, is_copied, of_copies, settled, settled_arguments
from .shared import Shared, plain, shared
from .spec_augment import masking, refuse_masks, refuse_noise
from .tensor_trees import mapped, tensors_in
from .transformers_losses import logits_of

_TOKEN = "ghostshard: forward"
_DIVISOR = ("num_items_in_batch",)  # of Transformers' own losses, in whose place ours are formed


class PatchedForward:
    """Takes the place of a module's forward. A copy of the module gets its own class's forward back."""

    def __init__(self, engine: RecordingEngine, name: str, module: nn.Module, rule: Rule, guard: Guard):
        self.layer = Layer(engine, name, module, with_children=rule is per_example)
        self.rule = rule
        self._compared = rule is per_example or rule is beside_children  # the one compares by itself, the other is the forward
        self._guard = guard
        entries = (engine.layout.parameters[number] for number in self.layer.numbers.values())
        self._slots = [(slot, entry) for entry in entries for slot in entry.slots if slot.module is module]
        functools.update_wrapper(self, self.layer.original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer = self.layer
        if not layer.engine.recording:
            return self._own(args, kwargs)
        if not layer.trainable():
            return made_by_a_layer(self._of_flattened(self._own(args, kwargs), args))
        if self.rule is beside_children:
            self._guard(self._slots)
            return self.rule(layer, *args, **kwargs)
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
        parts = layer.parts(first)
        return output if parts == 1 else InOrder.apply(anchor(), layer.folded(output, parts)).flatten(0, 1)

    def _recorded(self, args: tuple, kwargs: dict) -> Any:
        layer = self.layer
        self._guard(self._slots)  # no block's forward was called if the model was entered by a method
        if layer.engine.ranks.model_ranks > 1:
            return tensor_parallel.forward(layer, self.rule, args, kwargs)
        output = self._output(args, kwargs)
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
            if isinstance(first := settled(layer, 0, first, whole=True), Shared):
                return shared(self.rule(layer, first.behind, *args[1:], **kwargs))
            args = (first, *args[1:])
            if (parts := layer.parts(first)) > 1:
                return self.rule(layer, layer.folded(first, parts), *args[1:], **kwargs).flatten(0, 1)
        else:
            args, kwargs = settled_arguments(layer, args, kwargs)
        if any(isinstance(value, Shared) for value in tensors_in((args, kwargs))) and self.rule is not per_example:
            raise ValueError(
                f"{layer.name} ({original_class(layer.module).__name__}) gets a tensor that all units share, and its rule takes "
                "none: register one (ghostshard.register_rule)"
            )
        return self.rule(layer, *args, **kwargs)

    def _compare(self, output: Any, args: tuple, kwargs: dict) -> None:
        """At first use. RuntimeError if the layer's own forward gives something else than its rule."""
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
        return _plain_forward, (self.layer.module,)  # for copies, and for models that are saved whole


def _plain_forward(module: nn.Module) -> Callable[..., Any]:
    return types.MethodType(original_class(module).forward, module)


def _idle_patches() -> PatchedModel:
    """Of a model that was copied, or saved whole: it is not private, so its hooks belong to an object that knows no engine."""
    idle = object.__new__(PatchedModel)
    idle._engine = idle._transformer = idle._given = idle.own_loss = None
    idle._repeating = False
    idle._batch_first = True
    return idle


def _has_forward_of_its_own(module: nn.Module) -> bool:
    forward = vars(module).get("forward")
    return forward is not None and getattr(forward, "__func__", None) is not original_class(module).forward


class _Token:
    """It can be referred to weakly."""


def _in_graph(output: Any, token: _Token) -> weakref.ref[_Token]:
    """The token lives as long as the graph of some tensor of the output."""
    for value in contents(output):
        if value.grad_fn is not None:
            value.grad_fn.metadata[_TOKEN] = token
    return weakref.ref(token)


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
        self._masking = masking(model)
        self._given: batch.Inputs | None = None  # of the last forward
        self._padding: tuple = ()  # of the last forward's examples
        self._repeating = False
        self._handles: list = []
        self._patched: list[nn.Module] = []
        self._replaced: list[tuple[nn.Module, str]] = []  # methods of instances
        self._guard = Guard(gathers=fsdp)
        # What a model's compiled forward calls, and what looks at tensors from outside of its graph.
        self._read, self._mark = torch.compiler.disable(self._read_arguments), torch.compiler.disable(self._mark_outputs)
        self._give_back = torch.compiler.disable(self._give_back_output)
        # Before fully_shard's own hook, which gathers parameters.
        self._handles.append(model.register_forward_pre_hook(self._meet, prepend=True, with_kwargs=True))
        self._handles.append(model.register_forward_pre_hook(self._before_forward, with_kwargs=True))
        self._handles.append(model.register_forward_hook(self._after_forward, always_call=True, with_kwargs=True))
        self._patch_layers(engine)
        self._guard_blocks(engine.layout, fsdp=fsdp)
        self.own_loss = OwnLoss(model, self._transformer, self.again, lambda: engine.ranks.device)
        for module in model.modules():
            if isinstance(module, nn.parallel.DistributedDataParallel):
                module.require_backward_grad_sync = False  # there is no gradient for its reducer to wait for

    def _patch_layers(self, engine: RecordingEngine) -> None:
        refuse_computed_weights(self._model)
        refuse_complex(engine.layout)
        covered: set[int] = set()
        for name, module in self._model.named_modules():
            if method := look_up_tables(module):
                self._replaced.append((module, method))
            whole = taken_whole(module)
            if id(module) in covered or not (whole or list(own_parameters(module))):
                continue
            rule = None if whole else rule_for(module)
            rule = scaled_rule(module) if rule is None and engine.ranks.model_ranks == 1 else rule
            if _has_forward_of_its_own(module):
                if any(parameter.requires_grad for _, parameter in own_parameters(module)):
                    raise ValueError(
                        f"{name} ({original_class(module).__name__}) has a forward of its own in the place of its class's: no rule "
                        "computes that. Make it the forward of a class (and register a rule, if it needs one), or freeze it"
                    )
                continue
            if rule is None:
                rule = per_example if instantiable(module) else beside_children if sharded_apart(module) else None
            if rule is None:
                warn_of_uncovered(name, module)
                continue
            if rule in WITH_CHILDREN:
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
        self.own_loss.detach()
        self._guard.remove()
        for module in self._patched:
            del module.forward
        self._patched.clear()
        for module, method in self._replaced:
            delattr(module, method)
        self._replaced.clear()

    def compare_own_loss(self) -> bool:
        """Whether this rank compared the model's own loss (own_loss.py); ValueError if it is not told apart."""
        given = None if self._engine is None else self._engine.inputs
        return given is not None and self.own_loss.compare(given)

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward within a backward, which records nothing and leaves the last forward's inputs as they are."""
        self._repeating = True
        try:
            return self._model(*args, **kwargs)
        finally:
            self._repeating = False

    def __reduce__(self) -> tuple:
        return _idle_patches, ()

    def _meet(self, _module: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        if self._engine is not None and not self._repeating:
            self._engine.meet()
        return None  # hooks that come before the batch is read are followed, like the loop

    def _read_arguments(self, args: tuple, kwargs: dict, owning: Collection[str], compiled: bool) -> tuple[tuple, dict]:
        engine = self._engine
        assert engine is not None
        engine.weights.begin_forward(tensors_in((args, kwargs)), recorded=engine.recording)
        self._padding = padding_of(batch.first_tensor(args, kwargs))
        if not engine.recording and adapters_are_off(self._model):  # a reference (DPO), which is followed like any other module
            return args, kwargs
        read = engine.provenance.read(args, kwargs, batch_first=self._batch_first, recording=engine.recording, owning=(*owning, *(_DIVISOR if self._transformer else ())))
        if compiled and engine.recording:  # functions in its graph are not followed
            engine.provenance.gave([each for module in self._model.modules() for each in vars(module).values() if isinstance(each, torch.Tensor)])
        return read

    def _mark_outputs(self, output: Any, taken: tuple = ()) -> None:
        """taken: the arguments that the forward had in the end."""
        assert self._engine is not None and self._given is not None
        self._engine.weights.end_forward()
        self._engine.provenance.taken(tensors_in(taken), tensors_in((self._given.args, self._given.kwargs)))
        self._engine.provenance.gave(output)
        self._engine.provenance.mark(output)
        self._given.finding = self._engine.provenance.latest
        self._given.token = _in_graph(output, self._given.token() or _Token())

    def _give_back_output(self, output: Any, loss_of: torch.Tensor | None = None) -> Any:
        """loss_of: the one among them that a loss was formed of already."""
        assert self._engine is not None and self._given is not None
        given_back = self._engine.provenance.give_back(output)
        if self._given.padding:
            self._given.outputs = nodes_of(given_back, self._given.dim) + nodes_of(output, self._given.dim, loss_of) * (loss_of is not None)
        return given_back

    def _before_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        if self._repeating:
            return None
        engine = self._engine
        if engine is not None and engine.recording and self._transformer is not None:
            kwargs = batch.without_divisor(module, kwargs)
            refuse_masks(self._masking)
            refuse_noise(self._transformer)
        keywords = packing.keywords_of(module, kwargs)
        if engine is not None:
            args, kwargs = self._read(args, kwargs, keywords.says, torch.compiler.is_compiling())
        given = self._given = batch.read(
            module, self._transformer, args, kwargs, keywords, batch_first=self._batch_first,
            recording=engine is not None and engine.recording, keeps_labels=engine is not None and self.own_loss.keeps_labels,
            entries={} if engine is None else engine.provenance.entries,
        )  # fmt: skip
        if engine is not None:
            if engine.recording:
                given.padding, given.listed, given.buffers = self._padding, engine.provenance.listed, engine.weights.buffers.before
                given.own = engine.provenance.own
                self.own_loss.begin(given)
            engine.begin_forward(given)
        return given.args, given.kwargs

    def _after_forward(self, _module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        if self._repeating:
            return output
        engine, given = self._engine, self._given
        if engine is not None:
            engine.end_forward()
        if output is None:
            return None
        output = given.output_of_units(output)
        output = mapped(as_output, output)
        given.nobodys = joined(output) if given.of_nobody and engine is not None and engine.recording else None
        if engine is None or not engine.recording:
            if engine is not None:
                engine.weights.end_forward()
            return output
        self._mark(output, (args, kwargs))
        losses = None if self._transformer is None else self.own_loss.losses(output, given, engine.loss_reduction)
        if losses is None:
            return self._give_back(output)
        self._mark(losses)
        given.own_losses = leave_own_losses_beside(losses)
        output = self._give_back(output, logits_of(output))
        output["loss"] = PrivateLoss(engine, losses, engine.loss_reduction)
        if hasattr(output, "move_to_end"):
            output.move_to_end("loss", last=False)  # outputs[0] is the loss, as where the model forms it
        return output


__all__ = ["PatchedModel"]
