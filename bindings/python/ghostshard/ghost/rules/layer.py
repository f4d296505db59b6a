"""A layer as its rule sees it, and which rule a layer has.

A rule takes the place of a layer's forward. It must give what the layer gives, keep every parameter out of autograd and
report each use to the session (dp/run/session.h), which forms norms and sums in backward. A rule reads parameters from
the module at each call: under FSDP2 they are whole only then.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..autocast import dtype_of
from ..layout import original_class, own_parameters, plain_forward
from ..recording import RecordingEngine
from ..rows import rows_in_arguments, rows_of_each
from ..same_memory import has_rows_of
from ..shared import plain

SURE_AFTER = 3  # batches, each of another number of units, in which an extent was that number: then it is the units'
Rule = Callable[..., Any]  # rule(layer, *args, **kwargs) of the layer's forward

ROWS_OF_UNITS = (
    "A model may flatten [units, n, ...] to [units·n, ...] by view(), reshape() or flatten(0, 1) of an argument of its forward, or of what layers made of "
    "it row by row: then each example's rows stand together"
)


class Layer:
    """A rule's first argument: the module, its own forward, and the engine it reports to.

    Args:
        name: of the module within the model.
        with_children: the layer answers for its children's parameters too.
    """

    def __init__(self, engine: RecordingEngine, name: str, module: nn.Module, *, with_children: bool):
        self.engine = engine
        self.name = name
        self.module = module
        self.by_rows: bool | None = None  # how a convolution is recorded, once known
        self.compared = False  # with the layer's own output
        self.looped = False  # torch.func.vmap cannot follow it
        self.takes_places = False  # an embedding whose ids all units share
        self.sure_of: list[tuple[weakref.ref, int]] = []  # forwards whose graph may live, and the first extent of an input whose rows were certain
        self.turns = False  # rows were certain in batches whose extents tell the units' from others
        self.extents: dict[tuple[int, int], set[int]] = {}  # of units, by argument: as shared ones had them first (settled.py); 0 among them: others
        self.folds: dict[int, bool] = {}  # outputs [units · rows, ...], by number: each unit's rows stand together (folds.py)
        self.of_each: set[int] = set()  # outputs, by number, whose first extent is the units', not by chance (folds.py)
        self.shares: dict[int, int] = {}  # dimensions of square arguments that all units were seen to share (call.py)
        self.numbers: dict[str, int] = {}  # of parameters, by name within the module
        for name, _ in module.named_parameters() if with_children else own_parameters(module):
            path, _, attribute = name.rpartition(".")
            if (number := engine.layout.index(module.get_submodule(path), attribute)) >= 0:  # others have no elements
                self.numbers[name] = number

    @property
    def original(self) -> Callable[..., Any]:
        """The module's own forward, of the class that it is of now."""
        return plain_forward(self.module)

    @property
    def session(self) -> Any:
        return self.engine.session

    def number(self, attribute: str) -> int:
        """The parameter's number in the engine; -1 if the layer has none of that name."""
        return self.numbers.get(attribute, -1)

    def value(self, attribute: str) -> Any:
        """The values that the layer computes with on this rank: the parameter, gathered; under tensor parallelism this
        rank's part; None if the layer has none of that name."""
        value = local(getattr(self.module, attribute, None))
        summed_up = attribute == "bias" and isinstance(self.module, nn.Linear) and self.cut("weight") == 1
        if value is not None and summed_up and self.engine.ranks.model_rank > 0:
            return torch.zeros_like(value)  # the ranks' outputs are summed: the first adds the bias, all record it
        return value

    def cut(self, attribute: str) -> int:
        """The parameter's dimension that is cut over the tensor-parallel axis; -1: none."""
        number = self.number(attribute)
        return -1 if number < 0 else self.engine.layout.parameters[number].cut

    def padding_id(self) -> int:
        """An embedding's padding_idx, as a row of the table on this rank; -1: none."""
        padding = self.module.padding_idx
        if padding is None or self.cut("weight") != 0:
            return -1 if padding is None else padding
        rows = self.value("weight").shape[0]
        padding -= rows * self.engine.ranks.model_rank
        return padding if 0 <= padding < rows else -1

    def trainable(self) -> bool:
        entries = self.engine.layout.parameters
        return any(entries[number].parameter.requires_grad for number in self.numbers.values())

    def wanted(self, tape: Any) -> set[str]:
        """The parameters of which a backward must give per-unit gradients: the trainable ones. In a second pass there are
        none, because theirs are added already."""
        entries = self.engine.layout.parameters
        if tape.in_second_pass:
            return set()
        return {name for name, number in self.numbers.items() if entries[number].parameter.requires_grad}

    def units_first(self, x: torch.Tensor) -> torch.Tensor:
        """x with the units in its first dimension; begins a microbatch if the layer is called on its own."""
        self.engine.units_of(x)
        return x if self.engine.batch_first or x.dim() < 2 else x.transpose(0, 1)

    def units_at(self, dims: int) -> int:
        """The dimension of the units in a tensor of so many dimensions, as the layer itself takes it."""
        return 0 if self.engine.batch_first or dims < 2 else 1

    def as_given(self, y: torch.Tensor) -> torch.Tensor:
        """The reverse of units_first(), in memory as the layer itself gives it: models take a view of its rows (`decoded.view(-1, words)`)."""
        return y if self.engine.batch_first or y.dim() < 2 else y.transpose(0, 1).contiguous()

    @property
    def packed(self) -> bool:
        """The batch's rows are texts laid end to end. (units= joins rows that the layer takes as it takes examples.)"""
        packing = self.engine.packing
        return packing is not None and not packing.whole

    def rows(self, x: torch.Tensor | None = None) -> int:
        """Of the batch: its units, or with units= their parts. x: the layer's input, which begins a microbatch if the layer is called on
        its own."""
        units = self.session.units if x is None else self.engine.units_of(x)
        owners = self.owners()
        return units if owners is None else len(owners)

    def is_own(self, value: torch.Tensor) -> bool:
        """Whether it is an argument of the forward at hand that is known to have a row for each unit, or a column of one."""
        given = self.engine.inputs
        return given is not None and not torch.compiler.is_compiling() and any(has_rows_of(value, each) for each in given.own)

    def parts(self, x: torch.Tensor) -> int:
        """How many rows, one after another, each unit has in x [units · parts, ...], if the model flattened them and their order is certain
        (rows.py); otherwise 1."""
        engine = self.engine
        if not (engine.batch_first and engine.in_forward) or self.packed or x.dim() == 0 or x.shape[0] == (units := self.rows(x)):
            return 1
        given = engine.inputs
        if given is None or torch.compiler.is_compiling():
            return rows_of_each(x, units) or 1
        if torch._C._current_graph_task_id() != -1:  # activation checkpointing: what its first forward was sure of
            sure = any(extent == x.shape[0] for forward, extent in self.sure_of if forward() is not None)
            return x.shape[0] // units if sure else 1
        found = rows_of_each(x, units) or rows_in_arguments(x, units, (given.args, given.kwargs) if given.handed is None else (given.handed.args, given.handed.kwargs))
        self.turns = self.turns or (units > 1 and found is not None)
        found = found or (self.turns and rows_of_each(x, units, turned=True)) or 1
        self.sure_of = [each for each in self.sure_of if each[0]() is not None]
        if found > 1:
            self.sure_of.append((weakref.ref(given), x.shape[0]))
        return found

    def folded(self, x: torch.Tensor, parts: int) -> torch.Tensor:
        """[units · parts, ...] as the session takes it, [units, parts, ...]. x itself if parts is 1."""
        return x if parts == 1 else x.unflatten(0, (-1, parts))

    def in_order(self, y: torch.Tensor, parts: int) -> torch.Tensor:
        """An output [units · parts, ...], so that the graph shows whose its rows are."""
        return y if parts == 1 else y.unflatten(0, (-1, parts)).flatten(0, 1)

    def owners(self, parts: int = 1) -> torch.Tensor | None:
        """The unit of each row of an input [units · parts, ...], in host memory, if units= or the model joins them; None if each is one."""
        packing = self.engine.packing
        owners = packing.unit_of_row if packing is not None and packing.whole and packing.units > 0 else None
        if parts == 1:
            return owners
        return (torch.arange(self.session.units) if owners is None else owners).repeat_interleave(parts)

    def instantiated(self, tape: Any, name: str, of_rows: torch.Tensor, owners: torch.Tensor | None) -> None:
        """Reports gradients [rows, ...] of a parameter; rows of one unit (owners, at the layer's forward) are added up."""
        if owners is not None:
            of_units = of_rows.new_zeros(self.session.units, *of_rows.shape[1:])
            of_rows = of_units.index_add_(0, owners.to(of_rows.device), of_rows)
        self.session.instantiated(tape, self.number(name), of_rows)

    def refuse_packed(self, reason: str = "places of several examples would meet in it") -> None:
        """ValueError if the batch is packed, for a layer that takes one example to a row."""
        if self.packed:
            raise ValueError(
                f"{self.name} ({original_class(self.module).__name__}) needs a batch with one example to a row, this one is "
                f"packed: {reason}"
            )


