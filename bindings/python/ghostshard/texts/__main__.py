"""ghostshard data {split,tokenizer,prepare}: see each one's --help."""

import json
import sys
from pathlib import Path

from ghostshard.errors import UserError, parser, run, show, whole_number
from ghostshard.files import replacing, require_apart, require_writable_file, require_writable_folder
from ghostshard.texts.packed import encode_units, write_packed
from ghostshard.texts.split import split_indices, units_of
from ghostshard.texts.tables import TABLES
from ghostshard.texts.text import FORMATS, TextData, format_of, read_units, to_jsonl
from ghostshard.texts.user_names import alike
from ghostshard.texts.vocabulary import VOCABULARY_FILES, gpt2_vocabulary, load_vocabulary, train_vocabulary

SPLIT_FILES = {"public-train.jsonl", "public-eval.jsonl", "private.jsonl", "split.json"}


def main(arguments: list[str] | None = None) -> int:
    return run(_main, arguments)


def _main(arguments: list[str]) -> None:
    commands = parser("ghostshard data", "From text to the file that training reads.")
    sub = commands.add_subparsers(dest="command", required=True, metavar="split|tokenizer|prepare")

    prepare = sub.add_parser("prepare", allow_abbrev=False, help="turn texts into tokens, one privacy unit per text or per user")
    _add_input(prepare)
    _add_users(prepare)
    prepare.add_argument("--max-texts-per-user", type=whole_number(at_least=1), metavar="N",
                         help="keep a user's first N texts")
    prepare.add_argument("--max-tokens-per-user", type=whole_number(at_least=1), metavar="N",
                         help="and of these the texts that fit into N tokens together, but always one")
    prepare.add_argument("--tokenizer", required=True, metavar="DIR|gpt2",
                         help="a folder with a tokenizer as Hugging Face writes it, or GPT-2's vocabulary")
    prepare.add_argument("--max-length", required=True, type=whole_number(at_least=2), metavar="N",
                         help="cut a text after N tokens")
    prepare.add_argument("--begin-with-end-of-text", action="store_true",
                         help="put the end-of-text token in front of each text as well")
    prepare.add_argument("--declare", choices=("private", "public"), default="private",
                         help="whether the file declares its texts private or public (default: private)")
    _add_output(prepare, "the safetensors file to write")
    prepare.set_defaults(run=_prepare)

    split = sub.add_parser("split", allow_abbrev=False, help="declare a part of the units public, by a seeded order that sees no text")
    _add_input(split)
    _add_users(split)
    split.add_argument("--public-units", required=True, type=whole_number(at_least=0), metavar="N",
                       help="how many become public-train.jsonl")
    split.add_argument("--eval-units", required=True, type=whole_number(at_least=0), metavar="N",
                       help="how many become public-eval.jsonl")
    split.add_argument("--seed", default=0, type=whole_number(at_least=0), metavar="N")
    _add_output(split, "the folder to write: public-train.jsonl, public-eval.jsonl, private.jsonl, split.json")
    split.set_defaults(run=_split)

    tokenizer = sub.add_parser("tokenizer", allow_abbrev=False, help="learn a byte-level BPE vocabulary from public texts")
    _add_input(tokenizer, required=False)
    tokenizer.add_argument("--gpt2", action="store_true", help="write GPT-2's vocabulary; reads no input")
    # The trainer reserves memory for all tokens at once.
    tokenizer.add_argument("--vocab-size", type=whole_number(at_least=257, at_most=1_000_000), metavar="N")
    _add_output(tokenizer, "the folder to write, as transformers' AutoTokenizer loads it")
    tokenizer.set_defaults(run=_tokenizer)

    options = commands.parse_args(arguments)
    options.run(options)


def _add_input(command, required: bool = True) -> None:
    command.add_argument("--format", choices=(*FORMATS, *TABLES),
                         help="default: what the name of a .jsonl, .csv or .parquet file says, or the files of a folder. "
                         "fortunes: texts between lines of %%, a file or a folder; e2e: CSV with mr and ref; "
                         "text: one per line; jsonl: {text} or {prompt, completion}; csv, parquet (a file or a folder), dataset "
                         "(a folder that save_to_disk() of Hugging Face's datasets wrote): --text-field names the column")
    command.add_argument("--input", required=required, type=Path, metavar="PATH")
    command.add_argument("--text-field", metavar="NAME", help="csv, parquet, dataset: the column of texts (default: text)")
    command.add_argument("--prompt-field", metavar="NAME", help="the same: a column that is read before the text, not learnt")


