"""One private step of Opacus' `ghost` and of ours in situations in which Opacus 1.6 goes wrong or gives up, each against a
loop over examples in float64 that clips and adds up. Prints a table in Markdown and writes JSON: relative error of the
released sum (below 1e-4 is right), or the error that was raised.

    .venv/bin/python bench/opacus_faults.py --output bench/results/opacus_faults.json
"""

import argparse
import copy
import json
import pathlib
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/python/ghost"))
import opacus
import oracle

import ghostshard
import ghostshard.ghost.wrappers

CLIP = 0.1


class Language(nn.Module):
    def __init__(self, *, tied=False, broadcast_positions=False, padding_idx=None, bias=True):
        super().__init__()
        self.tokens = nn.Embedding(11, 8, padding_idx=padding_idx)
        self.positions = nn.Embedding(9, 8)
        self.norm = nn.LayerNorm(8, bias=bias)
        self.head = nn.Linear(8, 11, bias=False)
        self.broadcast = broadcast_positions
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        places = torch.arange(ids.shape[1])
        places = places[None] if self.broadcast else places.repeat(len(ids), 1)
        return self.head(self.norm(self.tokens(ids) + self.positions(places)))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class SometimesUnused(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)
        self.both = True

    def forward(self, x):
        return self.first(x) + self.second(x) if self.both else self.first(x)


def mlp(outputs=3):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs))


def four_extents():
    return nn.Sequential(nn.Linear(6, 4), nn.Flatten(), nn.Linear(24, 3))


def features(n=6):
    return torch.randn(n, 6), torch.randint(0, 3, (n,))


def ids(n=6):
    tokens = torch.randint(0, 11, (n, 8))
    tokens[0] = 3
    return (tokens,)


def class_loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def token_loss(model, batch):
    return functional.cross_entropy(model(batch[0][:, :-1]).transpose(1, 2), batch[0][:, 1:], reduction="none").mean(1)


def by_class(criterion, module, batch):
    return criterion(module(batch[0]), batch[1])


def by_token(criterion, module, batch):
    logits = module(batch[0][:, :-1].contiguous())
    return criterion(logits.flatten(0, 1), batch[0][:, 1:].flatten(), shape=logits.shape)


def by_sliced_token(criterion, module, batch):
    logits = module(batch[0][:, :-1])
    return criterion(logits.flatten(0, 1), batch[0][:, 1:].flatten(), shape=logits.shape)


class Scenario:
    def __init__(self, name, build, batches, loss, call, criterion=nn.CrossEntropyLoss, before=None):
        self.name, self.build, self.batches, self.loss, self.call = name, build, batches, loss, call
        self.criterion, self.before = criterion, before

    def run(self, engine_class):
        torch.manual_seed(3)
        model, batches = self.build(), self.batches()
        expected = oracle.clipped_sum(copy.deepcopy(model), self.loss, batches, CLIP)
        loader = DataLoader(TensorDataset(torch.zeros(60, 1)), batch_size=6)
        # Ours must be told that a step has several backwards, over batches of the caller's own.
        options = {"accumulation_steps": 2} if engine_class is ghostshard.PrivacyEngine else {}
        module, optimizer, criterion, _ = engine_class().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), data_loader=loader,
            criterion=self.criterion(reduction="mean"), noise_multiplier=0.0, max_grad_norm=CLIP,
            grad_sample_mode="ghost", poisson_sampling=False, **options)
        if self.before is not None:
            expected = self.before(model, module, optimizer, criterion, batches, expected)
        start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        optimizer.zero_grad()
        for batch in batches:
            self.call(criterion, module, batch).backward()
        optimizer.step()
        moved = {name: (start[name] - p.detach()) * optimizer.expected_batch_size for name, p in
                 model.named_parameters() if p.requires_grad}
        return oracle.worst_difference(moved, {name: expected[name] for name in moved})


def twin_of(model, build):
    """A plain model with the same weights (a copy would copy hooks)."""
    twin = build()
    twin.load_state_dict(model.state_dict())
    return twin


def shrunk_clip_norm(model, module, optimizer, criterion, batches, expected):
    """As a grad-clip scheduler does: a quarter of the norm. All examples are clipped, so the sum is a quarter."""
    optimizer.max_grad_norm = CLIP / 4
    return oracle.clipped_sum(twin_of(model, mlp), class_loss, batches, CLIP / 4)


