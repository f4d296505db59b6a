"""Privacy accountants with the interface of Opacus' own, computed by the C++ accountant.

    from ghostshard.accountants import ContourAccountant
    accountant = ContourAccountant()
    accountant.step(noise_multiplier=1.1, sample_rate=256 / 60000)
    accountant.get_epsilon(delta=1e-5)

Importing this module registers "contour" with Opacus, so that opacus.PrivacyEngine(accountant="contour") finds it;
register(replace=True) puts ours in the place of Opacus' "prv" and "rdp" as well.

get_epsilon answers with the certified upper end of a bracket: the true epsilon of the steps in `history` is never
larger. epsilon_bound gives the whole bracket. Neighbours are Opacus' neighbours: one example added or removed, each drawn
by Poisson sampling. For any other sampler the numbers say nothing.
"""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, SupportsFloat

from opacus.accountants import IAccountant, register_accountant
from opacus.accountants import registry as _opacus_registry

from ghostshard._native import load
from ghostshard.dp_events import as_plain
from ghostshard.keywords import refuse_unknown

__all__ = [
    "ContourAccountant", "PRVAccountant", "RDPAccountant", "PrivacyBound", "CurvePoint", "default_delta", "epsilon_of_events",
    "get_noise_multiplier", "privacy_curve", "register",
]  # fmt: skip

_native = load("accountant")

ADJACENCIES = ("add-or-remove", "zero-out", "replace-one")

_KINDS = {"truncation": "steps with the truncation (units, cap)", "bins": "passes with the number of bins"}

_PRECISION = ("alphas", "eps_error", "delta_error")  # of Opacus' accountants; ours are as narrow as they can be, whatever these say
_PLANNED = ("target_epsilon", "target_delta", "sample_rate", "epochs", "steps", "accountant", "epsilon_tolerance", "truncation", "bins")

# (noise_multiplier, sample_rate, steps)
History = Sequence[tuple[float, float, int]]


class PrivacyBound(NamedTuple):
    """lower <= true value <= upper, for epsilon at a delta or for delta at an epsilon. Report `upper`."""

    lower: float
    estimate: float
    upper: float
    accountant: str
    direction: str
    detail: str


class CurvePoint(NamedTuple):
    """One point of a privacy curve: both bounds hold at this delta."""

    delta: float
    lower: float
    estimate: float
    upper: float


