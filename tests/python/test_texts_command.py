"""python -m ghostshard.texts as a user types it: results, messages, exit codes, and what is left untouched."""

import json

import pytest

from ghostshard.texts.__main__ import main
from ghostshard.texts.packed import read_packed
from ghostshard.texts.text import format_of
from ghostshard.texts.vocabulary import load_vocabulary

LINES = [f"line {number} of the text" for number in range(30)]


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with texts.txt, and a command that runs there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(LINES) + "\n")
    return tmp_path


def words(text: str) -> list[str]:
    return text.split()


PREPARE = "prepare --format text --input texts.txt --tokenizer gpt2 --max-length 16 --output out.safetensors"
SPLIT = "split --format text --input texts.txt --public-units 10 --eval-units 5 --seed 3 --output parts"
TOKENIZER = "tokenizer --format text --input texts.txt --vocab-size 270 --output vocabulary"


def test_the_three_steps_in_order_give_files_for_training(work, capsys):
    assert main(words(SPLIT)) == 0
    assert main(words("tokenizer --format jsonl --input parts/public-train.jsonl --vocab-size 270 --output vocabulary")) == 0
    prepare = "prepare --format jsonl --input parts/private.jsonl --tokenizer vocabulary --max-length 64 --output p.safetensors"
    assert main(words(prepare)) == 0
    data = read_packed(work / "p.safetensors")
    vocabulary = load_vocabulary("vocabulary")
    assert data.units == 15
    private = [json.loads(line)["text"] for line in (work / "parts" / "private.jsonl").read_text().splitlines()]
    assert [vocabulary.decode(data.unit(index)) for index in range(15)] == private
    assert set(private) < set(LINES)
    assert data.metadata["declared"] == "private" and data.metadata["format"] == "jsonl"
    assert "10 public-train, 5 public-eval, 15 private" in capsys.readouterr().out


def test_a_format_is_what_the_inputs_name_says(work):
    end = "--tokenizer gpt2 --max-length 8 --output"
    (work / "records.jsonl").write_text('{"text": "one two"}\n{"text": "three"}\n')
    (work / "table.CSV").write_text("text\none two\nthree\n")
    for name, said in (("records.jsonl", "jsonl"), ("table.CSV", "csv")):
        assert main(words(f"prepare --input {name} {end} by_name")) == 0
        assert main(words(f"prepare --format {said} --input {name} {end} said")) == 0
        assert (work / "by_name").read_bytes() == (work / "said").read_bytes()
        assert read_packed(work / "by_name").metadata["format"] == said
        (work / "by_name").unlink()
        (work / "said").unlink()


def test_a_format_is_what_the_files_of_a_folder_say(work):
    """save_to_disk() writes a state or a list of splits; dataset_info.json lies beside Parquet files too."""
    made = {"state.json": "dataset", "dataset_dict.json": "dataset", "part.parquet": "parquet"}
    for i, (name, said) in enumerate(made.items()):
        folder = work / f"folder{i}"
        folder.mkdir()
        (folder / "dataset_info.json").write_text("{}")
        (folder / name).write_text("{}")
        assert format_of(folder) == said


def test_prepare_says_how_many_units_it_cut(work, capsys):
    assert main([*words(PREPARE), "--max-length", "3"]) == 0
    assert "30 units, 90 tokens, vocabulary 50257, 30 cut to 3 tokens" in capsys.readouterr().out
    assert read_packed(work / "out.safetensors").metadata["truncated"] == "30"


def test_prepare_writes_what_was_declared(work):
    assert main([*words(PREPARE), "--declare", "public", "--begin-with-end-of-text"]) == 0
    data = read_packed(work / "out.safetensors")
    assert (data.metadata["declared"], data.metadata["begins_with_end_of_text"]) == ("public", "true")
    assert data.unit(0)[0] == 50256


def test_equal_input_gives_equal_files(work):
    assert main(words(PREPARE)) == 0
    first = (work / "out.safetensors").read_bytes()
    assert main([*words(PREPARE), "--force"]) == 0
    assert (work / "out.safetensors").read_bytes() == first


