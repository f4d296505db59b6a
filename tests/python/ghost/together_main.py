"""Two ranks that come apart, each in its own way: started by torchrun, writes each rank's errors. See test_ranks_together.py.

    torchrun --nproc_per_node 2 together_main.py results.json
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from leaving import report_and_leave
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.utils.batch_memory_manager import BatchMemoryManager
from private import hand_out
from private_run import prescribe
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import FSDP2Wrapper, PrivacyEngine
from ghostshard.accountants import ContourAccountant


class Run:
    def __init__(self, *, sharded: bool, model=None, wrap=DifferentiallyPrivateDistributedDataParallel, **options):
        torch.manual_seed(3)
        model = model or nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        self.model = FSDP2Wrapper(model) if sharded else wrap(model)
        data = TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,)))
        self.engine = PrivacyEngine(accountant="rdp")
        self.module, self.optimizer, self.criterion, self.loader = self.engine.make_private(
            module=self.model, optimizer=torch.optim.SGD(self.model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=8), noise_multiplier=1.0, max_grad_norm=1.0,
            grad_sample_mode="ghost_fsdp" if sharded else "ghost", **options,
        )  # fmt: skip

    def loss(self, units: int):
        return self.criterion(self.module(torch.ones(units, 6)), torch.zeros(units, dtype=torch.long))

    def step(self, units: int) -> None:
        self.optimizer.zero_grad()
        self.loss(units).backward()
        self.optimizer.step()


def one_rank_skips_its_empty_batch(run: Run) -> None:
    notes = run.loader.batch_sampler.stamps.begin_pass()
    for units in ([2, 0, 2], [2, 2, 2])[dist.get_rank()]:
        hand_out(run.loader, units, notes=notes)
        if units:
            run.step(units)


def one_rank_leaves_a_loss_out(run: Run) -> None:
    for step in range(3):
        hand_out(run.loader, 2)
        loss = run.loss(2)
        if step == 1 and dist.get_rank() == 0:
            continue
        loss.backward()
        run.optimizer.step()


def one_rank_steps_and_the_other_goes_on(run: Run) -> None:
    hand_out(run.loader, 2, 2)
    run.loss(2).backward()
    if dist.get_rank() == 0:
        run.optimizer.step()
    run.loss(2).backward()


def one_rank_drops_its_sum(run: Run) -> None:
    hand_out(run.loader, 2)
    run.loss(2).backward()
    if dist.get_rank() == 0:
        run.optimizer.zero_grad()
    hand_out(run.loader, 2) if dist.get_rank() == 0 else None
    run.optimizer.step()


def one_rank_begins_another_pass(run: Run) -> None:
    notes = run.loader.batch_sampler.stamps.begin_pass()
    for step in range(2):
        hand_out(run.loader, 2, notes=None if step == 1 and dist.get_rank() == 0 else notes)
        run.step(2)


def one_rank_has_other_units(run: Run) -> None:
    hand_out(run.loader, 2)
    run.step(2 if dist.get_rank() == 0 else 3)


def one_rank_learns_faster(run: Run) -> None:
    for group in run.optimizer.param_groups:
        group["lr"] *= 1 + dist.get_rank()
    hand_out(run.loader, 2)
    run.step(2)


def two_steps(run: Run, between) -> None:
    """between() is what rank 1 alone does before the second."""
    notes = run.loader.batch_sampler.stamps.begin_pass()
    for number in range(2):
        if number and dist.get_rank() == 1:
            between()
        hand_out(run.loader, 2, notes=notes)
        run.step(2)


def one_rank_decays_weights(run: Run) -> None:
    two_steps(run, lambda: run.optimizer.param_groups[0].update(weight_decay=0.5))


def one_rank_trains_other_parameters(run: Run) -> None:
    two_steps(run, lambda: run.optimizer.param_groups[0]["params"].reverse())


def one_rank_scales_its_gradients(run: Run) -> None:
    def scale(*_) -> None:
        for parameter in run.model.parameters():
            parameter.grad.mul_(0.5)

    notes = run.loader.batch_sampler.stamps.begin_pass()
    if dist.get_rank() == 1:
        run.optimizer.register_step_pre_hook(scale)
    for _ in range(2):
        hand_out(run.loader, 2, notes=notes)
        run.step(2)


def one_rank_loads_weights_before_the_first_step(run: Run) -> None:
    hand_out(run.loader, 2)
    if dist.get_rank() == 1:
        write_weights(run)
    run.step(2)


def one_rank_loads_frozen_weights_before_the_first_step(run: Run) -> None:
    frozen = next(run.model.parameters()).requires_grad_(False)
    if dist.get_rank() == 1:
        with torch.no_grad():
            (frozen.to_local() if isinstance(frozen, DTensor) else frozen).normal_()
    hand_out(run.loader, 2)
    run.step(2)


def one_rank_trains_in_evaluation_mode(run: Run) -> None:
    """After an evaluation of its own."""
    two_steps(run, run.model.eval)


def one_rank_loads_another_checkpoint(run: Run) -> None:
    """Both of no step; of a run whose accountant had charges of others."""
    state = run.engine.state_dict()
    other = json.loads(state["state"])
    other["accountant"]["history"] = [[1.0, 0.2, 5]]
    run.engine.load_state_dict(state if dist.get_rank() == 0 else {"state": json.dumps(other)})


def managed(run: Run, sizes) -> None:
    """A loader of each rank's own, whose batches a manager cuts into pieces of 2."""
    batches = [list(range(size)) for size in sizes[dist.get_rank()]]
    loader = DataLoader(TensorDataset(torch.ones(40, 6)), batch_sampler=batches)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=run.optimizer) as physical:
        for (x,) in physical:
            run.step(len(x))


