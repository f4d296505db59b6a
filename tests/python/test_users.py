"""Privacy units of several texts: what the program reads, trains on, and says in its report."""

import json

import numpy
import pytest
from program import PLAIN, POSITIONS, PRIVATE, arguments, metrics, texts, weights, write_data
from safetensors.numpy import load_file, save_file

LENGTHS = [3, 5, 2, 9, 4, 4, 6, 1, 7, POSITIONS + 1]
USERS = [0, 3, 4, 8, 10]  # four users


def write_users(path, metadata=None, **changes):
    write_data(path, texts(LENGTHS), **{"unit_offsets": numpy.array(USERS, numpy.int64), **changes})
    if metadata is not None:
        save_file(load_file(path), path, metadata=metadata)


def report_of(program, **flags) -> dict:
    done = program.run(arguments(PRIVATE, data="users.safetensors", expected_batch="2", **flags))
    assert done.code == 0, done.err
    return json.loads((program.folder / "run" / "privacy_report.json").read_text())


def test_the_report_protects_users(program):
    write_users(program.folder / "users.safetensors", {"unit": "user"})
    report = report_of(program)
    assert report["unit_of_privacy"]["unit"] == "user"
    assert report["unit_of_privacy"]["units_per_person"] == 1
    assert "mean over its tokens" in report["unit_of_privacy"]["definition"]
    header = json.loads((program.folder / "run" / "ledger.jsonl").read_text().splitlines()[0])
    assert (header["unit_of_privacy"], header["units"]) == ("user", len(USERS) - 1)


def test_groups_that_nobody_called_users_promise_nothing_per_person(program):
    write_users(program.folder / "users.safetensors")
    report = report_of(program)
    assert report["unit_of_privacy"]["unit"] == "group of texts"
    assert report["unit_of_privacy"]["units_per_person"] != 1


def test_texts_of_one_user_do_not_see_each_other(program):
    """The loss on public texts is the same whether they are units of their own or one user's."""
    write_users(program.folder / "public.safetensors")
    write_data(program.folder / "apart.safetensors", texts(LENGTHS))
    losses = []
    for data in ("public.safetensors", "apart.safetensors"):
        done = program.run(arguments(PLAIN, eval_data=data, output=data.split(".")[0], steps="1"))
        assert done.code == 0, done.err
        losses.append(metrics(program.folder / data.split(".")[0])[0]["eval_loss"])
    # Sums of the same row losses in another order.
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_ranks_share_users_whole(program):
    write_users(program.folder / "users.safetensors")
    words = {name: arguments(PLAIN, data="users.safetensors", expected_batch="4", optimizer="sgd", learning_rate="0.1",
                             output=name) for name in ("one", "two")}  # fmt: skip
    assert program.run(words["one"]).code == 0
    assert [rank.code for rank in program.run_ranks(words["two"], words["two"])] == [0, 0]
    one, two = weights(program.folder / "one"), weights(program.folder / "two")
    for name in one:
        numpy.testing.assert_allclose(one[name], two[name], rtol=1e-4, atol=1e-6)


MISTAKES = {
    "does_not_start_at_0": [1, 3, 10],
    "does_not_reach_the_end": [0, 3, 9],
    "goes_beyond": [0, 3, 11],
    "a_unit_without_texts": [0, 3, 3, 10],
    "falls": [0, 5, 3, 10],
    "no_unit": [0],
}


@pytest.mark.parametrize("offsets", MISTAKES.values(), ids=MISTAKES.keys())
def test_offsets_that_do_not_fit_are_refused(program, offsets):
    write_users(program.folder / "users.safetensors", unit_offsets=numpy.array(offsets, numpy.int64))
    done = program.run(arguments(PRIVATE, data="users.safetensors"))
    assert done.code == 2
    assert "unit_offsets must rise from 0 to the number of texts (10)" in done.err


@pytest.mark.parametrize("flags", [{}, {"activation_checkpointing": ""}, {"lora_rank": "2"}], ids=["plain", "checkpointed", "lora"])
def test_bfloat16_trains_and_saves_float32(program, flags):
    # The same texts but for one more token, so that the loss of what is trained is seen.
    private = load_file(program.folder / "data.safetensors")
    lengths = numpy.diff(private["offsets"])
    words = [private["tokens"][end - length : end].tolist() for length, end in zip(lengths, private["offsets"][1:], strict=True)]
    write_data(program.folder / "like.safetensors", [[*text, 0] for text in words if len(text) <= POSITIONS], "public")
    flags = {"eval_data": "like.safetensors", "noise_multiplier": "0.1", "expected_batch": "12", "steps": "10",
             "learning_rate": "0.01", **flags}  # fmt: skip
    found = {}
    for dtype in ("float32", "bfloat16"):
        done = program.run(arguments(PRIVATE, compute_dtype=dtype, output=dtype, **flags))
        assert done.code == 0, done.err
        found[dtype] = [line["eval_loss"] for line in metrics(program.folder / dtype)]
        assert all(values.dtype == numpy.float32 for values in weights(program.folder / dtype).values())
        report = json.loads((program.folder / dtype / "privacy_report.json").read_text())
        assert report["mechanism"]["compute_dtype"] == dtype
    assert found["bfloat16"][-1] < found["bfloat16"][0]
    # Losses of order 3.5 from logits rounded at 2^-9.
    assert found["bfloat16"][0] == pytest.approx(found["float32"][0], abs=0.02)
    assert found["bfloat16"][0] != found["float32"][0]


@pytest.mark.parametrize("groups, unit, message", [
    (None, "user", "there are no unit_offsets that group texts to others"), (None, "patient", "there are no unit_offsets"),
    (USERS, "text", 'what unit_offsets group texts to, e.g. user, is "text"'),
])  # fmt: skip
def test_a_unit_that_the_file_only_names_is_refused(program, groups, unit, message):
    """The report would protect users of whom nobody knows which texts are theirs, or each text of a group that is clipped as one."""
    write_users(program.folder / "users.safetensors", {"unit": unit}, unit_offsets=groups and numpy.array(groups, numpy.int64))
    done = program.run(arguments(PRIVATE, data="users.safetensors", expected_batch="2"))
    assert done.code == 2 and message in done.err and not (program.folder / "run").exists()
