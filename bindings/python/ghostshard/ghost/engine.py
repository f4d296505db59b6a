"""A model whose trainable layers record instead of accumulating gradients; see dp/session.h for what happens below.

One forward and one backward per microbatch. `backward()` clips each unit's gradient over all layers and reduces the sum
onto the noise at once; `release()` ends the logical batch and puts the noised mean into `.grad`. No gradient without
noise ever reaches Python, an optimizer or another rank's memory as a whole.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from .. import _native
from . import rules
from .layout import (
    Layout,
    ParameterEntry,
    Ranks,
    Slot,
    own_parameters,
    ranks_of_fsdp,
    ranks_of_replicas,
    read_layout,
)
from .loss import PrivateLoss, loss_of_transformers

_HOLD_MEMORY = 1 << 30


class GhostEngine:
    """Patches `model` in place; `detach()` undoes it.

    Args:
        model: plain, in DistributedDataParallel, or sharded by `fully_shard` (FSDP2).
        batch_first: where the units stand in layer inputs: the first dimension, or the second.
        memory_budget: bytes for per-unit gradients that are kept between backward and clipping.
        accumulate: sum a logical batch's microbatches on the rank (float32, whole) and reduce once, instead of reducing
            each: less traffic, more memory.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        memory_budget: int = _HOLD_MEMORY,
        accumulate: bool = False,
        clipping: str = "flat",
    ):
        if clipping not in ("flat", "per_layer"):
            raise ValueError(f"clipping must be 'flat' or 'per_layer', got {clipping!r}")
        self.model = model
        self.batch_first = batch_first
        self.loss_reduction = loss_reduction
        self.memory_budget = int(memory_budget)
        self.accumulate = accumulate
        self.clipping = clipping
        self.fsdp = isinstance(model, FSDPModule)
        replicated = not self.fsdp and _is_replicated(model)
        self.layout: Layout = read_layout(model, fsdp=self.fsdp)
        self.ranks: Ranks = ranks_of_fsdp(self.layout) if self.fsdp else ranks_of_replicas() if replicated else Ranks()
        # The Hugging Face model in it (a PEFT model holds one), if any.
        self._transformer = next((module for module in model.modules() if hasattr(module, "loss_type")), None)
        self._session: Any = None
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
        self._labels: torch.Tensor | None = None
        self._placeholder = False
        self._enabled = True
        self._handles: list = []
        self._patched: list[nn.Module] = []
        self._guarded: dict[int, torch.Tensor] = {}
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

    def begin(self, units: int) -> None:
        self._prepare_session()
        self._session.begin_microbatch(units)

    def units_of(self, x: torch.Tensor) -> int:
        """How many units this forward is over; a layer called on its own says so by its input."""
        if not self._in_forward or self._session is None or self._session.units < 0:
            self.begin(x.shape[0 if self.batch_first or x.dim() < 2 else 1])
        return self._session.units

    def _prepare_session(self) -> None:
        if self._stopped is not None:
            raise RuntimeError(self._stopped)
        trainable = self.layout.trainable()
        if self._session is not None and trainable == self._trainable:
            return
        if self._session is not None and self._session.open:
            raise RuntimeError(
                "parameters may be frozen or unfrozen between steps, not between the backwards of one logical batch"
            )
        if self._terms is None:
            raise RuntimeError("the model belongs to no optimizer yet: make_private() gives it one")
        self._drop_session()
        if not any(trainable):
            raise ValueError("the model has no trainable parameter")
        rate, divisor = self._constants
        key = None
        if self._generator is not None:
            key = bytes(32)  # renewed with every logical batch
        self._session = _native.load("engine").Session(
            units=self.layout.specs(),
            mesh=self.ranks.shape,
            rank=self.ranks.rank,
            groups=list(self.ranks.groups),
            sampling_rate=rate,
            divisor=divisor,
            per_layer=self.clipping == "per_layer",
            reduce_each=not self.accumulate,
            hold_memory_bytes=self.memory_budget,
            key=key,
            run_id=self._run_id,
            first=self._next,
            attempts=self._attempts,
        )
        self._trainable = trainable
        if self._ledger is not None:
            path, header = self._ledger
            if self.ranks.rank == 0:
                self._session.attach_ledger(path, header, self._ledger_open)
            self._ledger_open = True

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.abandon()
            self._next = self._session.next
        self._session = None

    # Backward and step ----------------------------------------------------------------------------------------------

    def backward(self, loss_per_unit: torch.Tensor) -> None:
        """The backward of a microbatch: [units] losses, one backward of their sum, then clipping and reduction."""
        session = self._session
        if session is None or session.units < 0:
            raise RuntimeError("backward() needs a forward of the private model with gradients enabled before it")
        units = 0 if self._placeholder else session.units
        if loss_per_unit.dim() != 1 or loss_per_unit.shape[0] != units:
            session.give_up_microbatch()
            raise ValueError(
                f"a private step needs one loss for each of the {units} units of the batch, got shape "
                f"{tuple(loss_per_unit.shape)}"
            )
        if not session.open:
            clip_norm, noise_multiplier = self._terms()
            session.set_terms(clip_norm, noise_multiplier)
            if self._generator is not None:
                session.renew_noise_key(_bytes_of(self._generator))
            self._begun_with = (clip_norm, noise_multiplier)
        self._in_forward = True  # activation checkpointing runs layers again, of the same microbatch
        try:
            loss_per_unit.sum().backward()
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
        owned = session.release()
        for entry, own in zip(self.layout.parameters, owned):
            parameter = entry.parameter
            if own is None or not parameter.requires_grad:
                continue
            if isinstance(parameter, DTensor):
                parameter.grad = DTensor.from_local(
                    own.view(-1, *parameter.shape[1:]).to(parameter.dtype),
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
            else:
                parameter.grad = own.view(parameter.shape).to(parameter.dtype)

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
        self._enabled = enabled

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
                    self._uncovered(name, module)
                    continue
                rule = rules.per_example  # with all its children
                covered.update(id(each) for each in module.modules())
            module.forward = rules.PatchedForward(self, name, module, rule)
            self._patched.append(module)
        # A unit's parameters are plain tensors once FSDP2's own hook, which comes first, has gathered them.
        for number, unit in enumerate(self.layout.units):
            slots = [
                (slot, entry) for entry in self.layout.parameters if entry.unit == number for slot in entry.slots
            ]
            module = model.get_submodule("" if unit == "model" else unit) if self.fsdp else model
            self._handles.append(module.register_forward_pre_hook(functools.partial(self._guard, slots)))
        for module in model.modules():
            if isinstance(module, nn.parallel.DistributedDataParallel):
                module.require_backward_grad_sync = False  # there is no gradient for its reducer to wait for

    def _uncovered(self, name: str, module: nn.Module) -> None:
        """Parameters without a rule stay with autograd; the guard stops a step that would give them a gradient."""
        own = [f"{name}.{own}" if name else own for own, parameter in own_parameters(module) if parameter.requires_grad]
        if own:
            warnings.warn(
                f"no rule gives per-example gradients of {', '.join(own)} ({type(module).__name__}): freeze them, or "
                "register a rule (ghostshard.register_rule); a backward that reaches them stops with an error",
                stacklevel=4,
            )

    def __deepcopy__(self, memo: dict) -> GhostEngine:
        """A copied model is not private: its hooks come to an engine that does nothing."""
        idle = object.__new__(GhostEngine)
        idle._enabled = False
        idle._labels = None
        idle._placeholder = False
        return idle

    def _guard(self, slots: list[tuple[Slot, ParameterEntry]], *_: Any) -> None:
        """A gradient that autograd itself forms would be un-noised: stop before it is stored."""
        if not self._enabled:
            return
        for slot, entry in slots:
            parameter = getattr(slot.module, slot.attribute)
            if isinstance(parameter, DTensor):
                continue
            wanted = entry.parameter.requires_grad
            if parameter.requires_grad != wanted:
                parameter.requires_grad_(wanted)
            if wanted and id(parameter) not in self._guarded:
                self._guarded[id(parameter)] = parameter
                self._handles.append(parameter.register_hook(self._refusal(entry.name)))

    def _refusal(self, name: str) -> Callable[[torch.Tensor], None]:
        def refuse(_: torch.Tensor) -> None:
            if self._enabled:
                raise RuntimeError(
                    f"parameter {name!r} was used outside of its own layer's forward, so it has no per-example "
                    "gradient; nothing of this backward was kept"
                )

        return refuse

    def _before_forward(self, _module: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        self._labels = None
        self._placeholder = False
        if not self.recording:
            return None
        first = _first_tensor(args, kwargs)
        if first is None:
            raise ValueError("the model's forward needs a tensor that tells how many examples the batch has")
        dim = 0 if self.batch_first or first.dim() < 2 else 1
        if kwargs.get("labels") is not None and self._transformer is not None:
            # Its own loss would be a mean over the tokens of all examples: ours is formed from the logits, one by one.
            self._labels = kwargs["labels"]
            kwargs = {name: value for name, value in kwargs.items() if name != "labels"}
        units = first.shape[dim]
        if units == 0:
            # Many a model cannot reshape a batch of none. One example of zeros takes its place, and nothing of its
            # output is handed on: all its gradients are zeros.
            self._placeholder = True
            args, kwargs = (_with_extent(value, dim, 0, 1) for value in (args, kwargs))
        self.begin(max(units, 1))
        self._in_forward = True
        return args, kwargs

    def _after_forward(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        self._in_forward = False
        if output is None:
            return None
        if self._placeholder:
            output = _with_extent(output, 0 if self.batch_first else 1, 1, 0)
        if self._labels is None:
            return output
        labels, self._labels = self._labels, None
        if not hasattr(output, "logits"):
            raise ValueError("labels with return_dict=False: the model's loss needs its output by name")
        losses = loss_of_transformers(self._transformer, output, labels, self.loss_reduction)
        output["loss"] = PrivateLoss(self, losses, self.loss_reduction)
        return output

    def detach(self) -> None:
        """Leaves the model as it was."""
        self._drop_session()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._guarded.clear()
        for module in self._patched:
            del module.forward
        self._patched.clear()


def _is_replicated(model: nn.Module) -> bool:
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return False
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

    replicas = (DifferentiallyPrivateDistributedDataParallel, nn.parallel.DistributedDataParallel)
    return any(isinstance(module, replicas) for module in model.modules())


# Names under which models take what a batch holds, the usual ones first.
_BATCH_NAMES = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")


def _first_tensor(args: tuple, kwargs: dict) -> torch.Tensor | None:
    for value in (*(kwargs[name] for name in _BATCH_NAMES if name in kwargs), *args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return value
        if isinstance(value, (list, tuple)):
            found = _first_tensor(tuple(value), {})
            if found is not None:
                return found
        if isinstance(value, dict):
            found = _first_tensor((), value)
            if found is not None:
                return found
    return None


def _with_extent(value: Any, dim: int, before: int, after: int) -> Any:
    """Every tensor in it of extent `before` at dim: its first `after` places there, or zeros for as many."""
    if isinstance(value, torch.Tensor):
        if value.dim() <= dim or value.shape[dim] != before:
            return value
        if after < before:
            return value.narrow(dim, 0, after)
        return value.new_zeros([after if i == dim else extent for i, extent in enumerate(value.shape)])
    if isinstance(value, dict):  # Hugging Face outputs are dicts, too
        changed = copy.copy(value)
        for name, each in value.items():
            changed[name] = _with_extent(each, dim, before, after)
        return changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_with_extent(each, dim, before, after) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_with_extent(each, dim, before, after) for each in value)
    return value


def _bytes_of(generator: torch.Generator) -> bytes:
    drawn = torch.randint(0, 256, (32,), dtype=torch.uint8, generator=generator, device=generator.device)
    return bytes(drawn.tolist())


__all__ = ["GhostEngine"]
