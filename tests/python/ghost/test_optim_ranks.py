"""ghostshard.optim over the shards of several ranks: beside whole parameters, in checkpoints of another world, and private."""

import json

import optim_ranks_main as main
import pytest
import torch
from launch import HERE, run_ranks


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As each rank has: matrix products of another number of threads may differ in a bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With checkpoints of one process, for two ranks to go on from."""
    folder = tmp_path_factory.mktemp("optim")
    for name, make in main.KINDS.items():
        model = main.build()
        optimizer = make(model)
        main.take_steps(model, optimizer, range(2))
        main.save(model, optimizer, folder / f"one_{name}", no_dist=True)
    return folder


@pytest.fixture(scope="module")
def two(folder) -> dict:
    run_ranks(HERE / "optim_ranks_main.py", 2, str(folder / "results.json"), "2", str(folder))
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def replicas(tmp_path_factory) -> dict:
    file = tmp_path_factory.mktemp("optim") / "results.json"
    run_ranks(HERE / "optim_ranks_main.py", 4, str(file), "2x2")
    return json.loads(file.read_text())


@pytest.mark.parametrize("kind", main.KINDS)
def test_shards_take_the_steps_of_whole_parameters_to_the_bit(two, replicas, kind):
    assert two["whole"][kind] == replicas["whole"][kind] == 0


def test_a_shard_that_begins_within_256_elements_differs_by_the_codes_rounding(two):
    # A moment is off by up to 0.007 of the largest in its stretch, which is about four times its deviation: 3 % of a step for each moment.
    assert 0 < two["cut_stretches"] < 0.06


def test_each_matrix_travels_there_and_back_once_but_for_the_owners_own_rows(two, replicas):
    matrices = [p.shape for name, p in main.build().named_parameters() if p.dim() == 2 and name != "3.weight"]
    elements = sum(rows * columns for rows, columns in matrices if rows > 1)  # of a matrix of one row its rank is the owner
    at_most = 2 * 4 * sum((rows + 1) // 2 * columns for rows, columns in matrices if rows > 1)
    assert elements * 4 * 0.8 < two["bytes"]["sent"] <= at_most
    assert replicas["bytes"]["sent"] == 2 * two["bytes"]["sent"]  # two replicas, each by itself
    assert two["bytes"]["calls"] == 2  # one round


def test_torchs_muon_is_right_on_shards(two):
    in_float32, in_bfloat16 = two["torchs_muon"]
    assert in_float32 < 1e-5  # as of one matrix and another order of sums
    assert in_bfloat16 < 2e-2  # three steps of 0.01·0.2·sqrt(d), rounded to 2^-8 in fifteen products


def test_matrices_that_are_cut_by_columns_are_a_sentence(two):
    found = two["cut_by_columns"]
    assert "sharded by rows over one axis of the mesh as fully_shard does; a parameter (8, 8) has placements" in found["muon"]
    assert found["adamw"] == 0, "elements may lie anywhere"


@pytest.mark.parametrize("kind", main.EXACT)
def test_every_rank_says_the_same_of_a_gradient_that_is_not_finite_on_one(two, kind):
    said = two["not_finite"][kind]
    assert len(said) == 2 and said[0] == said[1]
    assert "matrices must be finite and at most" in said[0] and "those of parameter 2 (64, 96) are not" in said[0]


@pytest.mark.parametrize("kind", main.KINDS)
def test_two_ranks_go_on_from_a_checkpoint_of_one_to_the_bit(two, kind):
    assert two["checkpoints"][kind] == 0


@pytest.mark.parametrize("kind", main.KINDS)
def test_one_rank_goes_on_from_a_checkpoint_of_two_to_the_bit(two, folder, kind):
    whole, model = main.build(), main.build()
    main.take_steps(whole, main.KINDS[kind](whole), range(4))
    main.take_steps(model, main.KINDS[kind](model), range(2))
    again = main.KINDS[kind](model)
    main.load(model, again, folder / f"ranks_{kind}", no_dist=True)
    main.take_steps(model, again, range(2, 4))
    assert main.difference(model, whole) == 0


@pytest.mark.parametrize("kind", [*main.PRIVATE, "muon_of_replicas"])
def test_a_private_run_of_two_ranks_is_that_of_one(two, folder, kind):
    """Noise is the same on every number of ranks, so steps of nobody are the same to the bit. Sums over examples are rounded in another
    order. torch's Muon computes in bfloat16: fifteen products of 2^-8 in three steps of some 0.01·0.2·4. SOAP is compared in steps of
    nobody alone: where a tile's first gradient does not span all directions, the other eigenvectors follow from roundings."""
    there = torch.load(folder / "private.pt")[kind]
    in_bfloat16 = 15 * 2**-8 * 3 * 0.01 * 0.2 * 4 if kind == "torchs_muon" else 0.0
    for units, tolerance in ((0, in_bfloat16), (8, max(1e-6, in_bfloat16))):
        alone = main.private_weights(None, main.PRIVATE[kind.removesuffix("_of_replicas")], units)
        if (kind, units) != ("soap", 8):
            assert max((a - b).abs().max().item() for a, b in zip(there[units], alone, strict=True)) <= tolerance, units