class _Accountant(IAccountant):
    """The common part of the three; mechanism() names the C++ engine."""

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []
        self.truncation: tuple[int, int] | None = None  # (units, cap): every step is one of truncated Poisson sampling
        self.bins: int | None = None  # every "step" is a whole pass of balls-in-bins sampling in so many steps

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Records one step, or pass (deal()). ValueError for a number that no accountant could bound; then nothing is recorded."""
        sigma, q = _noise(noise_multiplier), _rate(sample_rate)
        self._check_dealt(sigma, q)
        if self.history and tuple(self.history[-1][:2]) == (sigma, q):
            self.history[-1] = (sigma, q, self.history[-1][2] + 1)
        else:
            self.history.append((sigma, q, 1))

    def get_epsilon(self, delta: float, **kwargs: Any) -> float:
        """The upper bound at delta; 0 before the first step, infinity if a step had no noise. kwargs: those of Opacus' accountants that
        choose a precision are taken and change nothing. TypeError for others."""
        refuse_unknown(kwargs, "get_epsilon()", _PRECISION)
        return self.epsilon_bound(delta).upper

    def epsilon_bound(self, delta: float) -> PrivacyBound:
        """Epsilon of all recorded steps at delta, from both sides: lower <= true epsilon <= upper. Report `upper`: it is what get_epsilon()
        gives, infinity if a step had no noise. ValueError unless 0 < delta < 1, and for a history that cannot be accounted."""
        return self._worst(_native.epsilons, delta)

    def delta_bound(self, epsilon: float) -> PrivacyBound:
        """Delta of all recorded steps at epsilon (in nats, as everywhere here), from both sides: lower <= true delta <= upper. Report `upper`,
        which is what get_delta() gives. ValueError unless epsilon is finite and >= 0, and for a history that cannot be accounted."""
        return self._worst(_native.deltas, epsilon)

    def get_delta(self, epsilon: float) -> float:
        """The upper bound of delta at epsilon."""
        return self.delta_bound(epsilon).upper

    def __len__(self) -> int:
        """How many entries the history has, as in Opacus: runs of equal steps, not steps."""
        return len(self.history)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As Opacus' method. A history that cannot be accounted is a ValueError, and the old history stays."""
        before = self.history
        super().load_state_dict(state_dict)
        try:
            self.history = _checked(self.history)
            for name, what in _KINDS.items():
                if (found := state_dict.get(name)) != getattr(self, name):
                    raise ValueError(f"it is of {what} {found}, the accountant's have {getattr(self, name)}")
            for sigma, q, _ in self.history:
                self._check_dealt(sigma, q)
        except (TypeError, ValueError) as error:
            self.history = before
            raise ValueError(f"the state dict's history cannot be accounted: {error}") from error

    def state_dict(self, destination: dict[str, Any] | None = None) -> dict[str, Any]:
        """As Opacus' method."""
        state = super().state_dict(destination)
        state.update({name: getattr(self, name) for name in _KINDS if getattr(self, name) is not None})
        return state

    def truncate(self, truncation: tuple[int, int] | None) -> None:
        """(units, cap): each step is one of truncated Poisson sampling (arXiv:2508.15089), at most `cap` of `units` examples are in it.
        Contour and rdp bound that tightly; bounds are then the larger of those under zero-out and add-or-remove. None: steps are not
        truncated. ValueError if steps of another kind are charged already."""
        self._become("truncation", truncation)

    def deal(self, bins: int | None) -> None:
        """bins: each step() is a whole pass of balls-in-bins sampling (arXiv:2412.16802) at sample_rate 1/bins: every example is in one of
        so many batches. Contour and prv bound that; bounds are the larger of those under zero-out and add-or-remove. None: each step is one
        batch. ValueError if steps of another kind are charged already."""
        self._become("bins", bins)

    def _become(self, name: str, value: Any) -> None:
        if self.history and getattr(self, name) != value:
            raise ValueError(f"this accountant has charged {_KINDS[name]} {getattr(self, name)}, now {value}: it counts one kind. Take a new one")
        setattr(self, name, value)

    def _check_dealt(self, sigma: float, q: float) -> None:
        least, most = _native.bins_noise
        if self.bins is not None and sigma != 0 and not least <= sigma <= most:
            raise ValueError(f"the noise multiplier of balls-in-bins sampling must be from {least} to {most:g}, got {sigma}")
        if self.bins is not None and q != 1 / self.bins:
            raise ValueError(f"the passes have {self.bins} batches, so sample_rate must be 1/{self.bins}, got {q}")

    def _worst(self, bounds: Any, at: float) -> PrivacyBound:
        how = {"accountant": self.mechanism(), "truncation": self.truncation, "bins": self.bins}
        neighbours = _neighbours(self.truncation, self.bins)
        found = (bounds(_checked(self.history), [float(at)], adjacency=each, **how)[0] for each in neighbours)
        return PrivacyBound(*max(found, key=lambda bound: bound[2]))


class ContourAccountant(_Accountant):
    """The tightest: the exact privacy curve by contour integration (arXiv:2208.09595), certified."""

    @classmethod
    def mechanism(cls) -> str:
        return "contour"


class PRVAccountant(_Accountant):
    """Opacus' PRV accountant as it is meant: the upper end of a grid's bracket, sound even at tiny deltas, and as narrow as the grid
    allows: Opacus' eps_error and delta_error are not needed."""

    @classmethod
    def mechanism(cls) -> str:
        return "prv"