def three_pieces_and_two(run: Run) -> None:
    managed(run, ([6, 2], [4, 2]))


def two_and_one_against_one_and_two(run: Run) -> None:
    managed(run, ([4, 2], [2, 4]))


class OnRankOne(nn.Module):
    """Does to its batch on rank 1 alone what no model may."""

    def __init__(self, deed):
        super().__init__()
        self.first, self.last, self.deed, self.kept = nn.Linear(6, 8), nn.Linear(8, 3), deed, 0.0

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(self.deed(self, x, h) if dist.get_rank() == 1 else h)


def mixes(_model, _x, h):
    return h - h.detach().mean(0)


def counts(_model, _x, h):
    return h / len(h)


def carries(model, x, h):
    before, model.kept = model.kept, float(x.mean())
    return h + before


def takes_nothing_else(_model, _x, h):
    if not torch.is_grad_enabled():
        raise ValueError("not these")
    return h


def one_step_of_noise(run: Run) -> None:
    hand_out(run.loader, 4)
    run.criterion(run.module(torch.randn(4, 6)), torch.zeros(4, dtype=torch.long)).backward()


HELD: list[torch.Tensor] = []


class MakesALeaf(nn.Module):
    """Of its batch, or of a copy of that on rank 1."""

    def __init__(self, *, copies: bool):
        super().__init__()
        self.layer, self.copies = nn.Linear(6, 3), copies

    def forward(self, x):
        leaf = x.clone()[:, None] if self.copies and dist.get_rank() == 1 else x[:, None]
        HELD[:] = [leaf]  # what nothing but the graph holds trains nothing
        return self.layer(leaf.requires_grad_()[:, 0])


def a_step_of_the_loader(run: Run) -> None:
    prescribe(run.loader, (4,))
    x, y = next(iter(run.loader))
    run.criterion(run.module(x), y).backward()
    run.optimizer.step()


def write_weights(run: Run) -> None:
    with torch.no_grad():
        for parameter in run.model.parameters():
            (parameter.to_local() if isinstance(parameter, DTensor) else parameter).normal_()


