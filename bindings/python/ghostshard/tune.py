"""`ghostshard tune`: the flags of a private run, found on texts that were declared public.

Each trial trains on the public texts with the noise, the expected batch, the steps and the clip norm that the private run would
have, so what is best here is best there as far as the texts are alike. The private texts are not read: of them only the number
is needed. Successive halving (arXiv:1502.07943): all trials run a quarter of the steps, the better half of them half the steps,
the better half of those all steps; schedules shrink with the steps, noise and batch do not.

The output folder holds trials.jsonl (one line for each finished run; the same command goes on where it was stopped), a log for each
run, and at the end recipe.toml, which `ghostshard finetune --config recipe.toml` reads.
"""

import dataclasses
import fcntl
import functools
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ghostshard.errors import Failure, UserError, number, one_line, parser, show, whole_number
from ghostshard.files import make_parent, names_in_output, read_file, replacing, require_regular_file
from ghostshard.local_ranks import prepare_rank
from ghostshard.planned_noise import planned_bins_noise, planned_delta, planned_noise
from ghostshard.tune_flags import TUNABLE, Flags, choose_trials, command_line, groups_of, read_flags, read_space, require_writable, toml, whole, words_of  # fmt: skip

# What this command decides itself, or what would touch more than public texts.
REFUSED = {
    "epochs": "give --steps: a trial has the private run's steps",
    "noise-multiplier": "the noise follows from --target-epsilon for each trial",
    "non-private": "trials have the private run's noise",
    "resume": "the same command goes on where it was stopped",
    "noise-key-file": "trials draw their noise from the system",
    "allow-nonprivate-metrics": "losses are those of --eval-data",
    "config": "write the flags out",
    "noise-blt": "its noise follows from how many texts and steps there are, so trials on other texts would have another",
    "tuning-note": "the recipe says itself how its flags were found",
    "sample-prompt": "a recipe cannot hold it; give it to the private run",
    "tokenizer": "it goes with --sample-prompt; give both to the private run",
    "generate-tokens": "it trains nothing",
    "version": "it trains nothing",
    "budget-register": "trials spend nothing; give it to the private run",
    "budget-limit": "trials spend nothing; give it to the private run",
}
PLACES = ("model", "model-config", "data", "eval-data", "output", "checkpoint-every", "eval-every")
SETTINGS, TRIALS, RECIPE = "settings.json", "trials.jsonl", "recipe.toml"

