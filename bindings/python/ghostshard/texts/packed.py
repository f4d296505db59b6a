"""The file training reads: texts as tokens end to end, in one safetensors file.

    tokens        int32 [N]    token ids of all texts, one after another
    offsets       int64 [S+1]  text s is tokens[offsets[s]:offsets[s+1]]; never fewer than 2 tokens
    loss_mask     uint8 [N]    1 if a token is to be predicted; 0 for a prompt and for a text's first token, which
                               nothing comes before
    unit_offsets  int64 [U+1]  privacy unit u is the texts unit_offsets[u] to unit_offsets[u+1], at least one; texts
                               see nothing of each other, whosever they are. Without it every text is a unit.

Nothing in the file says who a user is: units stand in the order in which users first appear.

The metadata says how the file was made (encode_units); all values are strings, as the file format wants.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy
from safetensors import SafetensorError, safe_open

from ghostshard.errors import UserError
from ghostshard.files import replacing, require_regular_file
from ghostshard.texts.text import TextUnit
from ghostshard.texts.vocabulary import Vocabulary

SCHEMA = "ghostshard.data/1"  # named when this package was ghostshard.data; files with it stay readable

_TYPES = {"unit_offsets": ("<i8", "I64"), "offsets": ("<i8", "I64"), "tokens": ("<i4", "I32"), "loss_mask": ("u1", "U8")}


@dataclass(frozen=True)
class PackedData:
    tokens: numpy.ndarray  # int32 [N]
    offsets: numpy.ndarray  # int64 [S+1]
    loss_mask: numpy.ndarray  # uint8 [N]
    metadata: dict[str, str] = field(default_factory=dict)
    unit_offsets: numpy.ndarray | None = None  # int64 [U+1]

    @property
    def units(self) -> int:
        return len(self.offsets if self.unit_offsets is None else self.unit_offsets) - 1

    @property
    def texts(self) -> int:
        return len(self.offsets) - 1

    def texts_of(self, unit: int) -> list[list[int]]:
        """The tokens of each of a unit's texts."""
        first, last = (unit, unit + 1) if self.unit_offsets is None else self.unit_offsets[unit : unit + 2]
        return [self.tokens[self.offsets[text] : self.offsets[text + 1]].tolist() for text in range(first, last)]

    def unit(self, index: int) -> list[int]:
        """All tokens of a unit."""
        return [token for text in self.texts_of(index) for token in text]

    def unit_mask(self, index: int) -> list[int]:
        first, last = (index, index + 1) if self.unit_offsets is None else self.unit_offsets[index : index + 2]
        return self.loss_mask[self.offsets[first] : self.offsets[last]].tolist()


def encode_units(
    units: Iterable[TextUnit], vocabulary: Vocabulary, *, max_length: int, begin_with_end_of_text: bool = False,
    max_texts_per_user: int | None = None, max_tokens_per_user: int | None = None,
) -> PackedData:  # fmt: skip
    """Tokens of prompt and text, then the end-of-text token, cut after max_length tokens.

    A cut text has no end-of-text token: it does not end there. A text whose prompt alone fills max_length has nothing
    left to predict; it is left out and counted as dropped_no_loss. begin_with_end_of_text puts the token in front as
    well, so that a model learns how texts begin.

    If texts name their users, a unit is all of a user's texts, in the order of the input. The first max_texts_per_user are
    kept, and of these each that does not bring the kept ones over max_tokens_per_user (always one): a rule that looks at one
    user alone, as everything that is done before training must. UserError for caps without users, or if nothing is left.
    """
    if max_length < 2:
        raise UserError(f"--max-length must be at least 2 (a token and one to predict), got {max_length}")
    units = list(units)
    by_user = any(unit.user is not None for unit in units)
    if not by_user and (max_texts_per_user is not None or max_tokens_per_user is not None):
        raise UserError("a cap per user needs to know the users: give --user-field or --users-file")
    encoded = _encode(units, vocabulary, max_length, begin_with_end_of_text, by_user, max_texts_per_user, max_tokens_per_user)
    if not encoded.texts:
        raise UserError(f"--max-length {max_length} must leave something to predict, all {len(units)} prompts fill it")
    rows = [text for texts_of_unit in encoded.texts.values() for text in texts_of_unit]
    tokens = [token for ids, _ in rows for token in ids]
    loss_mask = [flag for _, mask in rows for flag in mask]
    metadata = {
        "schema": SCHEMA,
        "unit": "user" if by_user else "text",
        "tokenizer": vocabulary.name,
        "tokenizer_sha256": vocabulary.digest(),
        "vocab_size": str(vocabulary.size),
        "end_of_text_id": str(vocabulary.end_of_text_id),
        "begins_with_end_of_text": str(begin_with_end_of_text).lower(),
        "max_length": str(max_length),
        "units": str(len(encoded.texts)),
        "tokens": str(len(tokens)),
        "loss_tokens": str(sum(loss_mask)),
        "truncated": str(encoded.truncated),
        "dropped_no_loss": str(encoded.dropped),
    }
    unit_offsets = None
    if by_user:
        unit_offsets = _offsets(len(texts_of_unit) for texts_of_unit in encoded.texts.values())
        metadata |= {"texts": str(len(rows)), "dropped_over_cap": str(encoded.over_cap)}
        for name, cap in (("max_texts_per_user", max_texts_per_user), ("max_tokens_per_user", max_tokens_per_user)):
            if cap is not None:
                metadata[name] = str(cap)
    return PackedData(numpy.array(tokens, numpy.int32), _offsets(len(ids) for ids, _ in rows),
                      numpy.array(loss_mask, numpy.uint8), metadata, unit_offsets)  # fmt: skip


