"""Values that are refused rather than read as something else: the training program, its --config file and the launcher."""

import pytest
from program import PRIVATE, arguments, everything_in

from ghostshard import launcher

DECIMAL = "must be a whole number in decimal digits, got "
REFUSED = {
    "octal_batch": ({"expected_batch": "010"}, "--expected-batch: must be a whole number without leading zeros, got 010"),
    "octal_warmup": ({"warmup_steps": "0100"}, "--warmup-steps: must be a whole number without leading zeros, got 0100"),
    "octal_microbatch": ({"microbatch": "-01"}, "--microbatch: must be a whole number without leading zeros, got -01"),
    "octal_bands": ({"noise_bands": "02"}, "--noise-bands: must be a whole number without leading zeros, got 02"),
    "hexadecimal": ({"expected_batch": "0x4"}, "--expected-batch: " + DECIMAL + "0x4"),
    "binary": ({"expected_batch": "0b100"}, "--expected-batch: " + DECIMAL + "0b100"),
    "separator": ({"expected_batch": "1_0"}, "--expected-batch: " + DECIMAL + "1_0"),
    "apostrophe": ({"expected_batch": "1'0"}, "--expected-batch: " + DECIMAL + "1'0"),
    "space_after": ({"expected_batch": "4 "}, "--expected-batch: " + DECIMAL + "4 "),
    "space_before": ({"expected_batch": " 4"}, "--expected-batch: " + DECIMAL + " 4"),
    "sign": ({"expected_batch": "+4"}, "--expected-batch: " + DECIMAL + "+4"),
    "beyond_64_bits": ({"expected_batch": "9" * 20}, "must be a whole number of at most 18 digits, got " + "9" * 20),
    "hexadecimal_fraction": ({"learning_rate": "0x1p-3"}, "--learning-rate: must be a decimal number, got 0x1p-3"),
    "spaced_fraction": ({"clip_norm": " 1"}, "--clip-norm: must be a decimal number, got  1"),
    "cold": ({"generate_tokens": "1", "temperature": "1e-40"}, "--temperature must be 0 (always the likeliest token) or at least 1e-6"),
}  # fmt: skip


@pytest.mark.parametrize("flags, sentence", REFUSED.values(), ids=REFUSED)
def test_a_number_that_is_not_plainly_decimal_is_refused(program, flags, sentence):
    """The ledger's facts show what was typed: 010 would be 10 there and 8 in what ran."""
    before = everything_in(program.folder)
    done = program.run(arguments(PRIVATE, **flags))
    assert done.code == 2 and sentence in done.err and done.err.count("\n") == 1
    assert everything_in(program.folder) == before


def test_a_flag_with_two_values_or_none_is_refused(program):
    assert "error: --steps is given twice: give it once (see --help)" in program.run([*arguments(PRIVATE), "--steps", "2"]).err
    assert "error: --steps needs a value (see --help)" in program.run([*arguments(PRIVATE, steps=None), "--steps"]).err


EMPTY = ("config", "eval-data", "public-note", "noise-key-file", "budget-register", "epsilon-limit", "steps", "seed", "freeze", "max-batch",
         "lora-targets", "mesh", "sample-tokens", "generate-tokens", "delta")  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_value_is_refused(program, name):
    """A script whose variable is empty would otherwise train without the key, the register or the limit that it names."""
    words = list(arguments(PRIVATE, steps=None if name == "steps" else "3"))
    done = program.run([*words, "--" + name, ""])
    assert done.code == 2 and done.err.count("\n") == 1 and not (program.folder / "run").exists()
    assert f"--{name}: must not be empty: leave the option out, or give it a value" in done.err


@pytest.mark.parametrize("line, sentence", [
    ("expected-batch = 010", "without leading zeros, got 010"), ("expected-batch = 0x4", DECIMAL + "0x4"),
    ('public-note = ""', "--public-note: must not be empty"),
])  # fmt: skip
def test_values_of_a_file_are_held_to_the_same_rules(program, line, sentence):
    (program.folder / "flags.toml").write_text(line + "\n")
    flags = {"expected_batch": None} if line.startswith("expected") else {}
    done = program.run(arguments(PRIVATE, config="flags.toml", **flags))
    assert done.code == 2 and sentence in done.err and not (program.folder / "run").exists()


COMMANDS = {
    "users": "data prepare --format jsonl --input texts.jsonl --tokenizer gpt2 --max-length 8 --output o --user-field",
    "csv": "metrics run --csv", "eval": "tune --data d --output o --units 9 --target-epsilon 1 --expected-batch 2 --steps 2 --eval-data",
    "model": "generate --prompt a --model",
}  # fmt: skip


@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
def test_of_commands_in_python_too(line, capsys):
    assert launcher.main([*line.split(), ""]) == 2
    assert line.split()[-1] + ": must not be empty: leave the option out, or give it a value" in capsys.readouterr().err


def test_a_cold_temperature_of_generate_is_refused(program, capsys):
    words = ["--model", program.folder / "model", "--tokenizer", "gpt2", "--prompt", "", "--backend", "transformers", "--temperature", "1e-40"]
    assert launcher.main(["generate", *map(str, words)]) == 2
    assert "--temperature must be 0 or at least 1e-06 (scores are float32), got 1e-40" in capsys.readouterr().err


def test_the_launchers_own_flags_are_not_empty(capsys):
    for flag in ("-n", "--tokenizer"):
        assert launcher.main(["finetune", flag, "", "--sample-prompt", "Once"]) == 2
        assert f"{flag} " in (said := capsys.readouterr().err) and "got ''" in said