@dataclass(frozen=True)
class Settings:
    units: int
    target_epsilon: float
    delta: float
    data: str
    eval_data: str
    ranks: int
    rungs: int
    flags: Flags
    trials: list[dict[str, str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)  # digests of all that trials read


@dataclass(frozen=True)
class Result:
    trial: int
    rung: int
    steps: int
    noise_multiplier: float
    loss: float | None  # None: it was no finite number
    standard_error: float | None


def main(arguments: list[str]) -> None:
    options, rest = _parser().parse_known_args(arguments)
    settings = settings_of(options, rest)
    output = Path(options.output)
    open_folder(output, settings)
    with _alone_in(output):
        _tune(settings, finished_in(output), output)


def _tune(settings: Settings, results: list[Result], output: Path) -> None:
    noise = {}
    for trial in settings.trials:
        noise[_noise_key(settings, trial)] = None
    for key in noise:
        noise[key] = noise_multiplier(settings, *key)
    best = halve(settings, noise, results, output)
    write_recipe(output / RECIPE, settings, best, results)
    show(f"Best of {len(settings.trials)} trials: {words_of(settings.trials[best.trial])}, loss {best.loss:.4f} on {settings.eval_data}")
    show(f"Written: {output / RECIPE}. With the private texts: ghostshard finetune --config {output / RECIPE} "
          "--model … --data … --output …")  # fmt: skip


def _parser():
    command = parser(
        "ghostshard tune",
        "Finds flags for a private run on texts declared public: spends nothing. Other flags go to ghostshard finetune as they are.",
    )
    command.add_argument("--data", required=True, help="public texts to train on, prepared with --declare public")
    command.add_argument("--eval-data", required=True, help="other public texts: their loss decides")
    command.add_argument("--output", required=True, help="folder for trials and recipe.toml")
    command.add_argument("--units", required=True, type=whole_number(at_least=1), help="the number of private texts (or users)")
    command.add_argument("--target-epsilon", required=True, type=number(at_least=0), help="of the private run")
    command.add_argument("--delta", type=number(at_least=0), help="of the private run (default: min(1e-6, units^-1.1))")
    command.add_argument("--try", dest="tried", action="append", default=[], metavar="FLAG=V1,V2",
                         help=f"values of a flag; repeatable, all combinations are trials. Flags: {', '.join(TUNABLE)}")  # fmt: skip
    command.add_argument("--trials", type=whole_number(at_least=1), default=16, help="at most so many of them, chosen by --seed")
    command.add_argument("--rungs", type=whole_number(at_least=1, at_most=6), default=3, help="1: every trial runs all steps")
    command.add_argument("-n", "--ranks", type=whole_number(at_least=1, at_most=4096), default=1)
    return command


def settings_of(options, rest: list[str]) -> Settings:
    """UserError for every mistake that can be seen before a trial runs."""
    flags = read_flags(rest)
    for name, reason in REFUSED.items():
        if name in flags:
            raise UserError(f"--{name} is not for tuning: {reason}")
    if flags.get("max-batch", "auto") != "auto":  # how much noise a number adds, only the training program says
        raise UserError(f"--max-batch must be auto for tuning, got {flags['max-batch']}: another cap adds noise that trials would not have")
    require_writable({name: value for name, value in flags.items() if name not in PLACES})
    units = {path: public_units(Path(path)) for path in (options.data, options.eval_data)}
    if not options.target_epsilon > 0:
        raise UserError(f"--target-epsilon must be > 0, got {options.target_epsilon}")
    space = read_space(options.tried, flags)
    for name in ("steps", "expected-batch"):
        for value in space.get(name, [flags.get(name)]):
            whole(name, value)
    delta = planned_delta(options.delta, options.units)
    trials = choose_trials(space, flags, units[options.data], options.units, options.trials, _say)
    return Settings(
        options.units, options.target_epsilon, delta, options.data, options.eval_data, options.ranks, options.rungs, flags, trials,
        {str(path): _digest(path) for path in [*map(Path, units), *_starting_point(flags)]},
    )  # fmt: skip


def _starting_point(flags: Flags) -> list[Path]:
    """The files beside the texts that decide what a trial trains. One that is not there is for the program to name."""
    named = [Path(str(flags[name])) for name in ("model", "model-config", "optimizer-groups") if name in flags]
    inside = [path for folder in named if folder.is_dir() for path in (*folder.glob("*.json"), *folder.glob("*.safetensors"))]
    return sorted(path for path in (*named, *inside) if path.is_file())


def _digest(path: Path) -> str:
    require_regular_file(path)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def public_units(path: Path) -> int:
    """The number of units of a file that says itself that it is public. Nothing else is opened beyond its header."""
    try:
        require_regular_file(path)
        with safe_open(path, framework="numpy") as file:
            declared = (file.metadata() or {}).get("declared")
            if declared == "public":
                name = "unit_offsets" if "unit_offsets" in file.keys() else "offsets"
                shape = file.get_slice(name).get_shape()
                if len(shape) != 1 or shape[0] < 2:
                    raise UserError(f"{path} must hold at least one text, {name!r} has shape {shape}")
                return shape[0] - 1
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} must be a file written by `ghostshard data prepare`: {error}") from error
    found = "private" if declared == "private" else "neither public nor private"
    raise UserError(
        f"{path}: tuning reads only texts declared public, this file was declared {found} "
        "(`ghostshard data prepare --declare public`)"
    )


def open_folder(output: Path, settings: Settings) -> None:
    """UserError if the folder is another tuning's."""
    stated = json.loads(json.dumps(dataclasses.asdict(settings)))
    found = output / SETTINGS
    present = names_in_output(output)
    if SETTINGS in present:
        if _read_settings(found) != stated:
            raise UserError(f"{output} holds the trials of another tuning: other flags, texts or starting weights; give a new --output")
    else:
        if present:
            raise UserError(f"--output must be a new folder or one of the same tuning, {output} holds other files")
        make_parent(output)
        output.mkdir(exist_ok=True)
        with replacing(found) as partial:
            partial.write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8")


def finished_in(output: Path) -> list[Result]:
    """What earlier calls with the same settings have finished."""
    lines = read_file(output / TRIALS).decode("utf-8").splitlines(keepends=True) if (output / TRIALS).exists() else []
    finished = [line for line in lines if line.endswith("\n")]  # a crash may have cut the last one
    if len(finished) != len(lines):
        (output / TRIALS).write_text("".join(finished), encoding="utf-8")
    try:
        return [Result(**json.loads(line)) for line in finished]
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{output / TRIALS} holds a line that this command did not write: give a new --output") from error


@contextmanager
def _alone_in(output: Path) -> Iterator[None]:
    """UserError if another tuning is at work in the folder: both would write the same trials. A killed one is not."""
    with ExitStack() as opened:
        folder = os.open(output, os.O_RDONLY | os.O_DIRECTORY)
        opened.callback(os.close, folder)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another tuning is at work in {output}: wait until it has ended, or give a new --output") from error
        yield