def one_rank_shuffles_its_items(run: Run, ranks=(1,)) -> None:
    data = run.loader.dataset
    for _ in range(3):
        for x, y in run.loader:
            run.optimizer.zero_grad()
            run.criterion(run.module(x), y).backward()
            run.optimizer.step()
        if dist.get_rank() in ranks:
            data.tensors = tuple(each.flip(0) for each in data.tensors)


def one_rank_shuffles_the_items_of_a_manager(run: Run) -> None:
    run.loader = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=3, optimizer=run.optimizer).__enter__()
    one_rank_shuffles_its_items(run)


def both_ranks_shuffle_their_items(run: Run) -> None:
    one_rank_shuffles_its_items(run, (0, 1))


def one_rank_writes_weights(run: Run) -> None:
    notes = run.loader.batch_sampler.stamps.begin_pass()
    hand_out(run.loader, 2, notes=notes)
    run.step(2)
    hand_out(run.loader, 2, notes=notes)
    if dist.get_rank() == 1:
        write_weights(run)
    run.loss(2).backward()


def one_rank_writes_weights_before_the_step(run: Run) -> None:
    notes = run.loader.batch_sampler.stamps.begin_pass()
    hand_out(run.loader, 2, notes=notes)
    run.step(2)
    hand_out(run.loader, 2, notes=notes)
    run.optimizer.zero_grad()
    run.loss(2).backward()
    if dist.get_rank() == 1:
        write_weights(run)
    run.optimizer.step()


def weights_are_put_back(run: Run) -> None:
    notes = run.loader.batch_sampler.stamps.begin_pass()
    hand_out(run.loader, 2, notes=notes)
    run.step(2)
    kept = {name: value.clone() for name, value in run.model.state_dict().items()}
    write_weights(run)
    run.model.load_state_dict(kept)
    hand_out(run.loader, 2, notes=notes)
    run.step(2)


def one_rank_freezes_a_layer(run: Run) -> None:
    notes = run.loader.batch_sampler.stamps.begin_pass()
    for step in range(2):
        if step == 1 and dist.get_rank() == 1:
            next(iter(run.model.parameters())).requires_grad_(False)
        hand_out(run.loader, 2, notes=notes)
        run.step(2)


def one_rank_loads_a_state(run: Run) -> None:
    """Its first collective has another size than what the other rank is at."""
    hand_out(run.loader, 2)
    state = run.engine.state_dict()
    if dist.get_rank() == 1:
        run.engine.load_state_dict(state)
    run.step(2)


def weighted_losses(run: Run, weight) -> None:
    """weight(this rank's examples, all ranks', step) of every loss."""
    prescribe(run.loader, ((3, 5, 4, 6, 2), (2, 4, 6, 3, 7))[dist.get_rank()])
    for step, (x, y) in enumerate(run.loader):
        together = torch.tensor(float(len(x)))
        dist.all_reduce(together)
        run.optimizer.zero_grad()
        (run.criterion(run.module(x), y) * weight(len(x), together.item(), step)).backward()
        run.optimizer.step()


def losses_are_divided_by_all_ranks_examples(run: Run) -> None:
    weighted_losses(run, lambda own, together, _: 1 / together)


def losses_are_weighted_by_a_ranks_share(run: Run) -> None:
    """As means over each rank's own become a mean over all."""
    weighted_losses(run, lambda own, together, _: 2 * own / together)


def losses_are_annealed(run: Run) -> None:
    weighted_losses(run, lambda own, together, step: 0.9**step)


def scheduled(run: Run, metric) -> None:
    """By metric(losses of a pass)."""
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(run.optimizer)
    prescribe(run.loader, ((3, 5, 4), (4, 2, 6))[dist.get_rank()])
    for _ in range(4):
        losses = []
        for x, y in run.loader:
            run.optimizer.zero_grad()
            loss = run.criterion(run.module(x), y)
            loss.backward()
            run.optimizer.step()
            losses.append(loss.item())
        scheduler.step(metric(losses))


def a_plateau_of_all_ranks_losses(run: Run) -> None:
    def metric(losses) -> float:
        mean = torch.tensor(sum(losses) / len(losses))
        dist.all_reduce(mean)
        return mean.item() / dist.get_world_size()

    scheduled(run, metric)


