"""Scenarios with a tensor-parallel axis: started by torchrun, writes a JSON object to the file named first. See
test_tensor_parallel.py.

    torchrun --nproc_per_node 4 tensor_parallel_main.py results.json 2x2     (replicate x) shard x tensor parallel
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import oracle
import torch
import torch.distributed as dist
from models import next_token_loss
from private import Private
from ranks_main import llama, main, tokens
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module  # fmt: skip
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import FSDP2Wrapper, PrivacyEngine
from ghostshard.ghost.loss import PrivateLoss

WIDTH, WORDS = 12, 50


class Block(nn.Module):
    def __init__(self, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(torch.tanh(self.up(self.norm(x)))))


class Stack(nn.Module):
    """Every layer has a bias; activations between the blocks are whole, or cut along the sequence."""

    def __init__(self, dropout: float = 0.0, checkpointed: bool = False):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=WORDS - 2)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.checkpointed = checkpointed

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x))


def head(**layouts) -> ColwiseParallel:
    return ColwiseParallel(output_layouts=Replicate(), **layouts)


def megatron(model: nn.Module, axis: DeviceMesh) -> None:
    """arXiv:1909.08053: words cut by id, layers between blocks whole."""
    by_ids = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(
        model, axis,
        {"words": by_ids, "blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel(), "head": head()},
    )  # fmt: skip


def along_the_sequence(model: nn.Module, axis: DeviceMesh) -> None:
    """arXiv:2205.05198: norms on a part of the sequence."""
    cut = Shard(1)
    parallelize_module(
        model, axis,
        {
            "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=cut, use_local_output=False),
            "blocks.*.norm": SequenceParallel(),
            "blocks.*.up": ColwiseParallel(input_layouts=cut),
            "blocks.*.down": RowwiseParallel(output_layouts=cut, use_local_output=False),
            "norm": SequenceParallel(),
            "head": head(input_layouts=cut),
        },
    )  # fmt: skip


def words_by_columns(model: nn.Module, axis: DeviceMesh) -> None:
    parallelize_module(model, axis, {"words": ColwiseParallel(output_layouts=Replicate())})
    megatron_blocks = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
    parallelize_module(model, axis, megatron_blocks)


def llama_of_transformers(model: nn.Module, axis: DeviceMesh) -> None:
    layer = {
        **{f"self_attn.{name}": ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")},
        **{f"mlp.{name}": ColwiseParallel() for name in ("gate_proj", "up_proj")},
        "self_attn.o_proj": RowwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }
    of_layers = {f"model.layers.*.{name}": style for name, style in layer.items()}
    words = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(model, axis, of_layers | {"model.embed_tokens": words, "lm_head": head()})


def shard(model: nn.Module, mesh: DeviceMesh, **options) -> nn.Module:
    """Over the axes of data, if there are any."""
    names = mesh.mesh_dim_names[:-1]
    return FSDP2Wrapper(model, mesh=mesh[names if len(names) > 1 else names[0]], **options) if names else model


def local(batches: list, private: Private) -> list:
    """The first microbatch dealt out unevenly over the ranks of data, the second to the first of them alone."""
    rank, ranks = private.engine.ranks.data_rank, private.engine.ranks.data_ranks
    first, second = batches
    return [
        tuple(value[rank::ranks] for value in first),
        tuple(value if rank == 0 else value[:0] for value in second),
    ]


def sum_scenario(build: Callable[[], nn.Module], cut: Callable, clip_norm: float = 0.5, **options) -> Callable:
    def run(mesh: DeviceMesh) -> float:
        torch.manual_seed(11)
        model, batches = build(), tokens()
        expected = oracle.clipped_sum(copy.deepcopy(model), next_token_loss, batches, clip_norm)
        cut(model, mesh["tensor"])
        private = Private(shard(model, mesh), clip_norm, **options)
        assert private.engine.ranks.model_ranks == mesh["tensor"].size()
        return oracle.worst_difference(private.step(next_token_loss, local(batches, private)), expected)

    return run


def frozen_stack() -> nn.Module:
    model = Stack()
    for part in (model.words, model.blocks[0].up, model.blocks[1].down):
        part.requires_grad_(False)
    return model


def bfloat16(mesh: DeviceMesh) -> dict[str, float]:
    """Clipped norms, in clip norms: one example at a time, all of them clipped. Alone on the axis the model is bfloat16 itself."""
    torch.manual_seed(11)
    model, batch, clip_norm = Stack(), tokens()[0], 1e-2
    if mesh.ndim == 1:
        model.to(torch.bfloat16)
    along_the_sequence(model, mesh["tensor"])
    private = Private(shard(model, mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)), clip_norm)
    norms = []
    for i in range(3):
        mine = tuple(value[i : i + 1] if private.engine.ranks.data_rank == 0 else value[:0] for value in batch)
        found = private.step(next_token_loss, [mine])
        norms.append(float(torch.sqrt(sum(value.double().square().sum() for value in found.values()))) / clip_norm)
    return {"least": min(norms), "most": max(norms)}


def noise(mesh: DeviceMesh) -> list[float]:
    """The noise on two cut parameters, whole, from a generator that only rank 0's seed decides."""
    torch.manual_seed(11)
    model, batches = Stack(), tokens()
    generator = torch.Generator().manual_seed(5 + 100 * dist.get_rank())
    sums = []
    for noise_multiplier in (2.0, 0.0):
        twin = copy.deepcopy(model)
        megatron(twin, mesh["tensor"])
        private = Private(shard(twin, mesh), 0.3, noise_multiplier=noise_multiplier, generator=generator)
        sums.append(private.step(next_token_loss, local(batches, private)))
    names = ("words.weight", "blocks.0.down.weight", "blocks.1.norm.weight", "blocks.0.down.bias")
    return [value for name in names for value in (sums[0][name] - sums[1][name]).flatten().tolist()]