def failed_backward(model, module, optimizer, criterion, batches, expected):
    """Out of memory in a backward, caught by the loop, which goes on with the next batch."""
    loss = criterion(module(3 * batches[0][0]), batches[0][1])
    real, calls = torch.Tensor.backward, []

    def failing(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 2 or isinstance(module, ghostshard.ghost.wrappers.GhostModule):
            raise MemoryError
        return real(self, *args, **kwargs)

    torch.Tensor.backward = failing
    try:
        loss.backward()
    except MemoryError:
        pass
    finally:
        torch.Tensor.backward = real
    return expected


def used_then_not(model, module, optimizer, criterion, batches, expected):
    x, y = batches[0]
    optimizer.zero_grad()
    criterion(module(x), y).backward()
    optimizer.step()
    model.both = False
    twin = twin_of(model, SometimesUnused)
    twin.both = False
    return oracle.clipped_sum(twin, class_loss, batches, CLIP)


def thawed(model, module, optimizer, criterion, batches, expected):
    x, y = batches[0]
    model[0].requires_grad_(False)
    optimizer.zero_grad()
    criterion(module(x), y).backward()
    optimizer.step()
    model[0].requires_grad_(True)
    return oracle.clipped_sum(twin_of(model, mlp), class_loss, batches, CLIP)


def squared(model, batch):
    return functional.mse_loss(model(batch[0]), batch[1], reduction="none").flatten()


def not_finite():
    x, y = features()
    x[2, 0] = float("inf")
    return [(x, y)]


def loss_without_the_bad(model, batch):
    bad = ~torch.isfinite(batch[0]).all(1)
    return torch.where(bad, 0.0, class_loss(model, (torch.nan_to_num(batch[0], posinf=0.0), batch[1])))


SCENARIOS = [
    Scenario("P1 losses of shape [B,1]", lambda: mlp(1), lambda: [(torch.randn(6, 6), torch.randn(6, 1))], squared,
             by_class, nn.MSELoss),
    Scenario("P2 clip norm changed by a scheduler", mlp, lambda: [features()], class_loss, by_class,
             before=shrunk_clip_norm),
    Scenario("P3 exception in a backward, loop goes on", mlp, lambda: [features()], class_loss, by_class,
             before=failed_backward),
    Scenario("P4 a layer that did not run in this step", SometimesUnused, lambda: [features()], class_loss, by_class,
             before=used_then_not),
    Scenario("P7 tied embedding and head", lambda: Language(tied=True), lambda: [ids()], token_loss, by_token),
    Scenario("H4 two backwards before a step", mlp, lambda: [features(), features(3)], class_loss, by_class),
    Scenario("H9 padding_idx", lambda: Language(padding_idx=3), lambda: [ids()], token_loss, by_token),
    Scenario("H9 Linear on 4 extents", four_extents, lambda: [(torch.randn(6, 2, 3, 6), torch.randint(0, 3, (6,)))],
             class_loss, by_class),
    Scenario("H9 position ids of shape [1,T]", lambda: Language(broadcast_positions=True), lambda: [ids()], token_loss,
             by_token),
    Scenario("H9 LayerNorm(bias=False)", lambda: Language(bias=False), lambda: [ids()], token_loss, by_token),
    Scenario("H14 one example that is not finite", mlp, not_finite, loss_without_the_bad, by_class),
    Scenario("layer called twice", Twice, lambda: [features()], class_loss, by_class),
    Scenario("a layer unfrozen between steps", mlp, lambda: [features()], class_loss, by_class, before=thawed),
    Scenario("non-contiguous ids (x[:, :-1])", Language, lambda: [ids()], token_loss, by_sliced_token),
]


def said(scenario, engine_class):
    try:
        return scenario.run(engine_class)
    except Exception as error:  # the error is the result
        return f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"


def cell(found):
    return found if isinstance(found, str) else ("weights not finite" if found != found else f"{found:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    results = []
    print("| situation | Opacus `ghost` | GhostShard `ghost` |\n|---|---|---|")
    for scenario in SCENARIOS:
        theirs, ours = said(scenario, opacus.PrivacyEngine), said(scenario, ghostshard.PrivacyEngine)
        results.append({"situation": scenario.name, "opacus": theirs, "ghostshard": ours})
        print(f"| {scenario.name} | {cell(theirs)} | {cell(ours)} |", flush=True)
    if args.output:
        report = {"opacus": opacus.__version__, "torch": torch.__version__, "results": results}
        args.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
