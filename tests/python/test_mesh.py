"""`--mesh`: the program on every axis, and what it refuses."""

import json

import numpy
import pytest
from program import PLAIN, PRIVATE, arguments, everything_in, json_lines, metrics, weights, write_model

MESHES = ["1x2x1", "2x1x1", "1x1x2", "2x2x1", "1x2x2", "2x1x2", "2x2x2"]


def ranks_of(mesh: str) -> int:
    return int(numpy.prod([int(extent) for extent in mesh.split("x")]))


@pytest.mark.parametrize("mesh", MESHES)
def test_a_run_without_privacy_gives_the_weights_of_one_rank(program, mesh):
    """Up to the rounding of sums: a step of 1e-3 x gradient moves weights of about 0.1 by 1e-3 or less, float32 sums
    differ by 1e-6 of that and three steps add up; 1e-6 is a thousand times more, and a lost step a thousand times more
    again."""
    change = {"optimizer": "sgd", "learning_rate": "0.1", "steps": "3", "eval_data": "public.safetensors", "timeout": "60"}
    assert program.run(arguments(PLAIN, output="alone", **change)).code == 0
    words = arguments(PLAIN, output="together", mesh=mesh, **change)
    finished = program.run_ranks(*[words] * ranks_of(mesh))
    assert [rank.code for rank in finished] == [0] * ranks_of(mesh), finished
    start, alone, together = (weights(program.folder / run) for run in (".", "alone", "together"))
    assert alone.keys() == together.keys()
    moved = 0.0
    for name, value in alone.items():
        numpy.testing.assert_allclose(together[name], value, rtol=0, atol=1e-6, err_msg=name)
        moved = max(moved, float(numpy.abs(value - start[name]).max()))
    assert moved > 1e-3, "the comparison must be able to fail"
    assert f"mesh {mesh}" in finished[0].err
    ours, theirs = (metrics(program.folder / run)[-1] for run in ("together", "alone"))
    assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], rel=1e-5)
    assert ours["eval_standard_error"] == pytest.approx(theirs["eval_standard_error"], rel=1e-4)


@pytest.mark.parametrize("mesh", ["2x1x1", "1x1x2", "2x2x2"])
def test_a_private_run_charges_once_and_counts_every_text_once(program, mesh):
    words = arguments(PRIVATE, mesh=mesh, timeout="60", allow_nonprivate_metrics="", expected_batch="24")
    finished = program.run_ranks(*[words] * ranks_of(mesh))
    assert [rank.code for rank in finished] == [0] * ranks_of(mesh), finished
    run = program.folder / "run"
    assert [release["step"] for release in json_lines(run / "ledger.jsonl")[1:]] == [0, 1, 2]
    provenance = json.loads((run / "privacy_report.json").read_text())["provenance"]
    assert (provenance["ranks"], provenance["mesh"]) == (ranks_of(mesh), mesh)
    # Sampling rate 1: every text is in every batch, on however many ranks it is seen.
    assert [line["private_batch"] for line in metrics(run)[1:]] == [24, 24, 24]


@pytest.mark.parametrize(
    ("mesh", "ranks", "said"),
    [
        ("2x2", 2, "--mesh: a mesh must be REPLICATExSHARDxMODEL, three whole numbers of at least 1 such as 1x4x2, got '2x2'"),
        ("1x3x1", 2, "the mesh replicate x shard x model must have as many places as there are ranks (2), got 1x3x1"),
        ("1x1x2", 1, "the mesh replicate x shard x model must have as many places as there are ranks (1), got 1x1x2"),
        ("1x1x4", 4, "on a mesh with 4 model ranks n_head must be a multiple of 4, got 2"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused_before_anything_is_written(program, mesh, ranks, said):
    before = everything_in(program.folder)
    words = arguments(PRIVATE, mesh=mesh, timeout="60")
    finished = program.run_ranks(*[words] * ranks) if ranks > 1 else [program.run(words)]
    for rank in finished:
        assert rank.code == 2 and said in rank.err, rank
    assert everything_in(program.folder) == before


def test_inner_columns_must_divide_too(program):
    write_model(program.folder / "model", {"n_inner": 33})
    words = arguments(PRIVATE, mesh="1x1x2", timeout="60")
    for rank in program.run_ranks(words, words):
        assert rank.code == 2 and "n_inner must be a multiple of 2, got 33" in rank.err, rank