class RDPAccountant(_Accountant):
    """Rényi differential privacy, minimised over all orders. With alphas=RDPAccountant.DEFAULT_ALPHAS it gives what
    Opacus gives, which ends at order 63 and so is never smaller."""

    DEFAULT_ALPHAS: list[float] = _native.opacus_orders()

    def get_epsilon(self, delta: float, alphas: Iterable[float] | None = None, **kwargs: Any) -> float:
        """As the others'. alphas: the orders to minimise over, in the place of all. TypeError for keywords that are not known."""
        if alphas is None:
            return super().get_epsilon(delta, **kwargs)
        refuse_unknown(kwargs, "get_epsilon()", _PRECISION)
        self._refuse_orders()
        return _native.rdp_epsilon_at_orders(_checked(self.history), [float(alpha) for alpha in alphas], float(delta))

    def get_privacy_spent(
        self, *, delta: float, alphas: Iterable[float] | None = None
    ) -> tuple[float, float]:
        """Epsilon and the order that gave it, over Opacus' default orders if none are given. (0, 0) before the first step."""
        if not self.history:
            return 0.0, 0.0
        self._refuse_orders()
        history = _checked(self.history)
        orders = [float(alpha) for alpha in (self.DEFAULT_ALPHAS if alphas is None else alphas)]
        if not orders:
            raise ValueError("alphas must name at least one order, got none")
        return min((_native.rdp_epsilon_at_orders(history, [alpha], float(delta)), alpha) for alpha in orders)

    def _refuse_orders(self) -> None:
        if self.truncation is not None or self.bins is not None:
            raise ValueError("truncated sampling is bounded over all orders alone: leave alphas out")

    @classmethod
    def mechanism(cls) -> str:
        return "rdp"


_CLASSES = {"contour": ContourAccountant, "prv": PRVAccountant, "rdp": RDPAccountant}


def register(*, replace: bool = False) -> None:
    """Makes "contour" known to Opacus; with replace, "prv" and "rdp" become ours too. May be called again."""
    for name, accountant in _CLASSES.items():
        if name not in _opacus_registry._ACCOUNTANTS or replace:
            register_accountant(name, accountant, force=replace)


def default_delta(units: int) -> float:
    """min(1e-6, n^-1.1) for n units, the C++ plan's default too (dp/mechanism/plan.h)."""
    return min(1e-6, units**-1.1)


def get_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    epochs: float | None = None,
    steps: int | None = None,
    accountant: str = "contour",
    epsilon_tolerance: float | None = None,
    truncation: tuple[int, int] | None = None,
    bins: int | None = None,
    **kwargs: Any,
) -> float:
    """The least noise multiplier that keeps a run within (target_epsilon, target_delta), at most 1e-6 above it.

    Exactly one of epochs and steps; epochs count as ceil(epochs / sample_rate) steps. On the private side: with the
    answer, get_epsilon is at most the target. epsilon_tolerance and Opacus' arguments that choose a precision (alphas, eps_error,
    delta_error) are taken and not needed; TypeError for others.
    truncation: (units, cap) of truncated Poisson sampling. bins: of balls-in-bins sampling, `steps` being passes; then at most 1e-4 above. ValueError if no noise reaches the target.
    """
    refuse_unknown(kwargs, "get_noise_multiplier()", (*_PRECISION, *_PLANNED))
    if (steps is None) == (epochs is None):
        raise ValueError("exactly one of epochs and steps must be given")
    q = _rate(sample_rate)
    if steps is None:
        exact = float(epochs) / q
        if not (0 < exact < 2**53):
            raise ValueError(f"epochs must be > 0 and finite, got {epochs}")
        # 90 / 0.04 is meant to be 2250, even if the division gives 2250.0000000000005.
        steps = round(exact) if math.isclose(exact, round(exact), rel_tol=1e-12) else math.ceil(exact)
    if bins is not None and q != 1 / bins:
        raise ValueError(f"a pass has {bins} batches, so sample_rate must be 1/{bins}, got {q}")
    _known(accountant)
    terms = (float(target_epsilon), float(target_delta), q, _steps(steps))
    how = {"accountant": accountant, "truncation": truncation, "bins": bins}
    try:
        return max(_native.noise_multiplier(*terms, adjacency=each, **how) for each in _neighbours(truncation, bins))
    except ValueError as error:
        loose = ". The accountant 'prv' bounds truncated batches loosely, and perhaps not at all: take 'contour', which does tightly"
        raise ValueError(f"{error}{loose if truncation and accountant == 'prv' else ''}") from None


