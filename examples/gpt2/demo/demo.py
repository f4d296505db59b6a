"""The program of `make finetune`, from texts to a report: `python examples/gpt2/demo/demo.py`.

Every number is in demo.json beside this file, which says what to change; the entries under "warm_start" and "private" are
passed to ghostshard-finetune-gpt2 as flags of the same names. `--tune` tries the flags under "tune" on the public texts (ghostshard tune) and writes the file named
as "recipe"; if that is there, its flags take the place of "private". Data and warm start are kept in data-cache/ under a hash of
everything they depend on, so a second call goes straight to the private phase.

Only the number of the private texts is printed: it counts as public, like the other constants of the plan.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from ghostshard.binary import find_binary, repository
from ghostshard.errors import Failure, UserError, parser, run
from ghostshard.files import replacing
from ghostshard.local_ranks import STOPPED, run_ranks
from ghostshard.texts import encode_units, load_vocabulary, read_packed, read_units, split_indices, train_vocabulary, write_packed  # fmt: skip
from ghostshard.texts.generate import Sampling, generate
from ghostshard.texts.text import TextUnit
from ghostshard.texts.vocabulary import Vocabulary
from ghostshard.tune import main as find_recipe

# Raise it when the content of data-cache/ changes for the same settings.
CACHE_VERSION = 3

PARTS = ("public-train", "public-eval", "private")


def main(arguments: list[str] | None = None) -> int:
    return run(_main, arguments)


def _main(arguments: list[str]) -> None:
    command = parser("python examples/gpt2/demo/demo.py", "Fine-tunes a small GPT-2 on real texts under a privacy budget.")
    command.add_argument("--config", type=Path, default=repository() / "examples" / "gpt2" / "demo" / "demo.json")
    command.add_argument("--cache", type=Path, default=repository() / "data-cache")
    command.add_argument("--runs", type=Path, default=repository() / "runs")
    command.add_argument("--tune", action="store_true", help="find the recipe anew on the public texts, and train nothing private")
    options = command.parse_args(arguments)

    config = _read_json(options.config)
    model_config = options.config.parent / config["model_config"]
    binary = find_binary()

    data = prepare_data(config, _read_json(model_config), options.cache)
    counts = {part: read_packed(data / f"{part}.safetensors").units for part in PARTS}
    note = (
        f"{counts['public-train']} of the {sum(counts.values())} texts, chosen by seed and position alone, were declared "
        f"public: vocabulary and starting weights come from them; {counts['public-eval']} more for evaluation."
    )
    _say(f"{counts['private']} private texts; {note}")

    warm_model = warm_start(config, model_config, data, options.cache, binary)
    recipe = options.config.parent / config["recipe"] if "recipe" in config else None
    if options.tune:
        return tune(config, recipe, data, counts["private"], warm_model, options.cache)
    output = _next_folder(options.runs)
    _say(f"private phase on {config['ranks']} ranks, into {_shown(output)}")
    _train(
        "the private phase", config["ranks"], binary,
        {**({"config": recipe} if recipe and recipe.is_file() else config["private"]), "public-note": note, "model": warm_model, "data": data / "private.safetensors",
         "eval-data": data / "public-eval.safetensors", "output": output},
    )  # fmt: skip
    _copy_tokenizer(data / "tokenizer", output / "model")
    print(closing_words(config, output))


def prepare_data(config: dict, model_config: dict, cache: Path) -> Path:
    """The folder with tokenizer/ and one .safetensors per part, made if the cache does not hold it."""
    knobs = config["data"]
    if knobs["max_length"] > model_config["n_positions"] + 1:
        raise UserError(
            f"max_length must be at most n_positions + 1 ({model_config['n_positions'] + 1}), is {knobs['max_length']}"
        )
    texts = read_units(config["format"], Path(config["input"]))
    folder = cache / f"data-{_digest(knobs, model_config['vocab_size'], config['format'], _texts_digest(texts.units))}"
    if folder.is_dir():
        return folder
    _say(f"preparing {len(texts.units)} texts from {config['input']}")
    split = split_indices(
        len(texts.units), public_units=knobs["public_units"], eval_units=knobs["eval_units"], seed=knobs["split_seed"]
    )
    cache.mkdir(parents=True, exist_ok=True)
    with replacing(folder) as partial:
        partial.mkdir()
        public = [texts.units[index] for index in split.public_train]
        train_vocabulary((unit.prompt + unit.text for unit in public), size=model_config["vocab_size"]).save(
            partial / "tokenizer"
        )
        vocabulary = load_vocabulary(str(partial / "tokenizer"))
        # As training sees them: texts that differ behind the cut are one.
        seen = _seen_tokens(texts.units, vocabulary, knobs["max_length"])
        chosen = {"public-train": split.public_train}
        known = {seen[index] for index in split.public_train}
        chosen["public-eval"] = [index for index in split.public_eval if seen[index] not in known]
        # A private text that is a public one too is left out: a rule that looks at one private text alone. (The other way
        # round, the public texts would tell which of them are private as well.)
        known |= {seen[index] for index in split.public_eval}
        chosen["private"] = [index for index in split.private if seen[index] not in known]
        for part, indices in chosen.items():
            packed = encode_units(
                (texts.units[index] for index in indices), vocabulary,
                max_length=knobs["max_length"], begin_with_end_of_text=True,
            )  # fmt: skip
            packed.metadata.update(
                tokenizer="trained on the public part", format=config["format"],
                declared="private" if part == "private" else "public",
            )  # fmt: skip
            write_packed(partial / f"{part}.safetensors", packed)
    return folder


def _seen_tokens(units: list[TextUnit], vocabulary: Vocabulary, max_length: int) -> list[tuple[int, ...]]:
    """Each text's tokens up to the cut, without the end-of-text token in front."""
    pairs = zip(vocabulary.encode([unit.prompt for unit in units]), vocabulary.encode([unit.text for unit in units]), strict=True)
    return [tuple([*prompt, *text, vocabulary.end_of_text_id][: max_length - 1]) for prompt, text in pairs]