def refuse_parts(layer: Layer) -> None:
    """RuntimeError for parameters that fully_shard has not gathered, as in layers that keep other layers in plain lists."""
    parts = [name for name, value in layer.module.named_parameters() if isinstance(value, DTensor)]
    if parts and layer.engine.ranks.model_ranks == 1:
        raise RuntimeError(
            f"{layer.name} ({original_class(layer.module).__name__}): fully_shard does not gather {parts[0]!r}, because the layer sets "
            "its parameters in a way of its own. Shard Opacus' DPLSTM and DPGRU by FSDP2Wrapper, or use nn.LSTM or nn.GRU"
        )


_IN_ATTENTION = (
    ". Opacus' DPMultiheadAttention with add_bias_kv=True hands it time first: have that computed as one layer, by ghostshard.register_rule(DPMultiheadAttention)(ghostshard.per_example) "
    "before make_private()"
)


def time_first(layer: Layer) -> str:
    """What to do, if the layer is one that takes time first, as PyTorch's attention and recurrent layers do by default; "" if not."""
    given = any(getattr(module, "batch_first", True) is False for module in layer.module.modules())
    if not (given and layer.engine.batch_first):
        return ""
    within = _IN_ATTENTION if original_class(layer.module).__name__ == "SequenceBias" else ""
    return f". It takes time first: build it with batch_first=True and hand it [examples, time, values]{within}"