def privacy_curve(
    run: "_Accountant | IAccountant | History",
    *,
    deltas: Iterable[float] = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, 1e-15),
    accountant: str | None = None,
    adjacency: str | None = None,
) -> list[CurvePoint]:
    """Epsilon at each delta, for an accountant (ours or Opacus') or a history [(noise_multiplier, sample_rate, steps)].

    accountant: "contour", "prv" or "rdp"; default: that of `run` if it is ours, else "contour". adjacency: default add-or-remove, and
    the worse of that and zero-out for truncated steps, as get_epsilon has it.
    """
    history = run.history if isinstance(run, IAccountant) else run
    if accountant is None:
        accountant = run.mechanism() if isinstance(run, _Accountant) else "contour"
    _known(accountant)
    at = [float(delta) for delta in deltas]
    truncation, bins = (run.truncation, run.bins) if isinstance(run, _Accountant) else (None, None)
    history = _checked(history)
    curves = [
        _native.epsilons(history, at, accountant=accountant, adjacency=each, truncation=truncation, bins=bins)
        for each in (_neighbours(truncation, bins) if adjacency is None else (adjacency,))
    ]
    worst = (max(bounds, key=lambda bound: bound[2]) for bounds in zip(*curves, strict=True))
    return [CurvePoint(delta, *bound[:3]) for delta, bound in zip(at, worst, strict=True)]


def epsilon_of_events(
    events: Any, *, delta: float, accountant: str = "contour", adjacency: str = "add-or-remove"
) -> PrivacyBound:
    """Epsilon of releases of any kind, composed: gradients and what is released beside them.

    events: a list of (event, count), event a dictionary as a ledger has it ({"type": "laplace", "noise_multiplier": 2.0,
    "sampling_rate": 1}; accountant/events.h lists all), or a DpEvent of dp_accounting.
    """
    _known(accountant)
    if isinstance(events, list | tuple) and not hasattr(events, "_fields"):
        text = json.dumps([[dict(event), _steps(count)] for event, count in events], allow_nan=False)
    else:
        text = json.dumps(as_plain(events), allow_nan=False)
    bound = _native.epsilons_of_events(text, [float(delta)], accountant=accountant, adjacency=adjacency)[0]
    return PrivacyBound(*bound)


def _neighbours(truncation: tuple[int, int] | None, bins: int | None) -> tuple[str, ...]:
    """Adjacencies of which the worse counts. Of Poisson samples both are the same; others are reported under zero-out."""
    return ADJACENCIES[:1] if truncation is None and bins is None else ADJACENCIES[:2]


def _known(accountant: str) -> None:
    if accountant not in _CLASSES:
        raise ValueError(
            f"accountant must be one of {', '.join(_CLASSES)}; got {accountant!r}"
            + (", which is no upper bound (opacus.accountants.utils.get_noise_multiplier has it)" if accountant == "gdp" else "")
        )


def _noise(value: SupportsFloat) -> float:
    sigma = float(value)
    if not (sigma >= 0 and math.isfinite(sigma)):
        raise ValueError(f"noise_multiplier must be finite and >= 0, got {value}")
    return sigma


def _rate(value: SupportsFloat) -> float:
    q = float(value)
    if not 0 < q <= 1:
        raise ValueError(f"sample_rate must be > 0 and <= 1, got {value}")
    return q


def _steps(value: SupportsFloat) -> int:
    if not (math.isfinite(value) and value == int(value) and value >= 0):
        raise ValueError(f"steps must be a whole number >= 0, got {value}")
    return int(value)


def _checked(history: History) -> list[tuple[float, float, int]]:
    return [(_noise(sigma), _rate(q), _steps(steps)) for sigma, q, steps in history]


register()
