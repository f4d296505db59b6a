"""Tokens, offsets and loss mask of the file that training reads."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from ghostshard.data.packed import encode_units, read_packed, write_packed
from ghostshard.data.text import TextUnit
from ghostshard.data.vocabulary import train_vocabulary
from ghostshard.errors import UserError

# Bytes only: a token is a byte and 256 ends a text, so that expected values can be read off.
BYTES = train_vocabulary([""], size=257)
END = BYTES.end_of_text_id


def ids(text: str) -> list[int]:
    return BYTES.encode([text])[0]


CASES = {
    # name: (unit, max_length, begin, tokens, mask)
    "text_is_followed_by_the_end": (TextUnit("abc"), 9, False, [*ids("abc"), END], [0, 1, 1, 1]),
    "text_may_begin_with_the_end_token": (TextUnit("ab"), 9, True, [END, *ids("ab"), END], [0, 1, 1, 1]),
    "prompt_has_no_loss": (TextUnit("b", "aa"), 9, False, [*ids("aab"), END], [0, 0, 1, 1]),
    "a_unit_that_just_fits_is_whole": (TextUnit("abc"), 4, False, [*ids("abc"), END], [0, 1, 1, 1]),
    "a_cut_unit_has_no_end": (TextUnit("abc"), 3, False, ids("abc"), [0, 1, 1]),
    "a_cut_completion_keeps_its_front": (TextUnit("bcd", "a"), 3, False, ids("abc"), [0, 1, 1]),
}


@pytest.mark.parametrize("unit, max_length, begin, tokens, mask", CASES.values(), ids=CASES.keys())
def test_one_unit_becomes(unit, max_length, begin, tokens, mask):
    data = encode_units([unit], BYTES, max_length=max_length, begin_with_end_of_text=begin)
    assert data.unit(0) == tokens
    assert data.unit_mask(0) == mask


def test_bookkeeping_is_counted():
    units = [TextUnit("abcdef"), TextUnit("ab"), TextUnit("x", "a long prompt"), TextUnit("abcd")]
    data = encode_units(units, BYTES, max_length=4)
    assert [data.unit(i) for i in range(data.units)] == [ids("abcd"), [*ids("ab"), END], ids("abcd")]
    expected = {"units": "3", "tokens": "11", "loss_tokens": "8", "truncated": "2", "dropped_no_loss": "1",
                "vocab_size": "257", "max_length": "4", "end_of_text_id": str(END), "schema": "ghostshard.data/1"}
    assert {key: data.metadata[key] for key in expected} == expected


UNITS = st.lists(st.builds(TextUnit, st.text("ab é", min_size=1, max_size=12), st.text("xy", max_size=6)), min_size=1)


@given(UNITS, st.integers(14, 30), st.booleans())
def test_the_file_holds_what_was_encoded(tmp_path_factory, units, max_length, begin):
    data = encode_units(units, BYTES, max_length=max_length, begin_with_end_of_text=begin)
    path = tmp_path_factory.mktemp("packed") / "data.safetensors"
    write_packed(path, data)
    back = read_packed(path)
    theirs = load_file(path)  # the library's own reader
    assert all(numpy.array_equal(theirs[name], getattr(back, name)) for name in theirs) and len(theirs) == 3
    for name, type_ in (("tokens", numpy.int32), ("offsets", numpy.int64), ("loss_mask", numpy.uint8)):
        assert getattr(back, name).dtype == type_
        assert numpy.array_equal(getattr(back, name), getattr(data, name))
    assert back.metadata == data.metadata
    lengths = numpy.diff(back.offsets)
    assert back.offsets[0] == 0 and back.offsets[-1] == len(back.tokens) == len(back.loss_mask)
    assert len(lengths) == len(units) and lengths.min() >= 2 and lengths.max() <= max_length
    assert back.loss_mask[back.offsets[:-1]].sum() == 0
    assert all(sum(back.unit_mask(index)) >= 1 for index in range(back.units))


def test_refuses_when_no_unit_has_anything_to_predict():
    with pytest.raises(UserError, match="must leave something to predict"):
        encode_units([TextUnit("a", "prompt")], BYTES, max_length=3)


def test_refuses_a_length_without_a_prediction():
    with pytest.raises(UserError, match="at least 2"):
        encode_units([TextUnit("a")], BYTES, max_length=1)


@pytest.mark.parametrize("content", [None, b"", b"no safetensors file at all"], ids=["missing", "empty", "other"])
def test_refuses_to_read_another_file(tmp_path, content):
    path = tmp_path / "data.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match="is not a file that `prepare` wrote"):
        read_packed(path)
