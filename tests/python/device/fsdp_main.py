"""Mode "ghost_fsdp" on the device (device_under_test.py): started by torchrun, writes JSON to the file named first. See
test_fsdp_on_device.py.

    torchrun --nproc_per_node 2 fsdp_main.py results.json 2 mlp noise       # or 2x1: (replicate ×) shard; scenarios
    torchrun --nproc_per_node 2 fsdp_main.py results.json tensor2 megatron  # a tensor-parallel axis

The default group moves tensors of the device and nothing else, as one of NCCL does.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from on_device import BACKEND, DEVICE, here, take_engine, there

SEEN = take_engine()

import oracle
import packed
import tensor_parallel_main as tensor_parallel
import torch
import torch.distributed as dist
from leaving import report_and_leave
from models import CASES, next_token_loss
from private import Private
from ranks_main import checkpointed_gpt2, gpt2, local, tokens, wrapped
from refusals import sentence
from steps import waits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule

from ghostshard import FSDP2Wrapper, PrivacyEngine, pack_texts

ALL = {case.name: case for case in CASES}


def sums(build: Callable[[], nn.Module], batches: Callable[[], list], loss, clip_norm: float, **options) -> Callable:
    shard = options.pop("shard", wrapped)
    on_host = shard is offloaded

    def run(mesh) -> float:
        torch.manual_seed(11)
        model, (first, *rest) = build(), batches()
        second = rest[0] if rest else first
        expected = oracle.clipped_sum(copy.deepcopy(model), loss, [first, second], clip_norm)
        private = Private(shard(model.to(DEVICE), mesh), clip_norm, **options)
        for batch in there(local([first, second])):
            private.backward(loss, batch)
        found = rows_of_all(private) if on_host else private.released()
        assert isinstance(private.model, FSDPModule) and private.engine.ranks.device.type == DEVICE
        kinds = {p.grad.to_local().device.type for p in private.model.parameters() if p.requires_grad}
        assert kinds == {"cpu" if on_host else DEVICE}, kinds
        return oracle.worst_difference(here(found), expected)

    return run


def offloaded(model: nn.Module, mesh) -> nn.Module:
    """Each rank's rows and gradients stay in host memory; layers compute on the device."""
    return FSDP2Wrapper(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))


def rows_of_all(private: Private) -> dict[str, torch.Tensor]:
    """Gathered over the host: the default group moves none of its tensors."""
    private.engine.release()
    mine = {name: p.grad.to_local() for name, p in private.model.named_parameters()}
    every: list = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine, group=CONTROL)
    return {name: torch.cat([rows[name] for rows in every]) for name in mine}


def of(name: str, **options) -> Callable:
    case = ALL[name]
    return sums(case.build, case.batches, case.loss, case.clip_norm, **options)


def packed_users(mesh) -> float:
    torch.manual_seed(11)
    model, users = checkpointed_gpt2(), packed.some_users(2, 1, 1, 3, 1, lengths=[3, 7, 1, 5, 2, 6, 4, 3])
    expected = packed.clipped_sum(model, users + users[:2], 0.5)
    private = Private(wrapped(model.to(DEVICE), mesh), 0.5)
    for mine in (users[dist.get_rank() :: dist.get_world_size()], users[:2] if dist.get_rank() == 0 else []):
        private.module(**there(pack_texts(mine, users=True))).loss.backward()
    return oracle.worst_difference(here(private.released()), expected)


