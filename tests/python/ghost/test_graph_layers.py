"""PyTorch Geometric's own layers, as that library batches graphs, beside a float64 loop over the graphs."""

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private_run import BATCH, prescribe
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine

pytest.importorskip("torch_geometric")
from torch_geometric import nn as layers
from torch_geometric.data import Batch, Data

CLIP, DRAWS = 0.05, (4, 3, 0, 5, 1)


def graphs():
    g = torch.Generator().manual_seed(0)
    sizes = [3 + i % 5 for i in range(40)]
    return [Data(x=torch.randn(k, 6, generator=g), edge_index=torch.randint(k, (2, 2 * k), generator=g), y=torch.tensor([i % 3])) for i, k in enumerate(sizes)]


def end_to_end(items):
    if not items:
        return {"x": torch.zeros(0, 6), "edge_index": torch.zeros(2, 0, dtype=torch.long), "batch": torch.zeros(0, dtype=torch.long), "y": torch.zeros(0, dtype=torch.long)}
    b = Batch.from_data_list(items)
    return {"x": b.x, "edge_index": b.edge_index, "batch": b.batch, "y": b.y}


class Network(nn.Module):
    def __init__(self, layer, pool):
        super().__init__()
        self.one, self.two, self.head, self.pool = layer(6, 8), layer(8, 8), layers.Linear(8, 3), pool

    def forward(self, x, edge_index, batch):
        x = self.one(x, edge_index).relu()
        return self.head(self.pool(self.two(x, edge_index).relu(), batch))


LAYERS = {
    "GCN": layers.GCNConv, "GCN without bias": lambda a, b: layers.GCNConv(a, b, bias=False), "GAT": layers.GATConv,
    "GAT, two heads": lambda a, b: layers.GATConv(a, b // 2, heads=2), "GAT, mean of heads": lambda a, b: layers.GATConv(a, b, heads=2, concat=False),
    "SAGE": layers.SAGEConv, "GIN": lambda a, b: layers.GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b)), train_eps=True),
    "Graph": layers.GraphConv, "SG": lambda a, b: layers.SGConv(a, b, K=2), "TAG": layers.TAGConv, "Cheb": lambda a, b: layers.ChebConv(a, b, K=2),
    "Transformer": layers.TransformerConv,
}  # fmt: skip
POOLS = {"mean": layers.global_mean_pool, "sum": layers.global_add_pool, "max": layers.global_max_pool}


def run_of(model):
    data = graphs()
    run = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=BATCH, collate_fn=end_to_end),
        noise_multiplier=0.0, max_grad_norm=CLIP, grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss(),
    )  # fmt: skip
    prescribe(run[-1], DRAWS)
    return data, *run


def backward(module, criterion, batch):
    criterion(module(batch["x"], batch["edge_index"], batch["batch"], segment_ids=batch["batch"]), batch["y"]).backward()


@pytest.mark.parametrize("layer, pool", [*((name, "sum") for name in LAYERS), ("GCN", "mean"), ("GAT", "max")])
def test_a_step_is_the_clipped_sum_over_graphs(layer, pool):
    torch.manual_seed(1)
    model = Network(LAYERS[layer], POOLS[pool])
    data, module, optimizer, criterion, loader = run_of(model)
    for drawn, batch in zip(DRAWS, loader, strict=True):
        expected = {name: torch.zeros_like(p).double() for name, p in model.named_parameters()}
        for graph in data[:drawn]:
            x, places = graph.x.double(), torch.zeros(len(graph.x), dtype=torch.long)
            alone = lambda m, _, x=x, places=places, graph=graph: F.cross_entropy(m(x, graph.edge_index, places), graph.y)
            for name, value in oracle.clipped_sum(model, alone, [(torch.zeros(1),)], CLIP).items():
                expected[name] += value
        optimizer.zero_grad()
        backward(module, criterion, batch)
        optimizer.step()
        found = {name: p.grad * BATCH for name, p in model.named_parameters()}
        if drawn:
            assert oracle.worst_difference(found, expected) < 2 * SUM_TOLERANCE
        else:
            assert not any(bool(value.any()) for value in found.values())


@pytest.mark.parametrize("layer", [layers.GATv2Conv, lambda a, b: layers.GatedGraphConv(8, 2)])
def test_parameters_that_meet_edges_are_refused(layer):
    """A row of such a product is an edge, and the number of edges may be that of nodes."""
    torch.manual_seed(1)
    _, module, _, criterion, loader = run_of(Network(layer, layers.global_add_pool))
    with pytest.raises(ValueError, match="needs a batch with one example to a row, this one is packed"):
        backward(module, criterion, next(iter(loader)))


def test_a_layer_whose_edges_have_features_is_refused():
    torch.manual_seed(1)
    layer = layers.GATConv(6, 8, edge_dim=2)

    class Edges(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = layer

        def forward(self, x, edge_index, batch):
            return layers.global_add_pool(self.one(x, edge_index, x.new_ones(edge_index.shape[1], 2)), batch)

    _, module, _, criterion, loader = run_of(Edges())
    with pytest.raises(ValueError, match="needs a batch with one example to a row, this one is packed"):
        backward(module, criterion, next(iter(loader)))
