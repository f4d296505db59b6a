"""python -m ghostshard.generate --model DIR --prompt "…": text in, text out.

Text becomes tokens here, and tokens become text; the model runs in the C++ program, by

    ghostshard-finetune-gpt2 --model DIR --generate-tokens 1,2,3 --max-new-tokens N --temperature T --top-k K --seed S

which prints one line `tokens: 4,5,6`: the new tokens, without the prompt's.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ghostshard.binary import find_binary
from ghostshard.errors import Failure, UserError, number, parser, run, typed_text, whole_number
from ghostshard.texts.vocabulary import Vocabulary, load_vocabulary

LEAST_TEMPERATURE = 1e-6  # as the program has it: scores over less are no float32


@dataclass(frozen=True)
class Sampling:
    max_new_tokens: int = 64
    temperature: float = 0.8  # 0: always the likeliest token
    top_k: int = 40  # 0: no limit
    seed: int = 0


def generate(model: Path, prompt: str, *, tokenizer: str | None = None, sampling: Sampling = Sampling(),
             backend: str = "native", binary: str | None = None) -> str:
    """The prompt and the model's continuation, up to the end-of-text token. An empty prompt starts a new text.

    binary names the C++ program for the native backend; default: find_binary(). UserError for a folder that holds no model or
    no tokenizer, Failure if the program fails.
    """
    if 0 < sampling.temperature < LEAST_TEMPERATURE:
        raise UserError(f"--temperature must be 0 or at least {LEAST_TEMPERATURE} (scores are float32), got {sampling.temperature}")
    if not (model / "config.json").is_file():
        raise UserError(f"the model must be a folder with config.json, {model} is not")
    vocabulary = load_vocabulary(tokenizer or _tokenizer_beside(model))
    ids = vocabulary.encode([prompt])[0] or [vocabulary.end_of_text_id]
    if backend == "native":
        new = _native(find_binary(binary), model, ids, sampling)
    else:
        new = _transformers(model, ids, vocabulary, sampling)
    if vocabulary.end_of_text_id in new:
        new = new[: new.index(vocabulary.end_of_text_id)]
    return prompt + vocabulary.decode(new)


def _tokenizer_beside(model: Path) -> str:
    if (model / "tokenizer.json").is_file() or (model / "vocab.json").is_file():
        return str(model)
    raise UserError(f"{model} holds no tokenizer; name one with --tokenizer DIR|gpt2")


def _native(binary: Path, model: Path, ids: list[int], sampling: Sampling) -> list[int]:
    command = [
        str(binary),
        "--model", str(model),
        "--generate-tokens", ",".join(map(str, ids)),
        "--max-new-tokens", str(sampling.max_new_tokens),
        "--temperature", repr(sampling.temperature),
        "--top-k", str(sampling.top_k),
        "--seed", str(sampling.seed),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    except OSError as error:
        raise UserError(f"{command[0]} cannot be started: {error.strerror}") from error
    if done.returncode == 2:
        raise UserError(_last_line(done.stderr).removeprefix("error: "))
    if done.returncode != 0:
        raise Failure(f"{command[0]} ended with status {done.returncode}: {_last_line(done.stderr)}")
    line = re.search(r"(?m)^tokens:[ \t]*((?:\d+(?:,\d+)*)?)[ \t]*$", done.stdout)
    if line is None:
        raise Failure(f"{command[0]} must print a line `tokens: 1,2,3`, printed {_last_line(done.stdout)!r} at the end")
    return [int(token) for token in line[1].split(",") if token]


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "nothing")


def _last_line(text: str) -> str:
    return _first_line("\n".join(reversed(text.splitlines())))


def _transformers(model: Path, ids: list[int], vocabulary: Vocabulary, sampling: Sampling) -> list[int]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        network, found = transformers.AutoModelForCausalLM.from_pretrained(model, local_files_only=True, output_loading_info=True)
    except Exception as error:  # a dozen kinds, by what is wrong with the folder
        raise UserError(f"transformers cannot load the model in {model}: {_first_line(str(error))}") from error
    if missing := sorted(found["missing_keys"]):  # transformers would draw them at random
        raise UserError(f"the model in {model} lacks {len(missing)} of its weights, {missing[0]} for one")
    network.eval()
    torch.manual_seed(sampling.seed)
    choice = (
        {"do_sample": True, "temperature": sampling.temperature, "top_k": sampling.top_k}
        if sampling.temperature > 0
        else {"do_sample": False}
    )
    prompt = torch.tensor([ids])
    with torch.inference_mode():
        output = network.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=vocabulary.end_of_text_id,
            pad_token_id=vocabulary.end_of_text_id,
            **choice,
        )
    return output[0, len(ids) :].tolist()


def main(arguments: list[str] | None = None) -> int:
    return run(_main, arguments)


def _main(arguments: list[str]) -> None:
    command = parser("ghostshard generate", "Continues a prompt with a model from a Hugging Face folder.")
    command.add_argument("--model", required=True, type=Path, metavar="DIR")
    command.add_argument("--prompt", required=True, metavar="TEXT", help='"" lets the model begin a text')
    command.add_argument("--tokenizer", metavar="DIR|gpt2", help="default: the one in the model's folder")
    command.add_argument("--max-new-tokens", default=Sampling.max_new_tokens, type=whole_number(at_least=1), metavar="N")
    command.add_argument("--temperature", default=Sampling.temperature, type=number(at_least=0), metavar="T",
                         help="0 takes the likeliest token each time")
    command.add_argument("--top-k", default=Sampling.top_k, type=whole_number(at_least=0), metavar="K",
                         help="choose among the K likeliest tokens; 0: among all")
    command.add_argument("--seed", default=Sampling.seed, type=whole_number(at_least=0), metavar="N")
    command.add_argument("--backend", choices=("native", "transformers"), default="native",
                         help="native: the C++ program; transformers: Hugging Face's own code (default: native)")
    command.add_argument("--binary", metavar="FILE", help="the C++ program (default: the one built in this tree)")
    options = command.parse_args(arguments)
    sampling = Sampling(options.max_new_tokens, options.temperature, options.top_k, options.seed)
    print(generate(options.model, typed_text(options.prompt, "--prompt"), tokenizer=options.tokenizer, sampling=sampling,
                   backend=options.backend, binary=options.binary))


if __name__ == "__main__":
    sys.exit(main())
