"""The noise that a run would need, before it begins: the accountant's answer, for the commands that plan (tune, advise)."""

import json
import subprocess

from ghostshard.binary import find_binary
from ghostshard.errors import UserError


def planned_delta(given: float | None, units: int) -> float:
    """The delta of a run over so many units, as the training program has it. UserError unless it lies strictly between 0 and 1."""
    delta = min(1e-6, units**-1.1) if given is None else given
    if not 0 < delta < 1:
        raise UserError(f"--delta must lie strictly between 0 and 1, got {delta}")
    return delta


def planned_noise(epsilon: float, delta: float, sampling_rate: str, steps: int) -> float:
    """The noise multiplier. sampling_rate: a fraction, as the accountant reads it. UserError if no noise reaches epsilon."""
    return _asked(epsilon, delta, "--sampling-rate", sampling_rate, "--steps", steps)


def planned_bins_noise(epsilon: float, delta: float, units: int, batch: int, steps: int) -> float:
    """The same with balls-in-bins sampling, in passes of units/batch steps, rounded up; a pass that the steps do not fill counts whole."""
    bins = -(-units // batch)
    return _asked(epsilon, delta, "--bins", bins, "--passes", -(-steps // bins))


def _asked(epsilon: float, delta: float, *run: str | int) -> float:
    command = [find_binary(program="ghostshard-account"), "noise", "--json", "--epsilon", epsilon, "--delta", delta, *run]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise UserError(f"no noise reaches the target: {done.stderr.strip().removeprefix('ghostshard-account: ')}")
    return json.loads(done.stdout)["noise_multiplier"]