def _add_users(command) -> None:
    users = command.add_mutually_exclusive_group()
    users.add_argument("--user-field", metavar="NAME",
                       help="jsonl, csv, parquet, dataset: this field names a text's user, and all texts of a user are one "
                       "privacy unit")
    users.add_argument("--users-file", type=Path, metavar="PATH", help="text: the same, by a file that names a user on each line")


def _read(options, **users) -> TextData:
    options.format = options.format or format_of(options.input)
    return read_units(options.format, options.input, text_field=options.text_field, prompt_field=options.prompt_field, **users)


def _add_output(command, help: str) -> None:
    command.add_argument("--output", required=True, type=Path, metavar="PATH", help=help)
    command.add_argument("--force", action="store_true", help="overwrite the output")


def _dropped(texts: TextData) -> str:
    return f"; {texts.dropped_empty} without text left out" if texts.dropped_empty else ""


def _warn_of_alike_users(texts: TextData) -> None:
    if found := alike(unit.user for unit in texts.units if unit.user is not None):
        print(f"warning: the names of {found} users differ from another's in case, spaces, compatible forms or unseen signs alone, and each is "
              "a user: a person who has several has less protection", file=sys.stderr)  # fmt: skip


def _prepare(options) -> None:
    require_writable_file(options.output, force=options.force)
    require_apart(options.output, options.input, options.users_file)
    vocabulary = load_vocabulary(options.tokenizer)
    texts = _read(options, user_field=options.user_field, users_file=options.users_file)
    _warn_of_alike_users(texts)
    data = encode_units(texts.units, vocabulary, max_length=options.max_length,
                        begin_with_end_of_text=options.begin_with_end_of_text,
                        max_texts_per_user=options.max_texts_per_user, max_tokens_per_user=options.max_tokens_per_user)
    data.metadata.update(format=options.format, declared=options.declare, dropped_empty=str(texts.dropped_empty))
    write_packed(options.output, data)
    facts = data.metadata
    of_users = f" (users, {facts['texts']} texts)" if facts["unit"] == "user" else ""
    show(f"{options.output}: {facts['units']} units{of_users}, {facts['tokens']} tokens, vocabulary {facts['vocab_size']}, "
          f"{facts['truncated']} cut to {options.max_length} tokens"
          + (f"; {facts['dropped_no_loss']} with nothing to predict left out" if facts["dropped_no_loss"] != "0" else "")
          + (f"; {facts['dropped_over_cap']} texts over the cap of their user left out"
             if facts.get("dropped_over_cap", "0") != "0" else "")
          + _dropped(texts))


def _split(options) -> None:
    require_writable_folder(options.output, force=options.force, holds=SPLIT_FILES)
    require_apart(options.output, options.input, options.users_file)
    texts = _read(options, user_field=options.user_field, users_file=options.users_file)
    _warn_of_alike_users(texts)
    groups = units_of(texts.units)
    split = split_indices(len(groups), public_units=options.public_units, eval_units=options.eval_units, seed=options.seed)
    parts = {"public-train": split.public_train, "public-eval": split.public_eval, "private": split.private}
    by_user = texts.units[0].user is not None
    field = options.user_field or "user"
    with replacing(options.output) as folder:
        folder.mkdir()
        for name, indices in parts.items():
            records = (texts.units[text] for index in indices for text in groups[index])
            (folder / f"{name}.jsonl").write_text(to_jsonl(records, field), encoding="utf-8", newline="\n")
        facts = {"format": options.format, "seed": options.seed, "unit": "user" if by_user else "text", "units": len(groups),
                 "dropped_empty": texts.dropped_empty, **{name: len(indices) for name, indices in parts.items()}}
        (folder / "split.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    kind = f" users; prepare them with --format jsonl --user-field {field}" if by_user else ""
    show(f"{options.output}: " + ", ".join(f"{len(indices)} {name}" for name, indices in parts.items()) + kind + _dropped(texts))


def _tokenizer(options) -> None:
    require_writable_folder(options.output, force=options.force, holds=VOCABULARY_FILES)
    require_apart(options.output, options.input)
    if options.gpt2:
        if options.input is not None or options.vocab_size is not None:
            raise UserError("--gpt2 writes a fixed vocabulary; it goes with neither --input nor --vocab-size")
        vocabulary = gpt2_vocabulary()
    else:
        if options.input is None or options.vocab_size is None:
            raise UserError("tokenizer needs --input and --vocab-size, or --gpt2")
        texts = _read(options)
        vocabulary = train_vocabulary((unit.prompt + unit.text for unit in texts.units), size=options.vocab_size)
    with replacing(options.output) as folder:
        vocabulary.save(folder)
    show(f"{options.output}: {vocabulary.size} tokens")


if __name__ == "__main__":
    sys.exit(main())
