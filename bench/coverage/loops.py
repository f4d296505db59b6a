"""Ways in which people write a training loop, with the epsilon that the engine states beside the epsilon of what was executed
(recorded.py)."""

from __future__ import annotations

import warnings
from typing import Any

# isort: off
import usual_loops  # noqa: F401  the order of the table
import other_loops  # noqa: F401
import reading_loops  # noqa: F401
import kept_loops  # noqa: F401
import peoples_loops  # noqa: F401

# isort: on
from loop import LOOPS, Loop
from one_step import judged
from recorded import Run


def outcome(each: Loop) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = Run(**each.options)

        def ran() -> float:
            each.body(run)
            return 0.0

        verdict = judged(ran)
        kind = "taken" if verdict.kind == "right" else verdict.kind
        return {"loop": each.name, "kind": kind, "said": verdict.said, "stated": run.stated, "executed": run.recorded.epsilon(),
                "releases": len(run.recorded.releases)}  # fmt: skip


__all__ = ["LOOPS", "outcome"]