def a_plateau_of_what_objects_brought(run: Run) -> None:
    def metric(losses) -> float:
        every: list = [None] * dist.get_world_size()
        dist.all_gather_object(every, float(losses[-1]))
        return sum(every)

    scheduled(run, metric)


def a_plateau_of_public_losses(run: Run) -> None:
    generator = torch.Generator().manual_seed(5)
    scheduled(run, lambda _: torch.rand((), generator=generator).item())


SCENARIOS = {
    "a_plateau_of_all_ranks_losses": (a_plateau_of_all_ranks_losses, {}),
    "a_plateau_of_what_objects_brought": (a_plateau_of_what_objects_brought, {}),
    "a_plateau_of_public_losses": (a_plateau_of_public_losses, {}),
    "losses_are_divided_by_all_ranks_examples": (losses_are_divided_by_all_ranks_examples, {}),
    "losses_are_weighted_by_a_ranks_share": (losses_are_weighted_by_a_ranks_share, {}),
    "losses_are_annealed": (losses_are_annealed, {}),
    "one_rank_decays_weights": (one_rank_decays_weights, {}),
    "one_rank_trains_other_parameters": (one_rank_trains_other_parameters, {}),
    "one_rank_scales_its_gradients": (one_rank_scales_its_gradients, {}),
    "one_rank_loads_weights_before_the_first_step": (one_rank_loads_weights_before_the_first_step, {}),
    "one_rank_loads_frozen_weights_before_the_first_step": (one_rank_loads_frozen_weights_before_the_first_step, {}),
    "one_rank_trains_in_evaluation_mode": (one_rank_trains_in_evaluation_mode, {}),
    "one_rank_loads_another_checkpoint": (one_rank_loads_another_checkpoint, {}),
    "one_rank_freezes_a_layer": (one_rank_freezes_a_layer, {}),
    "one_rank_loads_a_state": (one_rank_loads_a_state, {}),
    "one_rank_skips_its_empty_batch": (one_rank_skips_its_empty_batch, {}),
    "one_rank_leaves_a_loss_out": (one_rank_leaves_a_loss_out, {}),
    "one_rank_steps_and_the_other_goes_on": (one_rank_steps_and_the_other_goes_on, {}),
    "one_rank_drops_its_sum": (one_rank_drops_its_sum, {}),
    "one_rank_begins_another_pass": (one_rank_begins_another_pass, {}),
    "one_rank_has_other_units": (one_rank_has_other_units, {}),
    "one_rank_learns_faster": (one_rank_learns_faster, {}),
    "one_rank_shuffles_its_items": (one_rank_shuffles_its_items, {}),
    "one_rank_shuffles_the_items_of_a_manager": (one_rank_shuffles_the_items_of_a_manager, {}),
    "both_ranks_shuffle_their_items": (both_ranks_shuffle_their_items, {}),
    "one_rank_writes_weights": (one_rank_writes_weights, {}),
    "one_rank_writes_weights_before_the_step": (one_rank_writes_weights_before_the_step, {}),
    "weights_are_put_back": (weights_are_put_back, {}),
    "three_pieces_and_two": (three_pieces_and_two, {"own_batches": True}),
    "two_and_one_against_one_and_two": (two_and_one_against_one_and_two, {"own_batches": True}),
}


def said_by_each(work) -> list[str]:
    try:
        work()
        mine = "nothing"
    except (RuntimeError, ValueError) as error:
        mine = f"{type(error).__name__}: {error}"
    every: list = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def plain_model() -> None:
    data = DataLoader(TensorDataset(torch.ones(8, 6)), batch_size=4)
    model = nn.Linear(6, 3)
    PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=data, noise_multiplier=1.0,
        max_grad_norm=1.0, grad_sample_mode="ghost",
    )  # fmt: skip