def test_the_vocabulary_sees_public_texts_only(work):
    assert main(words(SPLIT)) == 0
    assert main(words("tokenizer --format jsonl --input parts/public-train.jsonl --vocab-size 270 --output one")) == 0
    (work / "parts" / "private.jsonl").write_text('{"text": "something else entirely"}\n')
    assert main(words("tokenizer --format jsonl --input parts/public-train.jsonl --vocab-size 270 --output two")) == 0
    assert (work / "one" / "tokenizer.json").read_bytes() == (work / "two" / "tokenizer.json").read_bytes()


def test_tokenizer_writes_the_gpt2_folder(work):
    assert main(words("tokenizer --gpt2 --output vocabulary")) == 0
    vocabulary = load_vocabulary("vocabulary")
    assert (vocabulary.size, vocabulary.encode(["Hello world"])) == (50257, [[15496, 995]])


def test_users_become_units_by_a_field_or_by_a_file(work, capsys):
    users = ["anna", "ben", "anna"]
    records = [{"text": f"text {index}", "who": user} for index, user in enumerate(users)]
    (work / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (work / "lines.txt").write_text("".join(record["text"] + "\n" for record in records))
    (work / "users.txt").write_text("\n".join(users) + "\n")
    end = "--tokenizer gpt2 --max-length 16"
    assert main(words(f"prepare --format jsonl --input records.jsonl --user-field who {end} --output a")) == 0
    assert main(words(f"prepare --format text --input lines.txt --users-file users.txt {end} --output b")) == 0
    assert "2 units (users, 3 texts)" in capsys.readouterr().out
    a, b = read_packed(work / "a"), read_packed(work / "b")
    assert a.units == b.units == 2 and a.metadata["unit"] == "user"
    assert [a.texts_of(unit) for unit in (0, 1)] == [b.texts_of(unit) for unit in (0, 1)]
    assert main(words(f"prepare --format jsonl --input records.jsonl --user-field who --max-texts-per-user 1 {end} --output c")) == 0
    assert "1 texts over the cap of their user left out" in capsys.readouterr().out


def test_a_number_and_its_text_are_one_user(work):
    (work / "records.jsonl").write_text('{"text": "a", "id": 7}\n{"text": "b", "id": "7"}\n{"text": "c", "id": " 7 "}\n')
    assert main(words("prepare --format jsonl --input records.jsonl --user-field id --tokenizer gpt2 --max-length 4 --output a")) == 0
    assert read_packed(work / "a").units == 1


USER_MISTAKES = {
    "no_such_field": ({"text": "a", "who": "x"}, "user", 'line 1 of records.jsonl must name its user in \'user\', as text or whole number, got no such field'),
    "empty": ({"text": "a", "who": " "}, "who", 'got an empty text'),
    "truth_value": ({"text": "a", "who": True}, "who", "got a truth value"),
    "fraction": ({"text": "a", "who": 1.5}, "who", "got a floating-point number"),
    "nobody": ({"text": "a", "who": None}, "who", "got null"),
}


@pytest.mark.parametrize("record, field, message", USER_MISTAKES.values(), ids=USER_MISTAKES.keys())
def test_a_record_without_its_user_is_refused(work, capsys, record, field, message):
    (work / "records.jsonl").write_text(json.dumps(record) + "\n")
    assert main(words(f"prepare --format jsonl --input records.jsonl --user-field {field} --tokenizer gpt2 --max-length 4 --output a")) == 2
    assert message in capsys.readouterr().err
    assert not (work / "a").exists()


MISTAKES = {
    "user_field_of_text": (f"{PREPARE} --user-field who", "--user-field is for --format jsonl"),
    "users_file_missing": (f"{PREPARE} --users-file nobody.txt", "users file nobody.txt must be a file"),
    "users_file_of_jsonl": (PREPARE.replace("--format text", "--format jsonl") + " --users-file texts.txt", "is for --format text"),
    "both_ways_to_name_users": (f"{PREPARE} --user-field who --users-file texts.txt", "not allowed with argument"),
    "cap_without_users": (f"{PREPARE} --max-texts-per-user 2", "give --user-field or --users-file"),
    "cap_of_nothing": (f"{PREPARE} --max-texts-per-user 0", "must be a whole number >= 1, got '0'"),
    "no_command": ("", "arguments are required"),
    "unknown_command": ("prepaer", "invalid choice: 'prepaer'"),
    "unknown_flag": (f"{PREPARE} --fast", "unrecognized arguments: --fast"),
    "shortened_flag": ("prepare --form text", "are required"),
    "no_output": ("prepare --format text --input texts.txt --tokenizer gpt2 --max-length 4", "required: --output"),
    "no_format": ("prepare --input texts.txt --tokenizer gpt2 --max-length 4 --output out", "give --format for texts.txt: its name does not say"),
    "no_format_of_a_folder": ("split --input . --public-units 1 --eval-units 1 --output parts", "give --format for ."),
    "no_format_and_no_file": ("tokenizer --input none.jsonl --vocab-size 300 --output vocabulary", "the input none.jsonl does not exist"),
    "unknown_format": (PREPARE.replace("--format text", "--format csvs"), "invalid choice: 'csvs'"),
    "missing_input": (PREPARE.replace("texts.txt", "nothing.txt"), "nothing.txt does not exist"),
    "folder_as_input": (PREPARE.replace("texts.txt", "."), "must be a file, . is a folder"),
    "unknown_tokenizer": (PREPARE.replace("gpt2", "gpt5"), "must be gpt2 or a folder, gpt5 is neither"),
    "length_one": (f"{PREPARE} --max-length 1", "--max-length: must be a whole number >= 2, got '1'"),
    "length_nan": (f"{PREPARE} --max-length nan", "must be a whole number >= 2, got 'nan'"),
    "length_huge": (f"{PREPARE} --max-length {'9' * 5000}", "must be a whole number >= 2"),
    "wrong_columns": (PREPARE.replace("--format text", "--format e2e"), "columns mr and ref"),
    "output_is_a_folder": (PREPARE.replace("out.safetensors", "."), "must be a file, . is a folder"),
    "output_below_a_file": (PREPARE.replace("out.safetensors", "texts.txt/out"), "cannot be made"),
    "nothing_private": (f"{SPLIT} --public-units 25", "fewer than the 30 units there are, got 25 + 5"),
    "negative_units": (f"{SPLIT} --eval-units -1", "must be a whole number >= 0, got '-1'"),
    "split_into_a_file": (SPLIT.replace("--output parts", "--output texts.txt"), "must be a folder, texts.txt is a file"),
    "small_vocabulary": (f"{TOKENIZER} --vocab-size 256", "must be a whole number from 257 to 1000000, got '256'"),
    "vocabulary_of_nothing": ("tokenizer --vocab-size 300 --output vocabulary", "needs --input and --vocab-size"),
    "gpt2_is_not_trained": (f"{TOKENIZER} --gpt2", "goes with neither --input nor --vocab-size"),
}


@pytest.mark.parametrize("command, message", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_ends_in_one_sentence_and_writes_nothing(work, capsys, command, message):
    before = sorted(work.rglob("*"))
    assert main(words(command)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ") and error.count("\n") == 1
    assert sorted(work.rglob("*")) == before


@pytest.mark.parametrize("command, output", [(PREPARE, "out.safetensors"), (SPLIT, "parts"), (TOKENIZER, "vocabulary")],
                         ids=["prepare", "split", "tokenizer"])  # fmt: skip
def test_an_existing_output_is_overwritten_only_with_force(work, capsys, command, output):
    assert main(words(command)) == 0
    path = work / output
    victim = path if path.is_file() else sorted(path.iterdir())[0]
    victim.write_text("precious")
    assert main(words(command)) == 2
    assert f"{output} exists already; --force overwrites it" in capsys.readouterr().err
    assert victim.read_text() == "precious"
    assert main([*words(command), "--force"]) == 0
    assert victim.read_bytes() != b"precious"


@pytest.mark.parametrize("command, output", [(SPLIT, "parts"), (TOKENIZER, "vocabulary")], ids=["split", "tokenizer"])
def test_force_never_removes_what_the_command_did_not_write(work, capsys, command, output):
    (work / output).mkdir()
    (work / output / "thesis.tex").write_text("precious")
    assert main([*words(command), "--force"]) == 2
    assert "holds thesis.tex as well" in capsys.readouterr().err
    assert (work / output / "thesis.tex").read_text() == "precious"


def test_the_module_runs_as_a_program(work, run_module):
    done = run_module("ghostshard.texts", *words(PREPARE), cwd=work)
    assert (done.code, done.err) == (0, "")
    again = run_module("ghostshard.texts", *words(PREPARE), cwd=work)
    assert again.code == 2 and again.err.count("\n") == 1
