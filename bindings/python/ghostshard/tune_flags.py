"""Flags as words and as TOML, and which combinations of their values `ghostshard tune` tries."""

import itertools
import json
import math
import random
from collections.abc import Callable

from ghostshard.errors import UserError, did_you_mean

# Flags that a trial may change, and what is tried if the command does not say.
TUNABLE = ("learning-rate", "warmup-steps", "min-learning-rate", "lr-schedule", "clip-norm", "clipping", "noise-bands",
           "noise-chain", "weight-decay", "momentum", "optimizer", "expected-batch", "steps")  # fmt: skip
DEFAULT = {"learning-rate": ["0.0005", "0.001", "0.002", "0.004", "0.008"], "noise-bands": ["1", "4"]}
Flags = dict[str, str | bool | list[str]]


def read_flags(words: list[str]) -> Flags:
    """--name value, --name=value, --switch; a repeated one is a list."""
    flags: Flags = {}
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise UserError(f"flags begin with --, got {word!r}")
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals and words and not words[0].startswith("--"):
            value, equals = words.pop(0), "="
        new = value if equals else True
        before = flags.get(name)
        flags[name] = new if before is None else [*(before if isinstance(before, list) else [str(before)]), str(new)]
    return flags


def read_space(tried: list[str], flags: Flags) -> dict[str, list[str]]:
    one_band = flags.get("sampling") == "balls-in-bins" or "noise-chain" in flags  # what goes with one band alone
    fixed = {*flags, *(["noise-bands"] if one_band else [])}
    space = {name: values for name, values in DEFAULT.items() if name not in fixed} if not tried else {}
    for text in tried:
        name, equals, values = text.removeprefix("--").partition("=")
        if name not in TUNABLE:
            raise UserError(f"--try {name}: it must be one of {', '.join(TUNABLE)}{did_you_mean(name, TUNABLE)}")
        chosen = [value for value in values.split(",") if value]
        if not equals or not chosen or len(set(chosen)) != len(chosen):
            raise UserError(f"--try must be FLAG=V1,V2,… with different values, got {text!r}")
        if name in space or name in flags:
            raise UserError(f"--{name} is given twice: tried values and a fixed one, or two lists")
        space[name] = chosen
    return space


def choose_trials(
    space: dict[str, list[str]], flags: Flags, public: int, private: int, most: int, say: Callable[[str], None],
) -> list[dict[str, str]]:
    """All combinations that both data sets allow; if they are more than `most`, as many of them."""
    everything = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    allowed = []
    for trial in everything:
        merged = {**flags, **trial}
        groups = groups_of(merged)
        needed = whole("expected-batch", merged.get("expected-batch")) * groups
        if needed <= min(public, private) and groups <= whole("steps", merged.get("steps")):
            allowed.append(trial)
    if not allowed:
        raise UserError(
            "--expected-batch times --noise-bands or --noise-chain must be at most the number of public and of private units "
            f"({public} and {private}), it is more in every trial"
        )
    if left := len(everything) - len(allowed):
        say(f"{left} combinations are left out: expected batch times noise bands or chain exceeds the {public} public or {private} private units")
    if len(allowed) > most:
        chosen = set(random.Random(str(flags.get("seed", "0"))).sample(range(len(allowed)), most))
        allowed = [trial for index, trial in enumerate(allowed) if index in chosen]
    return allowed


def command_line(flags: Flags) -> list[str]:
    words = []
    for name, value in flags.items():
        for item in value if isinstance(value, list) else [value]:
            words += [f"--{name}"] if item is True else [f"--{name}", str(item)]
    return words


def toml(value: str | bool | list[str]) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if value is True:
        return "true"
    try:
        return value if math.isfinite(float(value)) else json.dumps(value)
    except ValueError:
        return json.dumps(value, ensure_ascii=False)


def require_writable(flags: Flags) -> None:
    """UserError for a text that the training program would not read back from a recipe as it is."""
    for name, value in flags.items():
        for text in value if isinstance(value, list) else [str(value)]:
            if found := next((sign for sign in text if not sign.isprintable()), None):
                raise UserError(f"--{name} must hold no {found!r} for tuning, got {text!r}: a recipe cannot; give it to the private run")


def whole(name: str, value, at_least: int = 1) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16 and int(value) >= at_least:
        return int(value)
    raise UserError(f"--{name} must be a whole number >= {at_least}, got {value if value is not None else 'none'}")


def groups_of(flags: Flags) -> int:
    """Into how many groups a run with these flags deals its units: the bands of its noise, or the steps of its chains."""
    return max(whole(name, flags.get(name, "1")) for name in ("noise-bands", "noise-chain"))


def words_of(trial: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in trial.items()) or "the flags as given"