def full_register(folder: Path) -> None:
    """The limit has room for two steps of one run."""
    if dist.get_rank() == 0:
        (folder / "data").write_bytes(b"data")
    dist.barrier()
    accountant = ContourAccountant()
    for _ in range(2):
        accountant.step(noise_multiplier=1.0, sample_rate=0.25)
    engine = PrivacyEngine()
    engine.attach_ledger(folder / "ledger.jsonl")
    engine.attach_register(folder / "budgets.jsonl", data=folder / "data", limit=accountant.get_epsilon(1e-5) * 1.0001, delta=1e-5)
    model = FSDP2Wrapper(nn.Linear(6, 3))
    module, optimizer, criterion, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        data_loader=DataLoader(TensorDataset(torch.ones(16, 6), torch.zeros(16, dtype=torch.long)), batch_size=4),
        grad_sample_mode="ghost_fsdp",
    )  # fmt: skip
    for x, y in loader:
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(11, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(self.table(x))

    def logits(self, x):
        return functional.linear(torch.tanh(self.layer(self.table(x))), self.table.weight)


def entered_by_a_method(plain: bool) -> list:
    """The sentence, and whether a gradient without noise was left. plain: a backward that goes past the engine."""
    model = Tied()
    fully_shard(model)
    register_fsdp_forward_method(model, "logits")
    data = DataLoader(TensorDataset(torch.zeros(16, 5, dtype=torch.long)), batch_size=4)
    _, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=data, noise_multiplier=1.0,
        max_grad_norm=1.0, grad_sample_mode="ghost_fsdp", wrap_model=False,
    )  # fmt: skip
    hand_out(loader, 3)
    ids = torch.ones(3, 5, dtype=torch.long)
    loss = functional.cross_entropy if plain else criterion
    said = said_by_each(lambda: loss(model.logits(ids).transpose(1, 2), ids).backward())
    return [said, any(p.grad is not None for p in model.parameters())]


def second_optimizer() -> list:
    """Of a sharded model: the gradients that a second optimizer finds after each backward, what it says to one without noise, and whether a weight moved."""
    run = Run(sharded=True, accumulation_steps=2)
    other = torch.optim.AdamW(run.model.parameters(), lr=0.1)
    found, parameters = [], list(run.model.parameters())
    for number, (x, y) in enumerate(run.loader):
        run.criterion(run.module(x), y).backward()
        found += [p.grad is None for p in parameters]
        if number % 2:
            break
    run.optimizer.step()
    before = [p.full_tensor() for p in parameters]
    for p in parameters:
        p.grad = torch.ones_like(p)
    said = said_by_each(other.step)
    return [found, said, all(torch.equal(p.full_tensor(), q) for p, q in zip(parameters, before, strict=True))]


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    found: dict = {}
    for kind, sharded in (("sharded", True), ("replicas", False)):
        for name, (scenario, options) in SCENARIOS.items():
            print(f"rank {dist.get_rank()}: {kind} {name}", file=sys.stderr, flush=True)
            run = Run(sharded=sharded, **options)
            began = time.monotonic()
            found[f"{kind} {name}"] = said_by_each(lambda: scenario(run))
            found[f"{kind} {name}, seconds"] = time.monotonic() - began
        for deed in (mixes, counts, carries, *(() if sharded else (takes_nothing_else,))):
            run = Run(sharded=sharded, model=OnRankOne(deed))
            found[f"{kind} {deed.__name__}"] = said_by_each(lambda: one_step_of_noise(run))
        for leaf in ("view", "copy"):
            run = Run(sharded=sharded, model=MakesALeaf(copies=leaf == "copy"))
            found[f"{kind} leaf: {leaf}"] = said_by_each(lambda: a_step_of_the_loader(run))
    found["plain model"] = said_by_each(plain_model)
    found["full register"] = said_by_each(lambda: full_register(Path(sys.argv[1]).parent))
    found["method"], found["method, plain backward"] = entered_by_a_method(False), entered_by_a_method(True)
    found["second optimizer"] = second_optimizer()
    report_and_leave(sys.argv[1], found)


if __name__ == "__main__":
    main()
