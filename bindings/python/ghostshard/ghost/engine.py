"""A model whose trainable layers record instead of accumulating gradients; see dp/run/session.h for what happens below.

One forward and one backward per microbatch. `backward()` clips each unit's gradient over all layers and reduces the sum
onto the noise at once; `release()` ends the logical batch and puts the noised mean into `.grad`. No gradient without
noise ever reaches Python, an optimizer or another rank's memory as a whole.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from .. import _native
from . import batch as inputs
from .checks.gradients import AttributionCheck
from .checks.guard import Guard, warn_of_uncovered
from .layout import Layout, own_parameters, read_layout
from .loss import PrivateLoss, loss_of_transformers
from .packing import Packing
from .device import computed_on, device_of
from .ranks import Ranks, ranks_of
from .rules import layers as rules
from .checks.values import Repeat


class GhostEngine:
    """Patches `model` in place; `detach()` undoes it.

    Args:
        model: plain, in DistributedDataParallel, or sharded by `fully_shard` (FSDP2).
        batch_first: where the units stand in layer inputs: the first dimension, or the second.
        memory_budget: bytes that a microbatch may record until it is clipped (dp/run/session.h). None: per-unit gradients up
            to 1 GiB and whatever rows it takes. Where a step took more, later ones go backward twice.
        accumulate: sum a logical batch's microbatches on the rank (float32, whole) and reduce once, instead of reducing
            each: less traffic, more memory.
        attribution_check: watch the first backwards for gradients that reach other units' rows (ghost/attribution.py).
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        memory_budget: int | None = None,
        accumulate: bool = False,
        clipping: str = "flat",
        attribution_check: bool = True,
    ):
        if clipping not in ("flat", "per_layer"):
            raise ValueError(f"clipping must be 'flat' or 'per_layer', got {clipping!r}")
        self.model = model
        self.batch_first = batch_first
        self.loss_reduction = loss_reduction
        if memory_budget is not None and not memory_budget >= 0:
            raise ValueError(f"memory_budget must be a number of bytes, 0 or more, got {memory_budget!r}")
        self.memory_budget = None if memory_budget is None else int(memory_budget)
        self.accumulate = accumulate
        self.clipping = clipping
        self.attribution_check = attribution_check
        self.fsdp = isinstance(model, FSDPModule)
        self.layout: Layout = read_layout(model, fsdp=self.fsdp)
        self.ranks: Ranks = ranks_of(model, self.layout, fsdp=self.fsdp)
        # The Hugging Face model in it (a PEFT model holds one), if any.
        self._transformer = next((module for module in model.modules() if hasattr(module, "loss_type")), None)
        self._session: Any = None
        self._attribution: AttributionCheck | None = None
        self._trainable: tuple[bool, ...] = ()
        self._constants: tuple[float, float] = (1.0, 1.0)  # sampling rate, divisor
        self._terms: Callable[[], tuple[float, float]] | None = None
        self._generator: torch.Generator | None = None
        self._next = (0, 0)  # step and attempt that the next logical batch is charged as
        self._attempts: list[tuple[int, int]] = []  # of later steps that the ledger has charged before
        self._run_id = ""  # sets a resumed run's noise apart, where the key comes from a generator
        self._stopped: str | None = None
        self._ledger: tuple[str, str] | None = None
        self._ledger_open = False
        self._in_forward = False
        self._inputs: inputs.Inputs | None = None  # of the last forward
        self._begun: inputs.Inputs | None = None  # of the last that began a microbatch; None: a layer called on its own
        self._repeating = False
        self._enabled = True
        self._handles: list = []
        self._patched: list[nn.Module] = []
        self._guard = Guard(gathers=self.fsdp)
        self._patch()

    # What the privacy engine sets -----------------------------------------------------------------------------------

    def set_constants(
        self,
        *,
        sampling_rate: float,
        divisor: float,
        terms: Callable[[], tuple[float, float]],
        generator: torch.Generator | None,
    ) -> None:
        """terms() gives (clip norm, noise multiplier) whenever a logical batch begins."""
        self._constants = (sampling_rate, divisor)
        self._terms = terms
        self._generator = generator
        self._drop_session()

    def attach_ledger(self, path: str, header: dict) -> None:
        """Write-ahead: every release is on disk before its gradient is seen. Rank 0 writes."""
        if self._ledger is not None:
            raise ValueError(f"a ledger is attached already: {self._ledger[0]}")
        self._ledger = (path, json.dumps(header))
        self._drop_session()

    @property
    def next_step(self) -> tuple[int, int]:
        """Step and attempt that the next logical batch is charged as. RuntimeError within one."""
        if self._session is not None and self._session.open:
            raise RuntimeError(
                "a checkpoint is taken and loaded between steps: a logical batch is under way, call optimizer.step() or "
                "optimizer.zero_grad() first"
            )
        return self._next if self._session is None else self._session.next

    @property
    def ledger_is_open(self) -> bool:
        """Its file is there, begun or gone on with by this run."""
        return self._ledger_open

    @property
    def terms(self) -> tuple[float, float]:
        """Clip norm and noise multiplier, as they stand."""
        assert self._terms is not None
        return self._terms()

    @property
    def sampling_rate(self) -> float:
        return self._constants[0]

    def let_go_of_ledger(self) -> None:
        """So that it can be read, and locked anew by whoever goes on with it."""
        _ = self.next_step  # not within a logical batch
        self._drop_session()

    def resume(self, step: int, attempts: list[tuple[int, int]], *, ledger_open: bool) -> None:
        """Goes on at `step` under a new key. attempts: steps from there on that the ledger has charged, and the first
        attempt each may be now."""
        _ = self.next_step  # not within a logical batch
        self._drop_session()
        self._attempts = attempts
        self._next = (step, dict(attempts).get(step, 0))
        self._run_id = os.urandom(16).hex()
        self._ledger_open = ledger_open

    def stop(self, reason: str | None) -> None:
        """No step is taken from here on, with this sentence (None: go on)."""
        self._stopped = reason

    # Forward --------------------------------------------------------------------------------------------------------

    @property
    def recording(self) -> bool:
        """A trainable layer called now is part of a private step."""
        return self._enabled and torch.is_grad_enabled()

    @property
    def session(self) -> Any:
        return self._session

    @property
    def packing(self) -> Packing | None:
        """How the last forward's batch was packed."""
        return None if self._inputs is None else self._inputs.packing

    def begin(self, units: int) -> None:
        self._prepare_session()
        self._session.begin_microbatch(units)

    def _begin(self, given: inputs.Inputs) -> None:
        self._prepare_session()
        if given.packing is None or given.units == 0:
            self._session.begin_microbatch(max(given.units, 1))  # a placeholder stands for none
        else:
            self._session.begin_packed(*given.packing.described())
        self._begun = given

    def units_of(self, x: torch.Tensor) -> int:
        """How many units this forward is over; a layer called on its own says so by its input."""
        packed = self._begun is not None and self._begun.packing is not None
        begun = self._session is not None and self._session.units >= 0
        if not begun or not (self._in_forward or packed):
            self._inputs = self._begun = None
            self.begin(x.shape[0 if self.batch_first or x.dim() < 2 else 1])
        return self._session.units

    def _prepare_session(self) -> None:
        if self._stopped is not None:
            raise RuntimeError(self._stopped)
        trainable = self.layout.trainable()
        stays = computed_on(self.layout.parameters[0].parameter) == self.ranks.device
        if self._session is not None and trainable == self._trainable and stays:
            return
        if self._session is not None and self._session.open:
            raise RuntimeError(
                "parameters may be frozen, unfrozen or moved to another device between steps, not between the backwards of one "
                "logical batch"
            )
        if not stays:
            self._follow()
        if self._terms is None:
            raise RuntimeError("the model belongs to no optimizer yet: make_private() gives it one")
        self._drop_session()
        if not any(trainable):
            raise ValueError("the model has no trainable parameter")
        rate, divisor = self._constants
        key = None if self._generator is None else bytes(32)  # renewed with every logical batch
        self._session = _native.load("engine").Session(
            blocks=self.layout.specs(),
            mesh=self.ranks.shape,
            rank=self.ranks.rank,
            groups=list(self.ranks.groups),
            device=self.ranks.device,
            sampling_rate=rate,
            divisor=divisor,
            per_layer=self.clipping == "per_layer",
            streamed=not self.accumulate,
            memory_budget=self.memory_budget,
            key=key,
            run_id=self._run_id,
            first=self._next,
            attempts=self._attempts,
        )
        self._trainable = trainable
        if self.attribution_check:
            names = [entry.name for entry in self.layout.parameters]
            self._attribution = AttributionCheck(self.ranks.control, names)
        if self._ledger is not None:
            path, header = self._ledger
            if self.ranks.rank == 0:
                self._session.attach_ledger(path, header, self._ledger_open)
            self._ledger_open = True

    def _follow(self) -> None:
        """The model was moved since it was made private."""
        before, now = self.ranks.device, device_of(self.layout)
        if self.ranks.control is not None:
            raise ValueError(
                f"on several ranks a model is moved to its device before make_private(), this one was on {before} then and is "
                f"on {now}"
            )
        self.ranks.device = now

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.abandon()
            self._next = self._session.next
            _native.load("engine").give_back_idle_memory()
        self._session = None

    # Backward and step ----------------------------------------------------------------------------------------------

    def backward(self, loss_per_unit: torch.Tensor) -> None:
        """The backward of a microbatch: [units] losses, one backward of their sum, then clipping and reduction."""
        session = self._session
        if session is None or session.units < 0:
            raise RuntimeError("backward() needs a forward of the private model with gradients enabled before it")
        given, self._begun = self._begun, None
        if isinstance(loss_per_unit, DTensor):
            session.give_up_microbatch()
            raise ValueError(
                "losses must be plain tensors, whole on every rank of the tensor-parallel axis: give the last layer "
                "ColwiseParallel(output_layouts=Replicate())"
            )
        units = session.units if given is None else given.units
        if loss_per_unit.dim() != 1 or loss_per_unit.shape[0] != units:
            session.give_up_microbatch()
            raise ValueError(
                f"a private step needs one loss for each of the {units} units of the batch, got shape "
                f"{tuple(loss_per_unit.shape)}"
            )
        self._in_forward = True  # activation checkpointing runs layers again, of the same microbatch
        try:
            if self._attribution is not None:
                again = None if given is None else Repeat(self._again, given, self.ranks.device)
                self._attribution(session, loss_per_unit, again)
            self._open(session)
            loss = loss_per_unit.sum()
            loss.backward(retain_graph=session.takes_two_passes)
            if session.second_pass():
                loss.backward()
        except BaseException as error:
            session.give_up_microbatch()
            if "a tape serves one backward pass" in str(error):
                raise RuntimeError(
                    "layers ran a backward of their own within this backward, as activation checkpointing with "
                    "use_reentrant=True does: their norms would not be of one example. Pass use_reentrant=False to "
                    "torch.utils.checkpoint, or gradient_checkpointing_kwargs={'use_reentrant': False} to Hugging Face's "
                    "gradient_checkpointing_enable; nothing of this backward was kept"
                ) from error
            raise
        finally:
            self._in_forward = False
        session.clip()

    def _open(self, session: Any) -> None:
        if not session.open:
            clip_norm, noise_multiplier = self._terms()
            session.set_terms(clip_norm, noise_multiplier)
            if self._generator is not None:
                session.renew_noise_key(_bytes_of(self._generator))
            self._begun_with = (clip_norm, noise_multiplier)

    def release(self) -> None:
        """Ends the logical batch; the noised mean goes into `.grad` of every trainable parameter."""
        session = self._session
        if session is None or not session.open:
            raise RuntimeError("step() needs a backward() since the last step: nothing can be released twice")
        if self._terms() != self._begun_with:
            begun, now = self._begun_with, self._terms()
            raise RuntimeError(
                "clip norm and noise multiplier may change between logical batches, not within one: this one began "
                f"with {begun}, now they are {now}"
            )
        for entry, own in zip(self.layout.parameters, session.release()):
            if own is not None and entry.parameter.requires_grad:
                entry.set_gradient(own)

    def abandon(self) -> None:
        """Drops the logical batch. If a backward was part of it, it stays charged."""
        if self._session is not None:
            self._session.abandon()

    @property
    def bytes_sent(self) -> int:
        """Gradient bytes this rank has sent."""
        return 0 if self._session is None else self._session.bytes_sent

    # Patching -------------------------------------------------------------------------------------------------------

    def enable(self, enabled: bool = True) -> None:
        self._enabled = self._guard.enabled = enabled

    def _patch(self) -> None:
        model = self.model
        self._handles.append(model.register_forward_pre_hook(self._before_forward, with_kwargs=True))
        self._handles.append(model.register_forward_hook(self._after_forward, always_call=True))
        covered: set[int] = set()
        for name, module in model.named_modules():
            if id(module) in covered or not list(own_parameters(module)):
                continue
            rule = rules.rule_for(module)
            if rule is None:
                if not rules.instantiable(module):
                    warn_of_uncovered(name, module)
                    continue
                rule = rules.per_example  # with all its children
                covered.update(id(each) for each in module.modules())
            module.forward = rules.PatchedForward(self, name, module, rule)
            self._patched.append(module)
        # A block's parameters are plain tensors once FSDP2's own hook, which comes first, has gathered them.
        for number, block in enumerate(self.layout.blocks):
            slots = [
                (slot, entry) for entry in self.layout.parameters if entry.block == number for slot in entry.slots
            ]
            module = model.get_submodule("" if block == "model" else block) if self.fsdp else model
            self._handles.append(module.register_forward_pre_hook(functools.partial(self._guard, slots)))
        for module in model.modules():
            if isinstance(module, nn.parallel.DistributedDataParallel):
                module.require_backward_grad_sync = False  # there is no gradient for its reducer to wait for

    def __deepcopy__(self, memo: dict) -> GhostEngine:
        """A copied model is not private: its hooks come to an engine that does nothing."""
        idle = object.__new__(GhostEngine)
        idle._enabled = False
        idle._inputs = None
        idle._transformer = None
        idle._repeating = False
        idle.batch_first = True
        return idle

    def _before_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        if self._repeating:
            return None
        given = self._inputs = inputs.read(
            module, self._transformer, args, kwargs, batch_first=self.batch_first, recording=self.recording
        )
        if self._enabled and self._session is not None:
            # What the last backward's messages took. They come again when this forward's activations have gone.
            _native.load("engine").give_back_idle_memory()
        if self.recording:
            self._begin(given)
            self._in_forward = True
        return given.args, given.kwargs

    def _again(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward within a backward, beside what was recorded."""
        self._repeating = True
        try:
            return self.model(*args, **kwargs)
        finally:
            self._repeating = False

    def _after_forward(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        if self._repeating:
            return output
        self._in_forward = False
        if output is None:
            return None
        given = self._inputs
        output = given.output_of_units(output)
        if given.labels is None:
            return output
        if not hasattr(output, "logits"):
            raise ValueError("labels with return_dict=False: the model's loss needs its output by name")
        losses = loss_of_transformers(self._transformer, output, given.labels, self.loss_reduction, given.packing)
        output["loss"] = PrivateLoss(self, losses, self.loss_reduction)
        return output

    def detach(self) -> None:
        """Leaves the model as it was."""
        self._drop_session()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._guard.remove()
        for module in self._patched:
            del module.forward
        self._patched.clear()


def _bytes_of(generator: torch.Generator) -> bytes:
    drawn = torch.randint(0, 256, (32,), dtype=torch.uint8, generator=generator, device=generator.device)
    return bytes(drawn.tolist())


__all__ = ["GhostEngine"]
