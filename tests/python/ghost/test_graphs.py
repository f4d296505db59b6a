"""Graphs whose nodes are laid end to end, as PyTorch Geometric batches them: `batch` says whose each node is, and is the segment_ids of the model's call."""

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private_run import BATCH, prescribe
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from ghostshard import PrivacyEngine

CLIP, DRAWS = 0.05, (4, 3, 0, 5, 1)


class Graphs(Dataset):
    """Nodes, edges and a class."""

    def __init__(self):
        g = torch.Generator().manual_seed(0)
        sizes = [3 + i % 5 for i in range(40)]
        self.items = [(torch.randn(k, 6, generator=g), torch.randint(k, (2, 2 * k), generator=g), i % 3) for i, k in enumerate(sizes)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def end_to_end(items):
    """What PyG's Batch.from_data_list makes: edges are counted on, `ptr` says where each graph begins."""
    sizes = torch.tensor([len(x) for x, _, _ in items])
    begins = sizes.cumsum(0) - sizes
    return {
        "x": torch.cat([x for x, _, _ in items]), "edge_index": torch.cat([edges + begin for (_, edges, _), begin in zip(items, begins)], 1),
        "batch": torch.arange(len(items)).repeat_interleave(sizes), "ptr": torch.cat([begins, sizes.sum()[None]]), "y": torch.tensor([y for *_, y in items]),
    }  # fmt: skip


def added(h, batch, graphs):
    return h.new_zeros(graphs, h.shape[1]).index_add(0, batch, h)


def averaged(h, batch, graphs):
    return added(h, batch, graphs) / torch.bincount(batch, minlength=graphs).clamp(min=1)[:, None]


def largest(h, batch, graphs):
    return h.new_zeros(graphs, h.shape[1]).scatter_reduce(0, batch[:, None].expand(h.shape), h, "amax", include_self=False)


class Network(nn.Module):
    """Messages along the edges, twice; then one row for each graph, and a layer of that."""

    def __init__(self, pool, meet=lambda h: h, pooled=lambda h: h, edges=lambda e: e):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.pool, self.meet, self.pooled, self.edges = pool, meet, pooled, edges

    def forward(self, x, edge_index, batch):
        sources, targets = self.edges(edge_index)
        for layer in (self.one, self.two):
            h = layer(x)
            x = self.meet(torch.zeros_like(h).index_add(0, targets, h[sources]).add(h).relu())
        return self.pooled(self.head(self.pool(x, batch, int(batch.max()) + 1)))


def run_of(model, collate=end_to_end, draws=DRAWS):
    data = Graphs()
    run = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=BATCH, collate_fn=collate),
        noise_multiplier=0.0, max_grad_norm=CLIP, grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss(),
    )  # fmt: skip
    prescribe(run[-1], draws)
    return data, *run


def by_ids(module, batch):
    return module(batch["x"], batch["edge_index"], batch["batch"], segment_ids=batch["batch"])


def by_offsets(module, batch):
    return module(x=batch["x"], edge_index=batch["edge_index"], batch=batch["batch"], cu_seqlens=batch["ptr"])


@pytest.mark.parametrize("call", [by_ids, by_offsets])
@pytest.mark.parametrize("pool", [added, averaged, largest])
def test_a_step_is_the_clipped_sum_over_graphs(pool, call):
    torch.manual_seed(1)
    model = Network(pool)
    data, module, optimizer, criterion, loader = run_of(model)
    for drawn, batch in zip(DRAWS, loader, strict=True):
        expected = {name: torch.zeros_like(p).double() for name, p in model.named_parameters()}
        for x, edges, y in data.items[:drawn]:
            alone = lambda m, _, x=x, edges=edges, y=y: F.cross_entropy(m(x.double(), edges, torch.zeros(len(x), dtype=torch.long)), torch.tensor([y]))
            for name, value in oracle.clipped_sum(model, alone, [(torch.zeros(1),)], CLIP).items():
                expected[name] += value
        optimizer.zero_grad()
        criterion(call(module, batch), batch["y"]).backward()
        optimizer.step()
        found = {name: p.grad * BATCH for name, p in model.named_parameters()}
        if drawn:
            assert oracle.worst_difference(found, expected) < 2 * SUM_TOLERANCE
        else:
            assert not any(bool(value.any()) for value in found.values())


def of_others(edges):
    return torch.stack([edges[0].roll(7), edges[1]])


LEAKS = {
    "statistics of all nodes": lambda: Network(added, meet=lambda h: h - h.detach().mean(0)),
    "statistics of all graphs": lambda: Network(added, pooled=lambda h: h - h.detach().mean(0)),
    "edges between graphs": lambda: Network(added, edges=of_others),
    "nodes of other graphs": lambda: Network(lambda h, batch, graphs: added(h, batch.flip(0), graphs)),
}  # fmt: skip


@pytest.mark.parametrize("build", LEAKS.values(), ids=LEAKS)
def test_graphs_that_reach_each_other_are_refused(build):
    torch.manual_seed(1)
    _, module, _, criterion, loader = run_of(build())
    batch = next(iter(loader))
    with pytest.raises(RuntimeError, match="must not depend on other examples"):
        criterion(by_ids(module, batch), batch["y"]).backward()


def test_a_collate_fn_that_joins_graphs_is_refused():
    torch.manual_seed(1)
    joined = lambda items: (batch := end_to_end(items)) | {"edge_index": of_others(batch["edge_index"])}
    _, module, _, criterion, loader = run_of(Network(added), joined)
    batch = next(iter(loader))
    with pytest.raises((RuntimeError, ValueError), match="must not depend on other examples|mixes its examples"):
        criterion(by_ids(module, batch), batch["y"]).backward()


class Pooled(nn.Module):
    """Rows that units= joins, and that the model adds up itself."""

    def __init__(self, pooled=lambda h: h):
        super().__init__()
        self.inner, self.pooled = nn.Linear(6, 3), pooled

    def forward(self, x, batch):
        return self.pooled(added(self.inner(x), batch, int(batch.max()) + 1 if len(batch) else 0))


@pytest.mark.parametrize("mixes", [False, True])
def test_rows_that_a_model_adds_up_last(mixes):
    torch.manual_seed(1)
    _, module, _, criterion, loader = run_of(Pooled(lambda h: h - h.detach().mean(0)) if mixes else Pooled(), draws=(4,))
    batch = next(iter(loader))
    loss = criterion(module(batch["x"], batch["batch"], units=batch["batch"]), batch["y"])
    if mixes:
        with pytest.raises(RuntimeError, match="must not depend on other examples"):
            loss.backward()
    else:
        loss.backward()