def noise(mesh) -> dict[str, bool]:
    """Of a step over no example: every mesh's is that of one rank on the CPU, bit for bit."""

    def drawn(device: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(11)
        model = ALL["language_tied"].build().to(device)
        generator = torch.Generator().manual_seed(5 if device == "cpu" else 5 + 100 * dist.get_rank())
        private = Private(
            model if device == "cpu" else wrapped(model, mesh), 0.3, noise_multiplier=2.0, generator=generator
        )
        return here(private.step(next_token_loss, [(torch.zeros(0, 7, dtype=torch.long, device=device),)]))

    with mock.patch.object(dist, "is_initialized", lambda: False):  # a plain model is for one rank alone
        expected = drawn("cpu")
    found = drawn(DEVICE)
    return {name: torch.equal(found[name], value) and bool((value != 0).all()) for name, value in expected.items()}


def groups(mesh) -> dict[str, list]:
    """Backends of the groups that the engine made, and of the default group."""
    private = Private(wrapped(gpt2().to(DEVICE), mesh), 0.5)
    ranks = private.engine.ranks
    return {
        "default": [str(device) for device in dist.group.WORLD._device_types],
        "sums": sorted({dist.get_backend(group) for group in ranks.kept if group is not None}),
        "agreement": sorted({dist.get_backend(group) for group in (ranks.control, ranks.data, ranks.twins) if group is not None}),
    }


def refusals(mesh) -> dict[str, list[str]]:
    """The sentence of every rank, if one rank's model, or all of them, are on a device without kernels."""

    def without_values(model: nn.Module) -> nn.Module:
        return wrapped(model.to("meta" if dist.get_rank() == dist.get_world_size() - 1 else DEVICE), mesh)

    def replicas(model: nn.Module) -> nn.Module:
        from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

        if dist.get_rank() > 0:
            model = model.cpu()
        held = object.__new__(DifferentiallyPrivateDistributedDataParallel)
        nn.Module.__init__(held)
        held.module = model
        return held

    found = {}
    for name, prepared in {"one_rank_on_meta": without_values, "one_rank_on_the_cpu": replicas}.items():
        said: list = [None] * dist.get_world_size()
        model = prepared(ALL["mlp"].build().to(DEVICE))
        mine = sentence(lambda model=model: Private(model, 1.0))
        dist.all_gather_object(said, mine, group=CONTROL)
        found[name] = said
    return found


def checkpoint(mesh) -> dict[str, bool]:
    """A run saved and gone on with by torch.distributed.checkpoint, and a step taken after each."""
    name: list = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(name, src=0, group=CONTROL)
    weights = []
    for load in (False, True):
        torch.manual_seed(3 + load)
        model = FSDP2Wrapper(ALL["mlp"].build().to(DEVICE), mesh=mesh)
        data = torch.utils.data.TensorDataset(torch.randn(16, 6), torch.randint(0, 3, (16,)))
        engine = PrivacyEngine(accountant="rdp")
        module, optimizer, criterion, loader = engine.make_private(
            module=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
            data_loader=torch.utils.data.DataLoader(data, batch_size=8), grad_sample_mode="ghost_fsdp",
        )  # fmt: skip
        if load:
            engine.load_checkpoint(path=Path(name[0]) / "state", module=module, optimizer=optimizer)
            weights.append([p.full_tensor().cpu() for p in model.parameters()])
        for x, y in loader:
            optimizer.zero_grad()
            criterion(module(x.to(DEVICE)), y.to(DEVICE)).backward()
            optimizer.step()
        if not load:
            engine.save_checkpoint(path=Path(name[0]) / "state", module=module, optimizer=optimizer)
            weights.append([p.full_tensor().cpu() for p in model.parameters()])
    steps = sum(steps for _, _, steps in engine.accountant.history)
    return {
        "weights_come_back": all(torch.equal(a, b) for a, b in zip(*weights, strict=True)),
        "steps_are_counted": steps == 2 * len(loader),
        "finite": all(bool(torch.isfinite(p.full_tensor().cpu()).all()) for p in model.parameters()),
    }


def cut_along(cut: Callable, build: Callable[[], nn.Module] = tensor_parallel.Stack, **options) -> Callable:
    """Layers cut over the mesh's only axis; the model is not sharded otherwise."""

    def run(mesh) -> float:
        torch.manual_seed(11)
        model, batches = build(), tokens()
        expected = oracle.clipped_sum(copy.deepcopy(model), next_token_loss, batches, 0.5)
        model.to(DEVICE)
        cut(model, mesh)
        private = Private(model, 0.5, **options)
        assert private.engine.ranks.model_ranks == mesh.size()
        return oracle.worst_difference(here(private.step(next_token_loss, there(batches))), expected)

    return run


SCENARIOS: dict[str, Callable] = {
    "megatron": cut_along(tensor_parallel.megatron),
    "along_the_sequence": cut_along(tensor_parallel.along_the_sequence),
    "words_by_columns": cut_along(tensor_parallel.words_by_columns),
    "megatron_two_passes": cut_along(tensor_parallel.megatron, memory_budget=0),
    **{name: of(name) for name in ("mlp", "language_tied_and_embedded_twice", "conv2d", "layer_without_a_rule")},
    "gpt2": sums(gpt2, tokens, next_token_loss, 0.5),
    "gpt2_accumulated": sums(gpt2, tokens, next_token_loss, 0.5, accumulate=True),
    "gpt2_checkpointed": sums(checkpointed_gpt2, tokens, next_token_loss, 0.5),
    "gpt2_two_passes": sums(gpt2, tokens, next_token_loss, 0.5, memory_budget=0),
    "gpt2_offloaded": sums(gpt2, tokens, next_token_loss, 0.5, shard=offloaded),
    "packed_users": packed_users,
    "noise": noise,
    "groups": groups,
    "refusals": refusals,
    "checkpoint": checkpoint,
    "waits": lambda mesh: waits(SEEN, lambda model: wrapped(model, mesh)),
}


def main() -> None:
    global CONTROL
    results, tensor = sys.argv[1], sys.argv[2].startswith("tensor")
    shape = [int(extent) for extent in sys.argv[2].removeprefix("tensor").split("x")]
    dist.init_process_group(BACKEND)
    CONTROL = dist.new_group(backend="gloo")
    mesh = init_device_mesh(DEVICE, tuple(shape), mesh_dim_names=("tensor",) if tensor else ("replicate", "shard")[-len(shape) :])
    found = {}
    for name in sys.argv[3:]:
        print(f"rank {dist.get_rank()}: {name}", file=sys.stderr, flush=True)
        found[name] = SCENARIOS[name](mesh)
    report_and_leave(results, found)


if __name__ == "__main__":
    main()
