"""What a loss and a scalar tensor have in common: reading, comparing, arithmetic beside tensors."""

from __future__ import annotations

import numbers
import operator
from typing import Any

import numpy as np
import torch

_ASKED = {"isnan", "isinf", "isfinite", "isneginf", "isposinf", "isclose", "allclose", "lt", "le", "gt", "ge"}
_ARITHMETIC = {"add": operator.add, "sub": operator.sub, "subtract": operator.sub, "mul": operator.mul, "multiply": operator.mul, "div": operator.truediv,
               "divide": operator.truediv, "true_divide": operator.truediv, "truediv": operator.truediv}  # fmt: skip
_REVERSED = {operator.add: "__radd__", operator.sub: "__rsub__", operator.mul: "__rmul__"}
NO_FUNCTION = (
    "{} of a private loss is a function of the whole batch's loss, which has no gradient of one example. Let the criterion form it for each example, "
    "or take loss.detach() for a number to look at"
)


class ReadsLikeANumber:
    """float(loss), f"{loss:.3f}", loss < best, math.isnan(loss), torch.isfinite(loss), tensor * loss. Of a class with item() and detach()."""

    requires_grad = True
    is_leaf = False
    shape = torch.Size([])

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Functions that ask something of the number; arithmetic of a tensor with a loss. TypeError for any other."""
        name = getattr(function, "__name__", str(function)).strip("_")
        if name in _ASKED:
            return function(*(each.detach() if isinstance(each, cls) else each for each in args), **(kwargs or {}))
        operation = _ARITHMETIC.get(name)
        if operation is not None and len(args) == 2 and not kwargs:
            one, other = args
            if isinstance(one, cls):
                return operation(one, other)
            if operation in _REVERSED:
                return getattr(other, _REVERSED[operation])(one)
        if name == "backward":  # torch.autograd.backward()
            return cls._backward_of(*args, **(kwargs or {}))
        if name in ("stack", "cat"):
            raise TypeError(NO_FUNCTION.format(f"torch's {name}()") + ": of several, sum(losses) / len(losses)")
        raise TypeError(NO_FUNCTION.format(f"torch's {name}()"))

    @classmethod
    def _backward_of(cls, losses: Any, grad_tensors: Any = None, **options: Any) -> None:
        """torch.autograd.backward(losses): the backward of their sum."""
        losses = losses if isinstance(losses, (list, tuple)) else (losses,)
        if not all(isinstance(each, cls) for each in losses):
            raise TypeError("torch.autograd.backward() takes private losses alone: another tensor's backward would go past the clipping. Add it to the loss, with one value for each example")
        sum(losses[1:], losses[0]).backward(gradient=grad_tensors, **options)

    def __pow__(self, other: Any) -> Any:
        raise TypeError(NO_FUNCTION.format("a power"))

    def __getattr__(self, name: str) -> Any:
        if hasattr(torch.Tensor, name) and not name.startswith("_"):
            raise AttributeError(NO_FUNCTION.format(f"{name}()"))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def to(self, *_: Any, **__: Any) -> Any:
        """Itself: its backward is the engine's, wherever the number lies."""
        return self

    clone = cpu = cuda = double = squeeze = to

    def __rtruediv__(self, other: Any) -> Any:
        raise TypeError(NO_FUNCTION.format("the reciprocal"))

    @property
    def data(self) -> torch.Tensor:
        return self.detach()  # type: ignore[attr-defined]

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    def dim(self) -> int:
        return 0

    ndim = property(dim)

    def size(self) -> torch.Size:
        return self.shape

    def isnan(self) -> torch.Tensor:
        return self.data.isnan()

    def isinf(self) -> torch.Tensor:
        return self.data.isinf()

    def isfinite(self) -> torch.Tensor:
        return self.data.isfinite()

    @property
    def is_cuda(self) -> bool:
        return self.data.is_cuda

    def numel(self) -> int:
        return 1

    def __iter__(self) -> Any:
        raise ValueError(
            "a private loss is one number: call its own backward(). torch.amp.GradScaler takes none, "
            "because each example's gradient is clipped before it could be scaled back: leave the scaler out, bfloat16 needs none"
        )

    def _number(self) -> float:
        return float(self.detach())  # type: ignore[attr-defined]

    __float__ = _number

    def tolist(self) -> Any:
        return self.item()  # type: ignore[attr-defined]

    def __int__(self) -> int:
        return int(self.item())  # type: ignore[attr-defined]

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.item(), digits)  # type: ignore[attr-defined]

    def __abs__(self) -> Any:
        raise TypeError(NO_FUNCTION.format("abs()"))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(float(self), dtype=dtype)

    float = to

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)  # type: ignore[attr-defined]

    def __lt__(self, other: Any) -> bool:
        return self.item() < float(other)  # type: ignore[attr-defined]

    def __le__(self, other: Any) -> bool:
        return self.item() <= float(other)  # type: ignore[attr-defined]

    def __gt__(self, other: Any) -> bool:
        return self.item() > float(other)  # type: ignore[attr-defined]

    def __ge__(self, other: Any) -> bool:
        return self.item() >= float(other)  # type: ignore[attr-defined]


numbers.Number.register(ReadsLikeANumber)  # for np.isscalar(), by which TensorBoard's add_scalar(loss) tells it from other objects

__all__ = ["NO_FUNCTION", "ReadsLikeANumber"]