@dataclass
class _Encoded:
    texts: dict[object, list[tuple[list[int], list[int]]]] = field(default_factory=dict)  # tokens and mask, by owner
    truncated: int = 0
    dropped: int = 0  # nothing left to predict
    over_cap: int = 0


def _encode(
    units: list[TextUnit], vocabulary: Vocabulary, max_length: int, begin_with_end_of_text: bool, by_user: bool,
    max_texts: int | None, max_tokens: int | None,
) -> _Encoded:  # fmt: skip
    # Apart, not as one string: a token across the border would be half prompt, half text.
    prompts = vocabulary.encode([unit.prompt for unit in units])
    texts = vocabulary.encode([unit.text for unit in units])
    front = [vocabulary.end_of_text_id] if begin_with_end_of_text else []
    encoded = _Encoded()
    for index, (unit, prompt, text) in enumerate(zip(units, prompts, texts, strict=True)):
        read_only = front + prompt
        ids = read_only + text + [vocabulary.end_of_text_id]
        mask = [0] * len(read_only) + [1] * (len(text) + 1)
        mask[0] = 0
        if not any(mask[:max_length]):
            encoded.dropped += 1
            continue
        kept = encoded.texts.setdefault(unit.user if by_user else index, [])
        too_many = max_texts is not None and len(kept) >= max_texts
        length = sum(len(tokens) for tokens, _ in kept) + min(len(ids), max_length)
        if kept and (too_many or (max_tokens is not None and length > max_tokens)):
            encoded.over_cap += 1
            continue
        encoded.truncated += len(ids) > max_length
        kept.append((ids[:max_length], mask[:max_length]))
    return encoded


def _offsets(lengths: Iterable[int]) -> numpy.ndarray:
    return numpy.cumsum([0, *lengths]).astype(numpy.int64)


def write_packed(path: Path, data: PackedData) -> None:
    """Writes the file whole or not at all; equal data gives equal bytes."""
    with replacing(path) as partial:
        partial.write_bytes(_safetensors(data))


def _safetensors(data: PackedData) -> bytes:
    # The library's save() puts the metadata in another order each time, and files are compared by their hash here.
    header: dict = {"__metadata__": dict(sorted(data.metadata.items()))}
    body = b""
    for name, (type_, code) in _TYPES.items():  # wide types first: each tensor is aligned to its own width
        column = getattr(data, name)
        if column is None:
            continue
        values = numpy.ascontiguousarray(column, type_).tobytes()
        header[name] = {
            "dtype": code,
            "shape": list(column.shape),
            "data_offsets": [len(body), len(body) + len(values)],
        }
        body += values
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def read_packed(path: Path) -> PackedData:
    """Reads a file that write_packed wrote. UserError if it is not one."""
    try:
        require_regular_file(path)
        with safe_open(str(path), framework="numpy") as file:
            there = set(file.keys())
            tensors = {name: file.get_tensor(name) for name in _TYPES if name != "unit_offsets" or name in there}
            metadata = dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is not a file that `prepare` wrote: {error}") from error
    return PackedData(**tensors, metadata=metadata)