def warm_start(config: dict, model_config: Path, data: Path, cache: Path, binary: Path) -> Path:
    """The model folder that the private phase starts from, trained without privacy on the public part alone."""
    folder = cache / f"warm-start-{_digest(config['warm_start'], config['ranks'], _read_json(model_config), data.name)}"
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    if not folder.is_dir() or unfinished.exists():
        _say("warm start on the public texts (kept for the next time)")
        with _in_its_place(folder, unfinished):
            _train(
                "the warm start", config["ranks"], binary,
                {**config["warm_start"], "non-private": True, "model-config": model_config,
                 "data": data / "public-train.safetensors", "eval-data": data / "public-eval.safetensors",
                 "output": folder},
            )  # fmt: skip
            _copy_tokenizer(data / "tokenizer", folder / "model")
    return folder / "model"


@contextlib.contextmanager
def _in_its_place(folder: Path, unfinished: Path) -> Iterator[None]:
    """For a program that prints where it writes: `folder` is made under its own name, and is gone if the `with` body fails. After a
    kill the mark `unfinished` says that it is not whole."""
    unfinished.touch()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        unfinished.unlink()


def tune(config: dict, recipe: Path | None, data: Path, private_units: int, warm_model: Path, cache: Path) -> None:
    """Writes the recipe. Stopped and called again, it goes on."""
    if recipe is None or "tune" not in config:
        raise UserError('--tune needs the entries "recipe" and "tune" in the config')
    folder = cache / f"tuning-{_digest(config['tune'], config['ranks'], warm_model.parent.name, private_units)}"
    find_recipe([
        "--ranks", str(config["ranks"]), "--units", str(private_units), "--data", str(data / "public-train.safetensors"),
        "--eval-data", str(data / "public-eval.safetensors"), "--model", str(warm_model), "--output", str(folder),
        *flags(config["tune"]),
    ])  # fmt: skip
    shutil.copy2(folder / "recipe.toml", recipe)
    print(f"The demo's recipe is now {_shown(recipe)}")


def closing_words(config: dict, output: Path) -> str:
    """A generated text, the guarantee in a line, how to get more texts. The program has printed the rest."""
    sample = Sampling(**{key: value for key, value in config["sample"].items() if key != "prompt"})
    try:
        text = generate(output / "model", config["sample"]["prompt"], sampling=sample)
    except (UserError, Failure) as error:
        text = f"(none: {error})"
    guarantee = _read_json(output / "privacy_report.json")["guarantee"]
    return "\n".join([
        "",
        "A text by the fine-tuned model:",
        *("    " + line for line in text.strip().splitlines()),
        "",
        f"Privacy   epsilon <= {_up(guarantee['epsilon']['upper'])} at delta = {guarantee['delta']:.3g} for one text; "
        f"assumptions and limits in {_shown(output / 'privacy_report.json')}",
        f"More      {_shown(Path(sys.executable))} -m ghostshard.generate --model {_shown(output / 'model')} --prompt \"\"",
    ])  # fmt: skip


def flags(values: dict) -> list[str]:
    """{"steps": 3, "untied": True, "freeze": ["a", "b"]} as --steps 3 --untied --freeze a --freeze b."""
    arguments = []
    for name, value in values.items():
        if value is True:
            arguments.append(f"--{name}")
        elif value is False or value is None:
            continue
        else:
            for item in value if isinstance(value, list) else [value]:
                arguments += [f"--{name}", str(item)]
    return arguments


def _train(part: str, ranks: int, binary: Path, values: dict) -> None:
    """Ctrl-C and SIGTERM reach the ranks, which end in a checkpoint; this program then ends as they do."""
    status = run_ranks([str(binary), *flags(values)], ranks)
    if status == STOPPED or status > 128:
        raise SystemExit(status)
    if status != 0:
        raise Failure(f"{part} ended with status {status}; its own message is above")


def _copy_tokenizer(source: Path, model: Path) -> None:
    for file in source.iterdir():
        if not (model / file.name).exists():
            shutil.copy2(file, model / file.name)


def _next_folder(runs: Path) -> Path:
    taken = [int(path.name.removeprefix("finetune-")) for path in runs.glob("finetune-*")
             if path.name.removeprefix("finetune-").isdigit()]
    runs.mkdir(parents=True, exist_ok=True)
    return runs / f"finetune-{max(taken, default=0) + 1}"


def _texts_digest(units: list[TextUnit]) -> str:
    digest = hashlib.sha256()
    for unit in units:
        for text in (unit.prompt, unit.text):
            digest.update(len(text.encode()).to_bytes(8, "little") + text.encode())
    return digest.hexdigest()


def _digest(*parts) -> str:
    versions = [CACHE_VERSION, importlib.metadata.version("tokenizers")]
    return hashlib.sha256(json.dumps([versions, *parts], sort_keys=True).encode()).hexdigest()[:12]


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error


def _up(epsilon: float | None) -> str:
    """Two decimals, rounded up: a printed epsilon is never smaller than the report's."""
    return "infinity" if epsilon is None else f"{-(-epsilon * 100 // 1) / 100:.2f}"


def _shown(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.absolute().relative_to(Path.cwd()))
    return str(path)


def _say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
