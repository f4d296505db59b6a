"""From text to the file that training reads.

Three steps, each a sub-command of `ghostshard data`, in an order that leaks nothing: `split` declares a part of
the units public without looking at them, `tokenizer` learns a vocabulary from the public part alone, `prepare` turns units
into tokens. `generate` goes the other way: text from a trained model.
"""

from ghostshard.texts.packed import PackedData, encode_units, read_packed, write_packed
from ghostshard.texts.split import Split, split_indices
from ghostshard.texts.text import FORMATS, TextUnit, read_units
from ghostshard.texts.vocabulary import Vocabulary, gpt2_vocabulary, load_vocabulary, train_vocabulary

__all__ = [
    "FORMATS",
    "PackedData",
    "Split",
    "TextUnit",
    "Vocabulary",
    "encode_units",
    "gpt2_vocabulary",
    "load_vocabulary",
    "read_packed",
    "read_units",
    "split_indices",
    "train_vocabulary",
    "write_packed",
]
