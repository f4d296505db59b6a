"""What standard output and the files of a run tell of private data: by default nothing but noised weights."""

import json
import re
import shutil

import pytest
from program import LENGTHS, PRIVATE, UNITS, arguments, everything_in, metrics, report, texts, write_data, write_key


def test_allowed_private_metrics_are_written_and_the_report_says_they_are_not_covered(program):
    words = arguments(PRIVATE, allow_nonprivate_metrics="", expected_batch="12", steps="6")
    ranks = program.run_ranks(words, words)
    assert [rank.code for rank in ranks] == [0, 0]
    run = program.folder / "run"
    lines = metrics(run)
    assert "private_loss" not in lines[0]
    batches = [line["private_batch"] for line in lines[1:]]
    # 24 units, each drawn with probability a half; six equal draws: once in 1000.
    assert all(0 <= batch <= UNITS for batch in batches) and len(set(batches)) > 1
    assert all(0 < line["private_loss"] < 20 for line in lines[1:] if line["private_batch"] > 0)
    said = report(run)
    assert said["released_outputs"]["nonprivate_metrics"] is True
    assert "whoever saw them has no guarantee" in said["guarantee"]["statement"]
    assert "NOT covered" in json.dumps(said["released_outputs"])
    assert "warning: losses and batch sizes of the private data, times and memory" in ranks[0].err
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds) and seconds[-1] > 0
    assert "times and memory" in json.dumps(said["released_outputs"]) and "Time: " in ranks[0].out and "MiB" in ranks[0].out


TIMES = re.compile(r"seconds|tokens/s|texts/s|/step|MiB|memory [0-9]|[0-9]:[0-5][0-9]\b")


@pytest.mark.parametrize("flags", [{}, {"noise_key_file": "key", "checkpoint_every": "2"}], ids=["plain", "checkpoints"])
def test_by_default_no_time_and_no_memory_is_on_standard_output_or_in_a_file(program, flags):
    write_key(program.folder)
    done = program.run(arguments(PRIVATE, eval_data="public.safetensors", **flags))
    assert done.code == 0
    shown = {"standard output": done.out, **{
        name: content.decode(errors="replace") for name, content in everything_in(program.folder / "run").items()
        if content and not name.endswith((".safetensors", ".html"))
    }}  # fmt: skip
    for name, text in shown.items():
        assert not TIMES.search(text), (name, TIMES.search(text))
    assert "s/step" in done.err and "peak memory" in done.err  # standard error is the operator's


def without_hashes(content: bytes) -> bytes:
    """Run ids, commitments, tags and hashes are drawn anew or follow from what was."""
    return re.sub(rb"\b[0-9a-f]{32}(?:[0-9a-f]{32})?\b", b"HASH", content)


@pytest.mark.parametrize("ranks", [1, 2])
def test_without_one_text_nothing_but_the_noised_weights_differs(program, ranks):
    """The longest text, and the same data with an empty one in its place: under one key file, in all that is released."""
    write_key(program.folder)
    flags = {"noise_key_file": "key", "checkpoint_every": "1", "expected_batch": "12", "output": "run"}
    released = []
    for units in (texts(LENGTHS), [[] if len(text) == max(LENGTHS) else text for text in texts(LENGTHS)]):
        write_data(program.folder / "data.safetensors", units)
        done = program.run_ranks(*[arguments(PRIVATE, **flags)] * ranks)
        assert [rank.code for rank in done] == [0] * ranks, done
        files = everything_in(program.folder / "run")
        tensors = {name: len(content) for name, content in files.items() if name.endswith(".safetensors")}
        shown = {name: without_hashes(content) for name, content in files.items() if content and name not in tensors}
        released.append((without_hashes(done[0].out.encode()), [rank.out for rank in done[1:]], files.keys(), tensors, shown))
        shutil.rmtree(program.folder / "run")
    for one, other in zip(*released, strict=True):
        assert one == other


NOT_PUBLIC = {
    "declared_private": ("private", [[1, 2, 3]], "declared private"),
    "not_declared": (None, [[1, 2, 3]], "must be declared public: prepare the file with --declare public"),
    "the_private_file_itself": ("public", None, "its text 1 is text 1 there"),
    "one_common_text": ("public", [[3, 2, 1, 9], texts(LENGTHS)[5]], "its text 1 is text 5 there"),
}


@pytest.mark.parametrize("declared, units, message", NOT_PUBLIC.values(), ids=NOT_PUBLIC.keys())
def test_only_texts_declared_public_and_not_private_too_are_evaluated(program, declared, units, message):
    """`ghostshard.texts prepare` writes down what a file was declared to be."""
    write_data(program.folder / "public.safetensors", texts(LENGTHS) if units is None else units, declared)
    done = program.run(arguments(PRIVATE, eval_data="public.safetensors"))
    assert done.code == 2
    assert "public.safetensors" in done.err and message in done.err
    assert not (program.folder / "run").exists()


def test_a_text_without_a_prediction_may_stand_in_both(program):
    write_data(program.folder / "public.safetensors", [*texts([1, 9], seed=7), texts(LENGTHS)[0]], "public")
    assert program.run(arguments(PRIVATE, eval_data="public.safetensors")).code == 0


def test_no_epsilon_is_shown_as_less_than_it_is(program):
    done = program.run(arguments(PRIVATE))
    assert done.code == 0, done.err
    upper = report(program.folder / "run")["guarantee"]["epsilon"]["upper"]
    planned = float(re.search(r"epsilon (\S+) at delta", done.err)[1])
    spent = [float(shown) for shown in re.findall(r"left  epsilon (\S+)", done.err)]
    assert upper <= planned < upper + 1e-4 and upper <= spent[-1] < upper + 1e-3
    after = [line["epsilon"] for line in metrics(program.folder / "run")]
    assert all(any(epsilon <= shown < epsilon + 1e-3 for epsilon in after) for shown in spent)
