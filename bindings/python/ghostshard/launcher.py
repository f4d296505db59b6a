"""The command `ghostshard`: fine-tuning on one rank or several, the accountant, data, generated text, and what is missing."""

import os
import sys
from collections.abc import Callable

from ghostshard import __version__
from ghostshard.binary import find_binary
from ghostshard.errors import UserError, did_you_mean, run, typed_text
from ghostshard.local_ranks import run_ranks

HELP = """Fine-tunes language models with differential privacy. `ghostshard COMMAND --help` explains a command.

  ghostshard finetune [-n RANKS] ...   fine-tune GPT-2 under a privacy budget, on RANKS processes of this machine (default: 1)
  ghostshard tune ...                  flags for a private run, found on texts declared public: spends nothing
  ghostshard advise ...                how much noise a plan's batch and steps mean, and what other batches would
  ghostshard data ...                  from texts to the file that training reads: split, tokenizer, prepare
  ghostshard generate ...              continue a prompt with a fine-tuned model
  ghostshard metrics RUN ...           a run's public numbers and samples, for TensorBoard and as CSV, while it runs or afterwards
  ghostshard account ...               what has been spent: epsilon, noise, steps, report, verify, register
  ghostshard doctor                    what this installation has, and what it lacks

Exit status: 0 done, 1 a failure, 2 a mistake in what was asked, 3 stopped with a checkpoint by Ctrl-C or SIGTERM.
Several machines: torchrun --no-python ghostshard finetune ...
"""
RANKS = ("-n", "--ranks")


def replace_process(program: str, arguments: list[str]) -> int:
    """Exit status and signals are the program's own."""
    binary = find_binary(program=program) if program != PROGRAMS["finetune"] else find_binary()
    sys.stdout.flush()
    os.execv(binary, [str(binary), *arguments])


def take_ranks(arguments: list[str]) -> tuple[int | None, list[str]]:
    """The value of -n, and the other words. UserError unless it is a whole number of at least 1."""
    rest, value, words = [], None, iter(arguments)
    for word in words:
        flag, equals, text = word.partition("=")
        if word.startswith("-n") and word[2:].isdigit():
            flag, equals, text = "-n", "=", word[2:]
        if flag not in RANKS:
            rest.append(word)
            continue
        if value is not None:
            raise UserError(f"the number of ranks is given twice: give {flag} once")
        value = text if equals else next(words, "")
        if not (value.isascii() and value.isdigit() and value[0] != "0" and len(value) < 9 and int(value) <= 4096):
            raise UserError(f"{flag} must be a whole number of ranks from 1 to 4096, got {value!r}")
    return (int(value) if value is not None else None), rest


def with_sample_tokens(arguments: list[str]) -> list[str]:
    """--sample-prompt TEXT and --tokenizer DIR|gpt2 as the program has them: --sample-tokens IDS. UserError if one lacks the other."""
    rest, given, words = [], {}, iter(arguments)
    for word in words:
        flag, equals, text = word.partition("=")
        if flag not in ("--sample-prompt", "--tokenizer"):
            rest.append(word)
            continue
        value = text if equals else next(words, None)
        if value is None:
            raise UserError(f"{flag} needs a value")
        if flag == "--tokenizer" and not value:
            raise UserError("--tokenizer must be a folder or gpt2, got ''")
        if flag in given:
            raise UserError(f"{flag} is given twice: give it once")
        given[flag] = value
    if not given:
        return rest
    if len(given) == 1:
        raise UserError(f"--sample-prompt TEXT and --tokenizer DIR|gpt2 go together, got {next(iter(given))} alone")
    from ghostshard.texts.vocabulary import load_vocabulary

    vocabulary = load_vocabulary(given["--tokenizer"])
    ids = vocabulary.encode([typed_text(given["--sample-prompt"], "--sample-prompt")])[0] or [vocabulary.end_of_text_id]
    return [*rest, "--sample-tokens", ",".join(map(str, ids))]


def finetune(arguments: list[str]) -> int:
    ranks, rest = take_ranks(arguments)
    rest = with_sample_tokens(rest)
    launched = os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1") or "TORCHELASTIC_RUN_ID" in os.environ
    if launched and ranks is not None:
        raise UserError("-n starts ranks, and this is one of the ranks of another launcher (WORLD_SIZE is set): leave -n out")
    if launched or ranks in (None, 1) or {"-h", "--help", "--version"} & set(rest):
        return replace_process(PROGRAMS["finetune"], rest)
    return run_ranks([str(find_binary()), *rest], ranks)


def account(arguments: list[str]) -> int:
    return replace_process(PROGRAMS["account"], arguments)


def data(arguments: list[str]) -> int:
    from ghostshard.texts.__main__ import main as texts

    return texts(arguments)


def tune(arguments: list[str]) -> int:
    from ghostshard.tune import main as find_flags

    find_flags(arguments)
    return 0


def advise(arguments: list[str]) -> int:
    from ghostshard.advise import main as show_noise

    return show_noise(arguments)


def generate(arguments: list[str]) -> int:
    from ghostshard.generate import main as continue_prompt

    return continue_prompt(arguments)


def metrics(arguments: list[str]) -> int:
    from ghostshard.metrics import main as show

    return show(arguments)


def doctor(arguments: list[str]) -> int:
    from ghostshard.doctor import main as examine

    return examine(arguments)


PROGRAMS = {"finetune": "ghostshard-finetune-gpt2", "account": "ghostshard-account"}
COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "finetune": finetune, "tune": tune, "advise": advise, "data": data, "generate": generate, "metrics": metrics,
    "account": account, "doctor": doctor,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    return run(_main, arguments)


def _main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"ghostshard {__version__}")
        return 0
    command, *rest = arguments
    if command not in COMMANDS:
        raise UserError(f"there is no command {command}{did_you_mean(command, COMMANDS)} (ghostshard --help lists them)")
    return COMMANDS[command](rest)


if __name__ == "__main__":
    sys.exit(main())
