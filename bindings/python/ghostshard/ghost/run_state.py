"""What stands beside a model while it trains privately: the constants of its run, its ledger, and where the run is. Sessions
come and go with the set of trainable parameters; all of them are made here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Protocol

import torch

from .. import _native
from ..loaders.given_keys import GivenKeys, bytes_of
from .checks.alike import together
from .checks.batches import Batches
from .checks.one_thread import OneThread
from .clip_quantile import Adaptation, ClipQuantile
from .correlation import WHITE, Correlation
from .layout import Layout
from .ranks import Ranks
from .weights import digest_of_weights
from .written_ledger import WrittenLedger

Terms = Callable[[], tuple[float, float]]
_MOST_NOISE = 1e36  # noise bands and chains make it larger, by far less than 100 times


class Budget(Protocol):
    def charge(self, terms: tuple[float, float], step: int) -> None:
        """Before step number `step`, of this noise multiplier and sampling rate. ValueError on all ranks if it may not be taken."""
        ...


_THERE = (
    "ledger {} must not exist yet: it holds one run of one model. To go on with that run, load its checkpoint before the first step; for a new run, name another file (what this one holds stays spent). "
    "A second model of one engine needs an engine and a ledger of its own (attach_register() adds up what both spend)"
)


class RunState:
    def __init__(self) -> None:
        self.sampling_rate = self.divisor = 1.0
        self._adaptation: Adaptation | None = None
        self.largest_batch: tuple[int, int] | None = None  # of so many units, so many at most
        self.bins: int | None = None  # steps of a pass of balls-in-bins sampling, of which each example is in one
        self.correlation = WHITE  # of the noise of different steps
        self._terms: Terms | None = None
        self.generator: torch.Generator | None = None
        self.given = GivenKeys()  # noise keys, as the generator gave them
        self.next = (0, 0)  # step and attempt that the next logical batch is charged as, if there is no session
        self.attempts: list[tuple[int, int]] = []  # of later steps that the ledger has charged before
        self.stopped: str | None = None  # the sentence that refuses every step
        self.ledger_is_open = False  # this run has begun the ledger's file, or has gone on with it
        self._run_id = ""  # sets a resumed run's noise apart, if the key comes from a generator
        self._ledger: tuple[str, dict] | None = None
        self.written: WrittenLedger | None = None  # the ledger's file
        self.budget: Budget | None = None  # the register that limits all runs on the data
        self.thread = OneThread()

    def set_constants(
        self, *, sampling_rate: float, divisor: float, terms: Terms, generator: torch.Generator | None, adaptation: Adaptation | None = None,
        largest_batch: tuple[int, int] | None = None, bins: int | None = None, correlation: Correlation = WHITE,
    ) -> None:  # fmt: skip
        self.sampling_rate, self.divisor, self._terms, self.generator = sampling_rate, divisor, terms, generator
        self._adaptation, self.largest_batch, self.bins, self.correlation = adaptation, largest_batch, bins, correlation

    def terms_now(self) -> tuple[float, float]:
        """Clip norm and noise multiplier, as they are now. ValueError if their noise is no float32 number."""
        assert self._terms is not None
        clip_norm, noise = self._terms()
        if not noise * clip_norm <= _MOST_NOISE:
            raise ValueError(f"noise_multiplier times max_grad_norm must be at most {_MOST_NOISE}, because noise is a float32 number; got {noise} and {clip_norm}")
        return clip_norm, noise

    def release_variance(self, terms: tuple[float, float]) -> float:
        """Of the noise in each element of what a step with this clip norm and noise multiplier releases; a public number. Of noise bands
        that of the last step's, the largest; of a noise chain the mean."""
        clip_norm, noise = terms
        if self.clip_quantile is not None:
            noise = self.clip_quantile.gradient_noise(noise)
        return (noise * clip_norm / self.divisor) ** 2 * self.correlation.variance

    @property
    def clip_quantile(self) -> ClipQuantile | None:
        """None: the clip norm does not adapt."""
        return None if self._adaptation is None else self._adaptation.quantile

    def adapt(self, clip_norm: float) -> None:
        """The next logical batch's, if it adapts."""
        if self._adaptation is not None:
            self._adaptation.set_clip_norm(clip_norm)

    def attach_ledger(self, path: str, header: dict) -> None:
        if self._ledger is not None:
            raise ValueError(f"a ledger is attached already: {self._ledger[0]}")
        self._ledger, self.written = (path, header), WrittenLedger(path)

    def resume(self, step: int, attempts: list[tuple[int, int]], *, ledger_open: bool) -> None:
        self.attempts = attempts
        self.next = (step, dict(attempts).get(step, 0))
        self._run_id = os.urandom(16).hex()
        self.ledger_is_open = ledger_open

    def make_session(self, layout: Layout, ranks: Ranks, **options: Any) -> Any:
        """The compiled session (_native/engine.pyi). A collective."""
        session = _native.load("engine").Session(
            blocks=layout.specs(),
            mesh=ranks.shape,
            rank=ranks.rank,
            groups=list(ranks.groups),
            device=ranks.device,
            sampling_rate=self.sampling_rate,
            divisor=self.divisor,
            clip_quantile=None if self._adaptation is None else self._adaptation.quantile.for_session(),
            expected_batch=0.0 if self._adaptation is None else self._adaptation.expected_batch,
            largest_batch=self.largest_batch,
            bins=self.bins,
            correlation=self.correlation.for_session(),
            key=None if self.generator is None else bytes(32),  # renewed with every logical batch
            run_id=self._run_id,
            first=self.next,
            attempts=self.attempts,
            **options,
        )
        if self._ledger is not None:
            path, header = self._ledger
            begun = self.ledger_is_open
            text = json.dumps(header if begun else _with_weights(header, layout, ranks))

            def write() -> None:
                if ranks.rank == 0:
                    if not begun and os.path.exists(path):
                        raise ValueError(_THERE.format(path))
                    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
                    session.attach_ledger(path, text, begun)
                    self.note_ledger(ranks)

            together(ranks.control, lambda: (write(), dict))
            self.ledger_is_open = True
        return session

    def note_ledger(self, ranks: Ranks) -> None:
        """It holds the logical batch at hand."""
        if self.written is not None and ranks.rank == 0:
            self.written.note()

    def begin_logical_batch(self, session: Any, batches: Batches) -> tuple[float, float]:
        """Clip norm and noise multiplier of the logical batch that the session opens next, of the draw at hand."""
        terms, charges = self.terms_now(), batches.charges
        charges.check(terms)
        self._begin(session, terms, is_charged=not charges.begun, turn=batches.turn)
        charges.at(session.next[0])
        return terms

    def _begin(self, session: Any, terms: tuple[float, float], *, is_charged: bool, turn: int) -> None:
        clip_norm, noise_multiplier = terms
        if self.correlation.groups > 1:
            session.draw_from(turn % self.correlation.groups)
        if is_charged and self.budget is not None:
            self.budget.charge((noise_multiplier, self.sampling_rate), session.next[0])
        if is_charged and self.bins is not None:
            session.begin_pass()
        session.set_terms(clip_norm, noise_multiplier)
        if self.generator is not None:
            session.renew_noise_key(self.given.fresh(bytes_of(self.generator)))

    def charge_step_of_nobody(self, session: Any, turn: int, ranks: Ranks) -> None:
        """A step of no examples, whose noise nobody sees; of a pass the first, of groups the one whose turn it was. A collective."""
        session.begin_microbatch(1, of_nobody=True)
        self._begin(session, self.terms_now(), is_charged=True, turn=turn)
        if session.takes_two_passes:
            session.second_pass()
        session.clip()
        self.note_ledger(ranks)
        session.release()


def _with_weights(header: dict, layout: Layout, ranks: Ranks) -> dict:
    """The header of a run that begins with the model as it is now. ValueError on all ranks if replicas of it differ. A collective."""
    digest = digest_of_weights((entry.name, entry.parameter) for entry in layout.parameters)
    together(ranks.control, lambda: (None, lambda: {"the model's starting weights": digest}))
    facts = header.get("facts", {})
    return header | {"facts": facts | {"provenance": facts.get("provenance", {}) | {"weights_before": digest}}}


__all__ = ["RunState", "Terms"]