def whole_parameters_stay_alike(mesh: DeviceMesh) -> float:
    """Ranks of the axis drop out different places, so that their sums differ; releases must not."""
    torch.manual_seed(11)
    model = Stack(dropout=0.3)
    megatron(model, mesh["tensor"])
    private = Private(shard(model, mesh), 0.3, noise_multiplier=1.0)
    batches = local(tokens(), private)
    torch.manual_seed(dist.get_rank())
    private.engine.sessions.checked = False
    for batch in batches:
        private.backward(next_token_loss, batch)
    private.engine.release()
    apart = 0.0
    for entry in private.engine.layout.parameters:
        if entry.cut < 0:
            gradient = entry.parameter.grad
            mine = (gradient.to_local() if isinstance(gradient, DTensor) else gradient).flatten()
            first = mine.clone()
            dist.broadcast(first, group=mesh["tensor"].get_group(), group_src=0)
            apart = max(apart, float((mine - first).abs().max()) if mine.numel() else 0.0)
    of_all = torch.tensor(apart)
    dist.all_reduce(of_all, dist.ReduceOp.MAX)
    return of_all.item()


def made_private(mesh: DeviceMesh, seed: int) -> tuple:
    torch.manual_seed(seed)
    model = Stack()
    megatron(model, mesh["tensor"])
    model = shard(model, mesh)
    words = torch.randint(0, WORDS, (24, 8), generator=torch.Generator().manual_seed(1))  # the same on all ranks
    data = TensorDataset(words, torch.arange(24))
    engine = PrivacyEngine(accountant="rdp")
    made = engine.make_private(
        module=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        data_loader=DataLoader(data, batch_size=6), grad_sample_mode="ghost_fsdp" if mesh.ndim > 1 else "ghost",
        criterion=nn.CrossEntropyLoss(),
    )  # fmt: skip
    return engine, *made


def epoch(module, optimizer, loader) -> list[list[int]]:
    drawn = []
    for ids, units in loader:
        drawn.append(units.tolist())
        optimizer.zero_grad()
        PrivateLoss(module.engine, next_token_loss(module, (ids,))).backward()
        optimizer.step()
    return drawn


def coins(mesh: DeviceMesh) -> list:
    """The draws of each rank's loader: (data rank, units of each step). No two ranks' generators are seeded alike."""
    _, module, optimizer, _, loader = made_private(mesh, seed=1)
    torch.manual_seed(dist.get_rank())
    drawn = epoch(module, optimizer, loader)
    every: list = [None] * dist.get_world_size()
    dist.all_gather_object(every, (module.engine.ranks.data_rank, drawn))
    return every