def _read_settings(path: Path) -> object:
    """None if it is no file of this command's."""
    try:
        return json.loads(read_file(path).decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def noise_multiplier(settings: Settings, batch: int, bands: int, steps: int) -> float:
    """The private run's: its accountant, not this command, decides."""
    if settings.flags.get("sampling") == "balls-in-bins":
        return planned_bins_noise(settings.target_epsilon, settings.delta, settings.units, batch, steps)
    return planned_noise(settings.target_epsilon, settings.delta, f"{batch * bands}/{settings.units}", -(-steps // bands))


def halve(settings: Settings, noise: dict, results: list[Result], output: Path) -> Result:
    alive = list(range(len(settings.trials)))
    for rung in range(settings.rungs):
        finished = []
        for place, trial in enumerate(alive):
            known = [result for result in results if (result.trial, result.rung) == (trial, rung)]
            if not known:
                known = [run_trial(settings, noise, trial, rung, output)]
                _append(output / TRIALS, known[0])
                results.append(known[0])
            finished.append(known[0])
            shown = "no finite loss" if known[0].loss is None else f"loss {known[0].loss:.4f} ± {known[0].standard_error:.4f}"
            _say(f"round {rung + 1} of {settings.rungs}, trial {place + 1} of {len(alive)}: {shown} after {known[0].steps} steps, "
                 f"{words_of(settings.trials[trial])}")  # fmt: skip
        finished.sort(key=lambda result: math.inf if result.loss is None else result.loss)
        if finished[0].loss is None:
            raise Failure(f"no trial had a finite loss; the logs are in {output}")
        alive = [result.trial for result in finished[: -(-len(finished) // 2)]]
    return finished[0]


def run_trial(settings: Settings, noise: dict, trial: int, rung: int, output: Path) -> Result:
    merged: Flags = {**settings.flags, **settings.trials[trial]}
    share = 0.5 ** (settings.rungs - 1 - rung)
    all_steps = whole("steps", merged["steps"])
    steps = max(1, round(all_steps * share), groups_of(merged))
    sigma = noise[_noise_key(settings, settings.trials[trial])]
    if "warmup-steps" in merged:
        merged["warmup-steps"] = str(min(steps - 1, int(whole("warmup-steps", merged["warmup-steps"], at_least=0) * steps / all_steps)))
    folder = output / f"trial-{trial:03d}-{rung}"
    shutil.rmtree(folder, ignore_errors=True)
    merged |= {"steps": str(steps), "noise-multiplier": repr(sigma), "delta": repr(settings.delta), "data": settings.data,
               "eval-data": settings.eval_data, "output": str(folder), "checkpoint-every": "0", "eval-every": str(steps)}  # fmt: skip
    command = [sys.executable, "-m", "ghostshard.launcher", "finetune", "-n", str(settings.ranks), *command_line(merged)]
    log = output / f"{folder.name}.log"
    with log.open("wb") as stream:
        as_rank = functools.partial(prepare_rank, os.getpid())
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, preexec_fn=as_rank).returncode
    if code == 3 or code >= 128 or code < 0:
        raise KeyboardInterrupt
    if code != 0:
        mistakes = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("error: ")]
        said = mistakes[-1].removeprefix("error: ") if mistakes else f"see {log}"
        raise (UserError if code == 2 else Failure)(f"trial {words_of(settings.trials[trial])}: {said}")
    last = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    shutil.rmtree(folder)
    loss, error = last.get("eval_loss"), last.get("eval_standard_error")
    finite = isinstance(loss, float) and math.isfinite(loss)
    return Result(trial, rung, steps, sigma, loss if finite else None, error if finite else None)


def write_recipe(path: Path, settings: Settings, best: Result, results: list[Result]) -> None:
    flags: Flags = {**settings.flags, **settings.trials[best.trial]}
    flags = {name: value for name, value in flags.items() if name not in PLACES}
    ranked = sorted(results, key=lambda result: (-result.rung, math.inf if result.loss is None else result.loss))
    note = (f"{len(results)} runs of {len(settings.trials)} settings on texts declared public, with this run's noise; "
            "the private texts were not read")  # fmt: skip
    lines = [
        "# Written by `ghostshard tune`. Use: ghostshard finetune --config recipe.toml --model … --data … --output …",
        f"# Planned for {settings.units} private units; the noise multiplier would be {best.noise_multiplier!r}.",
        f"target-epsilon = {settings.target_epsilon!r}", f"delta = {settings.delta!r}",
        *(f"{name} = {toml(value)}" for name, value in flags.items()),
        f"tuning-note = {toml(note)}",
        "",
        "# Tried, best first: the loss on the public texts, its standard error, steps, noise multiplier, flags.",
        *(f"# {_loss(result)}  {result.steps:6d}  {result.noise_multiplier:.4f}  {words_of(settings.trials[result.trial])}"
          for result in ranked),
    ]  # fmt: skip
    with replacing(path) as partial:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _loss(result: Result) -> str:
    return "no finite loss " if result.loss is None else f"{result.loss:.4f} {result.standard_error:.4f}"


def _noise_key(settings: Settings, trial: dict[str, str]) -> tuple[int, int, int]:
    merged = {**settings.flags, **trial}
    return whole("expected-batch", merged.get("expected-batch")), groups_of(merged), whole("steps", merged.get("steps"))


def _append(path: Path, result: Result) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(dataclasses.asdict(result)) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def _say(text: str) -> None:
    print(one_line(text), file=sys.stderr, flush=True)
