"""python -m ghostshard.generate: what it hands to the C++ program and what it makes of the answer."""

import json

import pytest

from ghostshard import binary as binary_module
from ghostshard.texts.generate import main
from ghostshard.texts.vocabulary import train_vocabulary

# Writes its arguments down, then answers like the C++ program.
ANSWERS = 'printf "%s\\n" "$@" > "${0%/*}/arguments"\n'


@pytest.fixture(scope="module")
def vocabulary():
    return train_vocabulary(["the cat sat on the mat"] * 3, size=270)


@pytest.fixture
def model(tmp_path, vocabulary):
    folder = tmp_path / "model"
    vocabulary.save(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": vocabulary.size}))
    return folder


def answer(vocabulary, text: str) -> str:
    return ANSWERS + f"echo 'a line before'; echo 'tokens: {','.join(map(str, vocabulary.encode([text])[0]))}'\n"


def test_prompt_and_settings_reach_the_program_as_flags(fake_binary, model, vocabulary, capsys):
    program = fake_binary(answer(vocabulary, " the mat"))
    settings = "--max-new-tokens 7 --temperature 0.25 --top-k 3 --seed 11".split()
    assert main(["--model", str(model), "--prompt", "the cat", *settings]) == 0
    assert capsys.readouterr().out == "the cat the mat\n"
    prompt = ",".join(map(str, vocabulary.encode(["the cat"])[0]))
    assert (program.parent / "arguments").read_text().split("\n")[:-1] == [
        "--model", str(model), "--generate-tokens", prompt, *settings,
    ]  # fmt: skip


def test_an_empty_prompt_starts_from_the_end_of_text(fake_binary, model, vocabulary, capsys):
    program = fake_binary(answer(vocabulary, "the"))
    assert main(["--model", str(model), "--prompt", ""]) == 0
    arguments = (program.parent / "arguments").read_text().split("\n")
    assert arguments[arguments.index("--generate-tokens") + 1] == str(vocabulary.end_of_text_id)
    assert capsys.readouterr().out == "the\n"


def test_text_ends_at_the_end_of_text_token(fake_binary, model, vocabulary, capsys):
    the = vocabulary.encode(["the"])[0]
    fake_binary(f"echo tokens: {','.join(map(str, [*the, vocabulary.end_of_text_id, *the]))}")
    assert main(["--model", str(model), "--prompt", "a "]) == 0
    assert capsys.readouterr().out == "a the\n"


def test_no_new_tokens_leave_the_prompt(fake_binary, model, capsys):
    fake_binary("echo 'tokens: '")
    assert main(["--model", str(model), "--prompt", "a"]) == 0
    assert capsys.readouterr().out == "a\n"


def test_another_tokenizer_can_be_named(fake_binary, model, capsys):
    program = fake_binary(ANSWERS + "echo tokens: 995")
    assert main(["--model", str(model), "--prompt", "Hello", "--tokenizer", "gpt2"]) == 0
    assert "\n15496\n" in (program.parent / "arguments").read_text()
    assert capsys.readouterr().out == "Hello world\n"


def test_the_programs_complaint_is_passed_on(fake_binary, model, capsys):
    fake_binary("echo 'error: token ids must lie in [0, 5), got 7' >&2; exit 2")
    assert main(["--model", str(model), "--prompt", "a"]) == 2
    assert capsys.readouterr().err == "error: token ids must lie in [0, 5), got 7\n"


BROKEN = {
    "crash": ("echo bang >&2; exit 139", "ended with status 139: bang"),
    "no_tokens_line": ("echo 1,2,3", "must print a line `tokens: 1,2,3`, printed '1,2,3'"),
    "garbled_tokens": ("echo tokens: 1,x", "must print a line"),
}


@pytest.mark.parametrize("script, message", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_program_is_no_mistake_of_the_user(fake_binary, model, capsys, script, message):
    fake_binary(script)
    assert main(["--model", str(model), "--prompt", "a"]) == 1
    assert message in capsys.readouterr().err


MISTAKES = {
    "no_model": ("--prompt a", "required: --model"),
    "no_prompt": ("--model MODEL", "required: --prompt"),
    "missing_model": ("--model nothing --prompt a", "must be a folder with config.json, nothing is not"),
    "no_new_tokens": ("--model MODEL --prompt a --max-new-tokens 0", "must be a whole number >= 1, got '0'"),
    "cold": ("--model MODEL --prompt a --temperature -1", "must be a number >= 0, got '-1'"),
    "temperature_nan": ("--model MODEL --prompt a --temperature nan", "must be a number >= 0, got 'nan'"),
    "temperature_infinite": ("--model MODEL --prompt a --temperature inf", "must be a number >= 0, got 'inf'"),
    "octal_top_k": ("--model MODEL --prompt a --top-k 010", "must be a whole number without leading zeros, got '010'"),
    "negative_top_k": ("--model MODEL --prompt a --top-k -1", "must be a whole number >= 0, got '-1'"),
    "fractional_seed": ("--model MODEL --prompt a --seed 1.5", "must be a whole number >= 0, got '1.5'"),
    "unknown_backend": ("--model MODEL --prompt a --backend onnx", "invalid choice: 'onnx'"),
    "unknown_tokenizer": ("--model MODEL --prompt a --tokenizer gpt5", "must be gpt2 or a folder"),
}


@pytest.mark.parametrize("command, message", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_ends_in_one_sentence_before_the_program_starts(fake_binary, model, capsys, command, message):
    program = fake_binary(ANSWERS + "echo tokens: 1")
    assert main([str(model) if word == "MODEL" else word for word in command.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ") and error.count("\n") == 1
    assert not (program.parent / "arguments").exists()


def test_a_model_without_tokenizer_asks_for_one(fake_binary, tmp_path, capsys):
    fake_binary("echo tokens: 1")
    (tmp_path / "config.json").write_text("{}")
    assert main(["--model", str(tmp_path), "--prompt", "a"]) == 2
    assert "name one with --tokenizer DIR|gpt2" in capsys.readouterr().err


def test_the_program_can_be_named(fake_binary, model, monkeypatch, capsys):
    program = fake_binary("echo tokens:")
    monkeypatch.setenv("GHOSTSHARD_BINARY", "/nonexistent/program")
    assert main(["--model", str(model), "--prompt", "a", "--binary", str(program)]) == 0
    assert capsys.readouterr().out == "a\n"


def test_a_named_program_must_exist(model, monkeypatch, capsys):
    monkeypatch.setenv("GHOSTSHARD_BINARY", "/nonexistent/program")
    assert main(["--model", str(model), "--prompt", "a"]) == 2
    assert "GHOSTSHARD_BINARY must name a program" in capsys.readouterr().err


def test_the_program_is_looked_for_in_the_tree_then_on_the_path(tmp_path, monkeypatch, fake_binary):
    program = fake_binary("")
    monkeypatch.delenv("GHOSTSHARD_BINARY")
    monkeypatch.setattr(binary_module, "repository", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(program.parent))
    assert binary_module.find_binary() == program
    built = tmp_path / "build" / "release" / "bin" / binary_module.PROGRAM
    built.parent.mkdir(parents=True)
    built.write_text("")
    assert binary_module.find_binary() == built
    built.unlink()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="`make build` builds it"):
        binary_module.find_binary()


def test_transformers_backend_continues_greedily_as_transformers_does(model, vocabulary, capsys):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    end = vocabulary.end_of_text_id
    config = GPT2Config(vocab_size=vocabulary.size, n_positions=32, n_embd=16, n_layer=2, n_head=2,
                        bos_token_id=end, eos_token_id=end)
    network = GPT2LMHeadModel(config).eval()
    network.save_pretrained(model)
    options = ["--model", str(model), "--backend", "transformers", "--max-new-tokens", "5", "--temperature", "0"]
    assert main([*options, "--prompt", "the"]) == 0
    ids = vocabulary.encode(["the"])[0]
    for _ in range(5):
        with torch.no_grad():
            token = int(network(torch.tensor([ids])).logits[0, -1].argmax())
        if token == end:
            break
        ids.append(token)
    assert capsys.readouterr().out == vocabulary.decode(ids) + "\n"