def checkpoint_and_back(mesh: DeviceMesh) -> dict:
    """Weights, moments and charges come back into another model of the same mesh, which goes on."""
    folder = [f"{sys.argv[1]}.checkpoint"]
    first, module, optimizer, _, loader = made_private(mesh, seed=1)
    epoch(module, optimizer, loader)
    first.save_checkpoint(path=folder[0], module=module, optimizer=optimizer)
    second, other, other_optimizer, _, other_loader = made_private(mesh, seed=2)
    second.load_checkpoint(path=folder[0], module=other, optimizer=other_optimizer)
    apart = max(
        float((whole(a) - whole(b)).abs().max()) for a, b in zip(module.parameters(), other.parameters(), strict=True)
    )
    epoch(other, other_optimizer, other_loader)
    return {"apart": apart, "history": second.accountant.history}


def whole(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def other_batches(mesh: DeviceMesh) -> str:
    """Own batches, of a sampler by the rank of all: then those of one rank for its whole axis."""
    torch.manual_seed(11)
    model, (ids,) = Stack(), tokens()[0]
    megatron(model, mesh["tensor"])
    private, rank = Private(shard(model, mesh), 0.5), dist.get_rank()
    alike = ids.roll(private.engine.ranks.data_rank, 0)
    try:
        private.backward(next_token_loss, (alike.roll(rank, 0),))
    except RuntimeError as error:
        private.backward(next_token_loss, (alike,))
        private.engine.release()
        return str(error)
    return "not refused"


def refused(build: Callable[[], nn.Module], plan: dict, loss: Callable = next_token_loss) -> Callable:
    def run(mesh: DeviceMesh) -> str:
        torch.manual_seed(11)
        model = build()
        parallelize_module(model, mesh["tensor"], plan)
        try:
            private = Private(shard(model, mesh), 0.5)
            private.backward(loss, tokens()[0])
        except (ValueError, RuntimeError) as error:
            return str(error)
        return "not refused"

    return run


class TableUsedTwice(Stack):
    """Once outside of its own layer."""

    def forward(self, ids):
        table = self.words.weight
        return super().forward(ids) + (table.full_tensor() if isinstance(table, DTensor) else table).sum()


def mean_logit(model, batch):
    return model(batch[0]).mean((1, 2))


MEGATRON_BLOCKS = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
SCENARIOS: dict[str, Callable] = {
    "megatron": sum_scenario(Stack, megatron),
    "along_the_sequence": sum_scenario(Stack, along_the_sequence),
    "words_by_columns": sum_scenario(Stack, words_by_columns),
    "frozen_parts": sum_scenario(frozen_stack, megatron),
    "accumulated": sum_scenario(Stack, megatron, accumulate=True),
    "per_layer": sum_scenario(Stack, megatron, clip_norm=1e6, clipping="per_layer"),
    "checkpointed": sum_scenario(lambda: Stack(checkpointed=True), megatron),
    "two_passes": sum_scenario(Stack, megatron, memory_budget=0),
    "two_passes_along_the_sequence": sum_scenario(Stack, along_the_sequence, memory_budget=0),
    "llama": sum_scenario(llama, llama_of_transformers),
    "bfloat16": bfloat16,
    "noise": noise,
    "whole_parameters_stay_alike": whole_parameters_stay_alike,
    "coins": coins,
    "checkpoint": checkpoint_and_back,
    "other_batches": other_batches,
    "uneven": refused(lambda: nn.Sequential(nn.Embedding(WORDS, 9), nn.Linear(9, 7)), {"1": ColwiseParallel()}),
    "logits_left_cut": refused(Stack, MEGATRON_BLOCKS | {"head": ColwiseParallel(use_local_output=False)}, mean_logit),
    "used_elsewhere": refused(TableUsedTwice, {"words": RowwiseParallel(input_layouts=Replicate())}),
}


if __name__ == "__main__":
    main(SCENARIOS, ("replicate", "shard", "tensor"))
