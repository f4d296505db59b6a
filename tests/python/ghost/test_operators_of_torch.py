"""All operators of torch by its own samples of arguments: where rows are said to be one example's, other examples' values do not reach them."""

import itertools
import sys
import types
import warnings

import pytest
import torch

from ghostshard.ghost.provenance.constants import Constants
from ghostshard.ghost.provenance.drawn import Drawn, drawn, of_rows, plain
from ghostshard.ghost.tensor_trees import mapped, tensors_in

_ALIKE = {"rtol": 1e-4, "atol": 1e-5, "equal_nan": True}
# Memory that nobody wrote to.
_UNWRITTEN = {"empty_like", "new_empty", "new_empty_strided", "empty", "empty_strided", "empty_permuted"}
# An element for each that a mask chose: how many follows from all rows, and their extents are known to be counted.
_COUNTED = {"masked_select", "__getitem__"}


class Piece:
    entries: dict = {}

    def __init__(self, units: int):
        self.units, self.constants = units, Constants()
        self.constants.begin_draw()
        self.constants.begin_batch(units)


def operators(part, parts, most):
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=object, assert_expected_inline=None))  # torch's own tests alone need it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    # The import forbids whoever comes later in this process to set flags of backends, as Opacus does.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    for op in op_db[part::parts]:
        if not op.dtypes:
            continue
        kind = torch.float32 if torch.float32 in op.dtypes else next(iter(op.dtypes))
        try:
            samples = list(itertools.islice(op.sample_inputs("cpu", kind, requires_grad=False), most))
        except Exception:  # it needs a package or a device that is not here
            continue
        yield op.name, [each for each in (op.op, op.method_variant, op.inplace_variant) if each is not None], samples


def moved(value, others):
    """The values of these rows are other ones."""
    if value.dtype == torch.bool:
        other = ~value
    elif value.is_floating_point():
        other = value + 0.1 + 0.7 * torch.rand(value.shape, dtype=torch.float64).to(value.dtype)
    else:
        other = value * 2 if value.is_complex() else value.flip(0).roll(1, 0)
    return torch.where(others.view(-1, *[1] * (value.dim() - 1)), other, value)


def called(function, tree, change):
    args, kwargs = mapped(change, tree)
    torch.manual_seed(1)
    return function(*args, **kwargs)


def rows_that_others_reach(function, tree, followed, n):
    """What goes wrong if these tensors of the tree hold a row for each of n examples; "" if nothing does."""
    ids, piece = {id(each) for each in followed}, Piece(n)

    def run(change):
        return list(tensors_in(called(function, tree, lambda t: change(t.clone()) if id(t) in ids else t.clone())))

    try:
        found = run(lambda t: drawn(t, of_rows(piece, n)))
    except Exception:
        return ""
    known = [i for i, each in enumerate(found) if not (isinstance(each, Drawn) and each.origin.memory.lost)]
    for unit in (0, n - 1) if known else ():
        others = torch.arange(n) != unit
        try:
            before, after = ([plain(each) for each in run(change)] for change in (lambda t: t, lambda t: moved(t, others)))
        except Exception:
            continue
        for i in known:
            one, two = before[i], after[i]
            if isinstance(found[i], Drawn):
                origin = found[i].origin
                if origin.dim is None:
                    if origin.numbers().tolist() != [unit]:
                        continue
                else:
                    if one.shape != two.shape:
                        return "extents follow from the values of other rows"
                    own = (origin.numbers() == unit).nonzero().reshape(-1)
                    one, two = one.index_select(origin.dim, own), two.index_select(origin.dim, own)
            if one.shape != two.shape:
                return "extents follow from the values of other rows"
            if not torch.allclose(one.to(torch.complex128), two.to(torch.complex128), **_ALIKE):
                return "values of other rows reach one" if isinstance(found[i], Drawn) else "it is followed no more"
    return ""


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("most", [3, pytest.param(20, marks=pytest.mark.long)])  # samples of an operator
def test_rows_of_an_example_are_its_own(most, part):
    torch.manual_seed(0)
    wrong, tried = {}, 0
    for name, functions, samples in operators(part, 4, most):
        for function, sample in itertools.product(functions, samples):
            tree = (sample.input, *sample.args), sample.kwargs
            tensors = [each for each in tensors_in(tree) if each.layout is torch.strided and each.dim() and each.shape[0] > 1]
            for n in sorted({each.shape[0] for each in tensors}):
                of_n = [each for each in tensors if each.shape[0] == n]
                for followed in (of_n, *([each] for each in of_n if len(of_n) > 1)):
                    tried += 1
                    why = rows_that_others_reach(function, tree, followed, n)
                    known = name in _UNWRITTEN or (name in _COUNTED and why.startswith("extents"))
                    if why and not known:
                        wrong[name, why] = [tuple(each.shape) for each in followed], sample.args, sample.kwargs
    assert not wrong
    assert tried > 500
