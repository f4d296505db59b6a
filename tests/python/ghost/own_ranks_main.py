"""Two ranks with batches of their own: a loader that hands each of them the whole data set is refused when it is iterated; dealt ones, and sizes alone, are not."""

import torch
import torch.distributed as dist
from opacus.data_loader import DPDataLoader
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Subset, SubsetRandomSampler, TensorDataset

from ghostshard import FSDP2Wrapper, PrivacyEngine

N = 16


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(N, 6, generator=generator), torch.arange(N) % 3)


def steps_of(loader, *, sharded=False, managed=False, batches=None, **options) -> int | str:
    """How many a pass has; or what is said."""
    model = FSDP2Wrapper(nn.Linear(6, 3)) if sharded else DistributedDataParallel(nn.Linear(6, 3))
    module, optimizer, criterion, private = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
        grad_sample_mode="ghost_fsdp" if sharded else "ghost", poisson_sampling=False, **options,
    )  # fmt: skip
    done = 0
    try:
        if managed:
            private = BatchMemoryManager(data_loader=private, max_physical_batch_size=2, optimizer=optimizer).__enter__()
        for x, y in private if batches is None else batches:
            criterion(module(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
    except ValueError as error:
        return str(error)
    return done


def main() -> None:
    dist.init_process_group("gloo")
    rank, whole = dist.get_rank(), data()
    own = list(range(rank, N, 2))
    shared = {
        "in order": DataLoader(whole, batch_size=4), "at random": DataLoader(whole, batch_size=4, shuffle=True),
        "by batches": DataLoader(whole, batch_sampler=BatchSampler(RandomSampler(whole), 4, True)),
        "Opacus'": DPDataLoader.from_data_loader(DataLoader(whole, batch_size=4)), "of no rank": DataLoader(whole, batch_size=4, sampler=DistributedSampler(whole, 1, 0)),
        "of one rank": DataLoader(whole, batch_size=4, sampler=DistributedSampler(whole, 2, 1)), "of two orders": DataLoader(whole, batch_size=4, sampler=DistributedSampler(whole, seed=rank)),
        "one part": DataLoader(whole, batch_size=4, sampler=SubsetRandomSampler([3, 1, 2, 8])),
    }  # fmt: skip
    for name, loader in shared.items():
        said = steps_of(loader)
        assert isinstance(said, str) and said.startswith("ranks 0 and 1 would be given the same examples"), (name, said)
        assert len(list(loader)) > 0  # the caller's own loader stays as it was
    assert "would be given the same examples" in str(steps_of(shared["at random"], sharded=True))
    assert "would be given the same examples" in str(steps_of(shared["at random"], managed=True))
    dealt = {
        "sampler": DataLoader(whole, batch_size=4, sampler=DistributedSampler(whole)), "subset": DataLoader(Subset(whole, own), batch_size=4, shuffle=True),
        "parts": DataLoader(whole, batch_size=4, sampler=SubsetRandomSampler(own)), "Opacus'": DPDataLoader.from_data_loader(DataLoader(whole, batch_size=4), distributed=True),
    }  # fmt: skip
    for name, loader in dealt.items():
        found = steps_of(loader)
        assert isinstance(found, int), (name, found)
    assert steps_of(dealt["sampler"], sharded=True) == 2 and steps_of(dealt["sampler"], managed=True) == 4
    assert steps_of(shared["in order"], batches=[tuple(each[own[:4]] for each in whole.tensors)]) == 1
    assert steps_of(shared["in order"], allow_vouched=True) == 4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
