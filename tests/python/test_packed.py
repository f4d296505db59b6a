"""Tokens, offsets and loss mask of the file that training reads."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from ghostshard.errors import UserError
from ghostshard.texts.packed import encode_units, read_packed, write_packed
from ghostshard.texts.text import TextUnit
from ghostshard.texts.vocabulary import train_vocabulary

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


def of(user: str, *words: str) -> list[TextUnit]:
    return [TextUnit(word, user=user) for word in words]


def test_a_users_texts_are_one_unit_in_their_order():
    anna, ben = of("anna", "aa", "bbb", "c"), of("ben", "dd")
    data = encode_units([anna[0], ben[0], anna[1], anna[2]], BYTES, max_length=9)
    assert (data.units, data.texts) == (2, 4)
    assert data.texts_of(0) == [[*ids(word), END] for word in ("aa", "bbb", "c")]
    assert data.texts_of(1) == [[*ids("dd"), END]]
    # A text's first token follows nothing, also in the middle of a unit.
    assert data.unit_mask(0) == [0, 1, 1, 0, 1, 1, 1, 0, 1]
    assert (data.metadata["unit"], data.metadata["units"], data.metadata["texts"]) == ("user", "2", "4")


CAPS = {
    "no_cap": ({}, ["aaaa", "b", "cc", "d"], "0"),
    "texts": ({"max_texts_per_user": 2}, ["aaaa", "b"], "2"),
    "tokens": ({"max_tokens_per_user": 8}, ["aaaa", "b"], "2"),
    "a_text_too_long_for_what_is_left_is_passed_over": ({"max_tokens_per_user": 7}, ["aaaa", "b"], "2"),
    "one_text_always_stays": ({"max_tokens_per_user": 1}, ["aaaa"], "3"),
    "both": ({"max_texts_per_user": 3, "max_tokens_per_user": 100}, ["aaaa", "b", "cc"], "1"),
}


@pytest.mark.parametrize("caps, kept, dropped", CAPS.values(), ids=CAPS.keys())
def test_a_cap_keeps_the_first_texts_of_each_user(caps, kept, dropped):
    texts = of("anna", "aaaa", "b", "cc", "d")
    data = encode_units([*texts, *of("ben", "x")], BYTES, max_length=9, **caps)
    assert data.texts_of(0) == [[*ids(word), END] for word in kept]
    assert data.texts_of(1) == [[*ids("x"), END]]
    assert data.metadata["dropped_over_cap"] == dropped


USERS = st.lists(st.builds(TextUnit, st.text("ab", min_size=1, max_size=6), user=st.sampled_from("uvw")), min_size=1)


@given(USERS, st.integers(1, 3))
def test_what_is_kept_of_a_user_depends_on_that_user_alone(units, cap):
    together = encode_units(units, BYTES, max_length=5, max_texts_per_user=cap)
    order = list(dict.fromkeys(unit.user for unit in units))
    assert together.units == len(order)
    for index, user in enumerate(order):
        alone = encode_units([unit for unit in units if unit.user == user], BYTES, max_length=5, max_texts_per_user=cap)
        assert together.texts_of(index) == alone.texts_of(0)


def test_units_of_users_are_written_and_read_back_without_their_names(tmp_path):
    data = encode_units([*of("anna-7531", "aa", "b"), *of("ben", "c")], BYTES, max_length=9)
    write_packed(tmp_path / "data", data)
    again = read_packed(tmp_path / "data")
    assert numpy.array_equal(again.unit_offsets, [0, 2, 3]) and again.metadata == data.metadata
    assert [again.texts_of(unit) for unit in (0, 1)] == [data.texts_of(unit) for unit in (0, 1)]
    assert b"anna" not in (tmp_path / "data").read_bytes()
    assert load_file(tmp_path / "data")["unit_offsets"].dtype == numpy.int64


def test_a_cap_per_user_needs_users():
    with pytest.raises(UserError, match="needs to know the users"):
        encode_units([TextUnit("a")], BYTES, max_length=9, max_texts_per_user=1)
