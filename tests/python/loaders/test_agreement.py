"""Ranks that never wait for one another: the same number of physical batches on two ranks."""

import itertools
import time
import traceback

import pytest
import torch
import torch.distributed as dist
from drawing import DATA, MANAGERS, Flags, prescribe
from torch.utils.data import TensorDataset

from ghostshard.loaders import BatchMemoryManager, GhostDataLoader


def serve(rank, ranks, store, pipe):
    """A rank's process: runs what comes through the pipe, answers with the result or the traceback."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    pipe.send((True, None))
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send((True, function(rank, **arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """Two processes. A rank that does not answer in time, or fails, ends both and the test, with a message."""

    def __init__(self, folder):
        self._folder, self._starts, self._processes, self._pipes = folder, 0, [], []

    def _start(self):
        context = torch.multiprocessing.get_context("spawn")
        self._starts += 1
        for rank in range(2):
            mine, theirs = context.Pipe()
            arguments = (rank, 2, self._folder / f"store{self._starts}", theirs)
            self._processes.append(context.Process(target=serve, args=arguments, daemon=False))
            self._pipes.append(mine)
            self._processes[-1].start()
            theirs.close()
        self._answers("starting", 120)

    def _answers(self, what, seconds):
        answers, deadline = {}, time.monotonic() + seconds
        while len(answers) < 2:
            for rank, pipe in enumerate(self._pipes):
                if rank in answers or not pipe.poll(0.02):
                    continue
                try:
                    good, answers[rank] = pipe.recv()
                except EOFError:
                    good, answers[rank] = False, "its process died"
                if not good:
                    self.end()
                    pytest.fail(f"rank {rank}, {what}: {answers[rank]}", pytrace=False)
            if time.monotonic() > deadline and len(answers) < 2:
                self.end()
                waiting = [rank for rank in range(2) if rank not in answers]
                done = sorted(answers)
                pytest.fail(f"{what}: rank {waiting} still waits after {seconds} s, {done} done", pytrace=False)
        return [answers[rank] for rank in range(2)]

    def __call__(self, function, *, seconds=12, **arguments):
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, arguments))
        return self._answers(function.__name__, seconds)

    def end(self):
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    made = Ranks(tmp_path_factory.mktemp("ranks"))
    yield made
    made.end()


def take_part(step):
    """Stands for FSDP's collectives: waits for the other rank, and says whether it is in the same step."""
    steps = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    dist.all_gather(steps, torch.tensor([step]))
    return steps[0].item() == steps[1].item()


def epochs_of_steps(rank, q, epochs):
    loader = GhostDataLoader(DATA, sample_rate=q, rank=rank, world_size=2)
    return [[(take_part(step), batch[1].tolist()) for step, batch in enumerate(loader)] for _ in range(epochs)]


def test_a_rank_that_draws_nothing_takes_the_step(ranks):
    """Opacus' sampler skips it: 15 of 20 such epochs would hang."""
    epochs = ranks(epochs_of_steps, q=1 / 12, epochs=20)
    steps = [list(itertools.chain(*of_rank)) for of_rank in epochs]
    assert len(steps[0]) == len(steps[1]) == 12 * 20
    assert all(together for of_rank in steps for together, _ in of_rank)
    assert any(not first and second for (_, first), (_, second) in zip(*steps, strict=True))
    assert not any(set(first) & set(second) for (_, first), (_, second) in zip(*steps, strict=True))


def physical_steps(rank, manager, draws, workers, epochs=1):
    """Per epoch and logical batch the pieces it came in; each step meets the other rank's step of the same number."""
    loader = GhostDataLoader(
        TensorDataset(torch.arange(64)), sample_rate=0.1, rank=rank, world_size=2, num_workers=workers,
        multiprocessing_context="fork" if workers else None,  # A spawned worker imports torch for seconds.
    )  # fmt: skip
    if draws is not None:
        prescribe(loader, [list(range(rank, 2 * size, 2)) for size in draws[rank]])
    optimizer, result = Flags(), []
    for _ in range(epochs):
        with MANAGERS[manager](data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as physical:
            logical = [[]]
            for (units,) in physical:
                logical[-1].append(units.tolist())
                assert take_part(len(logical)), "the ranks are in different logical batches"
                if optimizer.step():
                    logical.append([])
            assert logical.pop() == [] and sum(map(len, logical)) == len(physical)
        result.append(logical)
    return result


# Sizes of rank 0's and rank 1's logical batches; how many physical ones each becomes.
SPLITS = {
    "3_against_2": ([6, 1], [4, 1], [3, 1]),
    "shifted": ([4, 2], [2, 4], [2, 2]),
    "empty_on_one": ([0, 3], [3, 0], [2, 2]),
    "empty_on_both": ([0, 1], [0, 1], [1, 1]),
    "more_pieces_than_units": ([9, 1], [1, 9], [5, 5]),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize("first, second, pieces", SPLITS.values(), ids=SPLITS.keys())
def test_ranks_split_alike(ranks, first, second, pieces, manager, workers):
    of_ranks = ranks(physical_steps, manager=manager, draws=[first, second], workers=workers)
    for rank, (sizes, (logical,)) in enumerate(zip((first, second), of_ranks, strict=True)):
        assert [len(batch) for batch in logical] == pieces
        assert all(len(piece) <= 2 for batch in logical for piece in batch)
        assert [list(itertools.chain(*batch)) for batch in logical] == [list(range(rank, 2 * n, 2)) for n in sizes]


@pytest.mark.parametrize("manager", MANAGERS)
def test_poisson_batches_split_alike(ranks, manager):
    of_ranks = ranks(physical_steps, manager=manager, draws=None, workers=0, epochs=6)
    first, second = (list(itertools.chain(*epochs)) for epochs in of_ranks)
    assert len(first) == len(second) == 60
    for mine, others in zip(first, second, strict=True):
        sizes = [sum(map(len, batch)) for batch in (mine, others)]
        assert len(mine) == len(others) == max(1, -(-max(sizes) // 2))


def unequal_lengths(rank):
    loader = GhostDataLoader(DATA, sample_rate=0.25, steps=4 + rank, rank=rank, world_size=2)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=Flags()) as physical:
        with pytest.raises(ValueError, match="from 4 to 5 steps"):
            iter(physical)


def test_loaders_of_unequal_length_are_refused_on_every_rank(ranks):
    ranks(unequal_lengths)


def a_group_of_one(rank):
    alone = [dist.new_group([member]) for member in range(2)][rank]
    wrong = GhostDataLoader(DATA, sample_rate=0.25, rank=rank, world_size=2, process_group=alone)
    with pytest.raises(ValueError, match="2 ranks, but the group has 1"):
        BatchMemoryManager(data_loader=wrong, max_physical_batch_size=2, optimizer=Flags()).__enter__()
    loader = GhostDataLoader(DATA, sample_rate=0.25, rank=rank, world_size=2, process_group=dist.group.WORLD)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=Flags()) as physical:
        own = loader.batch_sampler.own_group()
        assert own is not dist.group.WORLD and dist.get_backend(own) == "gloo"
        assert physical.batch_sampler._group is own
        return len(list(physical))


def test_the_agreement_has_a_group_of_its_own(ranks):
    lengths = ranks(a_group_of_one)
    assert lengths[0] == lengths[1]
