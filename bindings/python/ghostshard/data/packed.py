"""The file training reads: units of tokens end to end, in one safetensors file.

    tokens     int32 [N]    token ids of all units, one after another
    offsets    int64 [U+1]  unit u is tokens[offsets[u]:offsets[u+1]]; never fewer than 2 tokens
    loss_mask  uint8 [N]    1 where a token is to be predicted; 0 for a prompt and for a unit's first token, which
                            nothing comes before

The metadata says how it was made (METADATA below); all values are strings, as the file format wants.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy
from safetensors import SafetensorError, safe_open

from ghostshard.data.text import TextUnit
from ghostshard.data.vocabulary import Vocabulary
from ghostshard.errors import UserError
from ghostshard.files import replacing

SCHEMA = "ghostshard.data/1"

_TYPES = {"offsets": ("<i8", "I64"), "tokens": ("<i4", "I32"), "loss_mask": ("u1", "U8")}


@dataclass(frozen=True)
class PackedData:
    tokens: numpy.ndarray  # int32 [N]
    offsets: numpy.ndarray  # int64 [U+1]
    loss_mask: numpy.ndarray  # uint8 [N]
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def units(self) -> int:
        return len(self.offsets) - 1

    def unit(self, index: int) -> list[int]:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]].tolist()

    def unit_mask(self, index: int) -> list[int]:
        return self.loss_mask[self.offsets[index] : self.offsets[index + 1]].tolist()


def encode_units(
    units: Iterable[TextUnit], vocabulary: Vocabulary, *, max_length: int, begin_with_end_of_text: bool = False
) -> PackedData:
    """Tokens of prompt and text, then the end-of-text token, cut after max_length tokens.

    A cut unit has no end-of-text token: its text does not end there. A unit whose prompt alone fills max_length has
    nothing left to predict; it is left out and counted as dropped_no_loss. begin_with_end_of_text puts the token in
    front as well, so that a model learns how texts begin.
    """
    if max_length < 2:
        raise UserError(f"--max-length must be at least 2 (a token and one to predict), got {max_length}")
    units = list(units)
    # Apart, not as one string: a token across the border would be half prompt, half text.
    prompts = vocabulary.encode([unit.prompt for unit in units])
    texts = vocabulary.encode([unit.text for unit in units])
    front = [vocabulary.end_of_text_id] if begin_with_end_of_text else []
    tokens: list[int] = []
    mask: list[int] = []
    offsets = [0]
    truncated = dropped = 0
    for prompt, text in zip(prompts, texts, strict=True):
        read_only = front + prompt
        ids = read_only + text + [vocabulary.end_of_text_id]
        unit_mask = [0] * len(read_only) + [1] * (len(text) + 1)
        unit_mask[0] = 0
        if len(ids) > max_length:
            if not any(unit_mask[:max_length]):
                dropped += 1
                continue
            truncated += 1
        tokens += ids[:max_length]
        mask += unit_mask[:max_length]
        offsets.append(len(tokens))
    if len(offsets) == 1:
        raise UserError(f"--max-length {max_length} must leave something to predict, all {len(units)} prompts fill it")
    metadata = {
        "schema": SCHEMA,
        "tokenizer": vocabulary.name,
        "tokenizer_sha256": vocabulary.digest(),
        "vocab_size": str(vocabulary.size),
        "end_of_text_id": str(vocabulary.end_of_text_id),
        "begins_with_end_of_text": str(begin_with_end_of_text).lower(),
        "max_length": str(max_length),
        "units": str(len(offsets) - 1),
        "tokens": str(len(tokens)),
        "loss_tokens": str(sum(mask)),
        "truncated": str(truncated),
        "dropped_no_loss": str(dropped),
    }
    return PackedData(
        numpy.array(tokens, numpy.int32), numpy.array(offsets, numpy.int64), numpy.array(mask, numpy.uint8), metadata
    )


def write_packed(path: Path, data: PackedData) -> None:
    """Writes the file whole or not at all; equal data gives equal bytes."""
    with replacing(path) as partial:
        partial.write_bytes(_safetensors(data))


def _safetensors(data: PackedData) -> bytes:
    # The library's save() puts the metadata in another order each time, and files are compared by their hash here.
    header: dict = {"__metadata__": dict(sorted(data.metadata.items()))}
    body = b""
    for name, (type_, code) in _TYPES.items():  # wide types first: each tensor is aligned to its own width
        values = numpy.ascontiguousarray(getattr(data, name), type_).tobytes()
        header[name] = {
            "dtype": code,
            "shape": list(getattr(data, name).shape),
            "data_offsets": [len(body), len(body) + len(values)],
        }
        body += values
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def read_packed(path: Path) -> PackedData:
    """Reads a file that write_packed wrote. UserError if it is not one."""
    try:
        with safe_open(str(path), framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in _TYPES}
            metadata = dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is not a file that `prepare` wrote: {error}") from error
    return PackedData(**tensors, metadata=metadata)
