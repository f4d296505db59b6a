"""A model while it is private: rules in the place of its layers' forwards, the guard, and hooks around its own forward."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .. import _native
from . import batch, packing
from .adapters import adapters_are_off
from .checks.as_recorded import Ran
from .checks.by_gradients import NEARER, broadcasts_buffers
from .checks.guard import Guard, warn_of_uncovered
from .checks.left_beside import leave_own_losses_beside
from .checks.padded_gradients import mark_nodes
from .checks.padding import padding_of
from .checks.parameters import refuse_complex
from .checks.set_aside import SetAside
from .checks.state import marks_of
from .checks.values import Repeat
from .handed_in import HandedIn
from .layout import Layout, original_class, own_parameters
from .loss import PrivateLoss
from .nobody import joined
from .own_loss import OwnLoss
from .patched_forward import PatchedForward
from .provenance import Drawn
from .recording import RecordingEngine
from .rules import WITH_CHILDREN, beside_children, instantiable, look_up_tables, of_one_kind, per_example, refuse_computed_weights, rule_for, scaled_rule, sharded_apart, taken_whole  # fmt: skip
from .settled import as_output
from .spec_augment import masking, refuse_masks, refuse_noise
from .tensor_trees import mapped, tensors_in
from .tokens import in_graph
from .transformers_losses import logits_of
from .uncompiled import Held

_LOOKED_ON = 3  # forwards: a model that keeps something does so from the first on
_DIVISOR = ("num_items_in_batch",)  # of Transformers' own losses, in whose place ours are formed


def _idle_patches() -> PatchedModel:
    """Of a model that was copied, or saved whole: it is not private, so its hooks belong to an object that knows no engine."""
    idle = object.__new__(PatchedModel)
    idle._engine = idle._transformer = idle._given = idle.own_loss = None
    idle.repeating = False
    idle._batch_first = True
    idle._uncompiled, idle._traced = Held(), 0
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
        self._native = _native.load("engine")
        self._model = model
        self._batch_first = engine.batch_first
        # The Hugging Face model in it (a PEFT model holds one), if any.
        self._transformer = next((module for module in model.modules() if "loss_type" in vars(module)), None)
        self._masking = masking(model)
        self._given: batch.Inputs | None = None  # of the last forward
        self._padding: tuple = ()  # of the last forward's examples
        self.repeating = self._divided = self._keeps = False
        self.trace: Any = None  # of the forward that was repeated last
        self._uncompiled = Held()  # within a forward, of which compiled parts run as they were written
        self._traced = 0  # the number of its operations' trace, if a forward is under way
        self._looked_on, self._marks = 0, None  # recorded forwards whose attributes were compared, and what they were before the one at hand
        self.aside, self._alone = SetAside(model), not (fsdp or engine.ranks.model_ranks > 1 or broadcasts_buffers(model))  # a forward of this rank is no collective
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
                if module.static_graph:
                    raise ValueError("DistributedDataParallel(static_graph=True) waits for gradients that a private step does not form: leave static_graph out")
                module.require_backward_grad_sync = False  # there is no gradient for its reducer to wait for

    def _patch_layers(self, engine: RecordingEngine) -> None:
        refuse_computed_weights(self._model)
        refuse_complex(engine.layout)
        covered: set[int] = set()
        ruled: list[tuple[str, nn.Module, Any]] = []
        for name, module in self._model.named_modules():
            if id(module) not in covered and (method := look_up_tables(module)):
                self._replaced.append((module, method))
            whole = taken_whole(module)
            rule = None if whole else rule_for(module)
            if id(module) in covered or not (whole or rule in WITH_CHILDREN or list(own_parameters(module))):
                continue
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
            ruled.append((name, module, rule))
        for name, module, rule in of_one_kind(ruled):
            module.forward = PatchedForward(engine, name, module, rule, self._guard)
            self._patched.append(module)

    def _guard_blocks(self, layout: Layout, *, fsdp: bool) -> None:
        # A block's parameters are plain tensors once FSDP2's own hook, which comes first, has gathered them.
        for number, block in enumerate(layout.blocks):
            slots = [(slot, entry) for entry in layout.parameters if entry.block == number for slot in entry.slots]
            if not fsdp:
                self._guard(slots)
            module = self._model.get_submodule("" if block == "model" else block) if fsdp else self._model
            if fsdp:  # what it gathers differs from forward to forward
                self._handles.append(module.register_forward_pre_hook(self._leave_out, prepend=True))
                self._handles.append(module.register_forward_hook(self._leave_out, prepend=True))
            self._handles.append(module.register_forward_pre_hook(functools.partial(self._guard, slots)))
            if fsdp:
                self._handles.append(module.register_forward_pre_hook(self._go_on))
                self._handles.append(module.register_forward_hook(self._go_on))

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """Gradients of the parameters can be taken, of forwards that are repeated: activation checkpointing repeats their layers, too."""
        with self._guard.paused(), self._repeats():
            yield

    @contextmanager
    def _repeats(self) -> Iterator[None]:
        before, self.repeating = self.repeating, True
        try:
            yield
        finally:
            self.repeating = before

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
        with self._repeats():
            return self._model(*args, **kwargs)

    def _with_others(self, given: Any) -> Any:
        """The forward with other inputs, in the place of all."""
        given = given if given.examples is not None else replace(given, examples=batch.first_tensor(given.args, given.kwargs))
        args, kwargs = Repeat(self._model, self.again, lambda: None, given, self._engine.ranks.device).exchanged(torch.ones(given.units, dtype=torch.bool), mirrored=NEARER)
        return self.again(*args, **kwargs)

    def __reduce__(self) -> tuple:
        return _idle_patches, ()

    def _meet(self, _module: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        engine = self._engine
        if engine is not None and not torch.compiler.is_compiling():
            engine.run.thread.check()
        if engine is not None and (engine.recording or self.repeating):
            self._uncompiled.take()
        if engine is not None and not self.repeating:
            if not torch.compiler.is_compiling():
                engine.run.thread.begin_forward()
            engine.meet((args, kwargs))
        return None  # hooks that come before the batch is read are followed, like the loop

    def _leave_out(self, *_: Any) -> None:
        self._native.leave_out(0)

    def _go_on(self, *_: Any) -> None:
        self._native.go_on()

    def _begin_trace(self) -> None:
        self._end_trace()  # of a forward that an interrupt ended: no hook came after it
        if not torch.compiler.is_compiling():
            self._traced = self._native.begin_trace()

    def _end_trace(self) -> Any:
        traced, self._traced = self._traced, 0
        return self._native.end_trace(traced) if traced else None

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
        if (handed := self._given.handed) is not None:
            self._engine.provenance.taken(tensors_in(taken), tensors_in((handed.args, handed.kwargs)), handed.written)
        self._engine.provenance.gave(output)
        self._engine.provenance.mark(output)
        self._given.finding = self._engine.provenance.latest
        if (attribution := self._engine.sessions.attribution) is not None:
            attribution.look_at_forward(self._model, self._given, output)
        self._given.token = in_graph(output, self._given.token())

    def _give_back_output(self, output: Any, loss_of: torch.Tensor | None = None) -> Any:
        """loss_of: the one among them that a loss was formed of already."""
        assert self._engine is not None and self._given is not None
        given_back = self._engine.provenance.give_back(output)
        if self._engine.sessions.checked:
            mark_nodes(self._given.forward, given_back, self._given.dim)
            if loss_of is not None:
                mark_nodes(self._given.forward, output, self._given.dim, loss_of)
        return given_back

    def _before_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        if self.repeating:
            handed = HandedIn(args, kwargs)
            self._begin_trace()
            return handed.args, handed.kwargs
        engine = self._engine
        if engine is not None and engine.recording and self._transformer is not None:
            given_by_a_trainer, kwargs = kwargs, batch.without_divisor(module, kwargs)
            self._divided = given_by_a_trainer is not kwargs
            refuse_masks(self._masking)
            refuse_noise(self._transformer)
        keywords, private = packing.keywords_of(module, kwargs), any(isinstance(each, Drawn) for each in tensors_in((args, kwargs)))
        if engine is not None:
            args, kwargs = self._read(args, kwargs, keywords.says, torch.compiler.is_compiling())
        given = self._given = batch.read(
            module, self._transformer, args, kwargs, keywords, batch_first=self._batch_first,
            recording=engine is not None and engine.recording, keeps_labels=engine is not None and engine.recording and self.own_loss.keeps_labels(kwargs),
            entries={} if engine is None else engine.provenance.entries,
        )  # fmt: skip
        if engine is not None:
            if engine.recording:
                engine.sessions.alike.forward(engine.ranks.device)
                given.padding, given.listed, given.buffers = self._padding, engine.provenance.listed, engine.weights.buffers.before
                given.own, given.divided, given.known_lengths = engine.provenance.own, self._divided, engine.provenance.lengths
                given.set_aside = self.aside.followed
                looks_on = self._looked_on < _LOOKED_ON and not self._keeps and not torch.compiler.is_compiling()
                self._marks = marks_of(self._model) if looks_on else None
                given.hand_in()
                engine.provenance.hand_in(given.own)
                self.own_loss.begin(given)
            if self._alone and not torch.compiler.is_compiling() and (self._marks is not None or (not engine.recording and private)):
                self.aside.begin_forward()
            engine.begin_forward(given)
            if engine.recording:
                given.ran = Ran.begun(engine.ranks.device)
                self._begin_trace()
        return (given.args, given.kwargs) if given.handed is None else (given.handed.args, given.handed.kwargs)

    def _after_forward(self, _module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        if self._engine is not None and not torch.compiler.is_compiling() and self._engine.run.thread.is_anothers():
            return output  # of a call that was refused: this hook is always called
        self._uncompiled.let_go()
        trace = self._end_trace()
        if self.repeating:
            self.trace = trace
            return output
        engine, given = self._engine, self._given
        if engine is not None:
            engine.end_forward()
            if not torch.compiler.is_compiling():
                engine.run.thread.end_forward()
        if output is None:
            return None
        if engine is not None and not torch.compiler.is_compiling():
            self.aside.end_forward(lambda: self._with_others(given), engine.ranks.device)
        output = given.output_of_units(output)
        output = mapped(as_output, output)
        given.nobodys = joined(output) if given.of_nobody and engine is not None and engine.recording else None
        if engine is None or not engine.recording:
            if engine is not None:
                engine.weights.end_forward()
            return output
        if self._marks is not None:
            self._looked_on, self._keeps, self._marks = self._looked_on + 1, marks_of(self._model) != self._marks, None
        given.keeps = self._keeps
        if trace is None:
            given.ran = None
        else:
            given.ran.ended(trace)
        self._mark(output, (args, kwargs))
        losses = None if self._transformer is None else self.own_loss.losses(output, given, engine.loss_reduction)
        given.end_forward()
        if losses is None:
            return self._give_back(output)
        self._mark(losses)
        given.own_losses = leave_own_losses_beside(losses)
        given.note_losses(losses)
        output = self._give_back(output, logits_of(output))
        output["loss"] = PrivateLoss(engine, losses, engine.loss_reduction)
        if hasattr(output, "move_to_end"):
            output.move_to_end("loss", last=False)  # outputs[0] is the loss, as where the model forms it
        return output


__all__ = ["PatchedModel"]