def local(value: Any) -> Any:
    return value.detach().to_local() if isinstance(value, DTensor) else value


def same_output(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Within rounding, where both are numbers. expected may be the same for all units (of position ids [T] or [1,T])."""
    found, expected = plain(found), plain(expected)
    if not (isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor)):
        return False
    if expected.shape not in (found.shape, found.shape[1:], (1, *found.shape[1:])):
        return False
    if found.numel() == 0:
        return True
    if expected.shape != found.shape:
        found = found[0] if expected.dim() < found.dim() else found[:1]
    one, two = _some_of(found), _some_of(expected)
    finite = one.isfinite() & two.isfinite()
    # Sums of a few thousand terms in another order.
    dtypes = {found.dtype, expected.dtype, dtype_of(found) or found.dtype}
    near = max(1e-3, *(8 * torch.finfo(dtype).eps for dtype in dtypes)) * torch.where(finite, two, 0).abs().max()
    return bool(((torch.where(finite, one - two, 0)).abs() <= near).all())


def _some_of(values: torch.Tensor) -> torch.Tensor:
    """Every so many elements, 65,536 or a few more at most: logits are large. The step is odd, so that no column is left out."""
    flat = values.detach().flatten()
    return flat[:: max(1, len(flat) // 65_536) | 1].double()


_RULES: dict[type, Rule] = {}
_BY_NAME: dict[str, list[tuple[str, Rule]]] = {}  # by class name: (package, "" for any; rule), the latest first


def register_rule(*layers: type | str) -> Callable[[Rule], Rule]:
    """Registers a rule for module classes, or for classes of these names: "package:Name" (of a package that need not be installed)
    or "Name" (wherever the class is from).

    rule(layer, *args, **kwargs) is called in place of the layer's forward while a private step records; it must report
    every trainable parameter of the layer to `layer.session`.
    """

    def register(rule: Rule) -> Rule:
        for layer in layers:
            if isinstance(layer, str):
                package, _, name = layer.rpartition(":")
                _BY_NAME.setdefault(name, []).insert(0, (package, rule))
            else:
                _RULES[layer] = rule
        return rule

    return register


def rule_for(module: nn.Module) -> Rule | None:
    """By the module's exact class, as it was before FSDP2 swapped in one of its own. A class that only has the name of one that
    has a rule may compute something else. None: also of a layer one of whose parameters has no elements (nn.Linear(0, n)), where rules expect values."""
    kind = original_class(module)
    if any(each is not None and each.numel() == 0 for each in module._parameters.values()):
        return None
    if kind in _RULES:
        return _RULES[kind]
    for package, rule in _BY_NAME.get(kind.__name__, ()):
        if not package or f"{kind.__module__}.".startswith(f"{package}."):
            return rule
    return None


__all__ = ["SURE_AFTER", "Layer", "Rule", "local", "refuse_parts", "register_rule", "rule_for", "same_output", "time_first"]
