"""Two methods that the library does not have, beside white noise on the same weights, batches and noise: DiSK, which filters the noise
over steps with two gradients of each text, and averages of the weights (EMA). Loss per token at epsilon 8, with the texts, the parts of
the test split, and the settings of e2e_quality.json. Prints a table and writes JSON.

    .venv/bin/python bench/not_kept.py --train devset.csv --test testset_w_refs.csv --output bench/results/not_kept.json --jobs 2
    .venv/bin/python bench/not_kept.py … --short        # a tiny model, two steps, two seeds: that it runs, no figures

Plain PyTorch: the gradient of each text in float32, clipped, added up, and with noise. Batches and noise follow from the seed, which
protects nothing: both parts of the texts are public, so no privacy is at stake. All methods are tuned as in e2e_quality.py, an average by
its best decay; the rows that tuning has not seen then give the losses that count. Differences are of runs with equal seeds. Runs that
--output has already, made with the same settings, are not made again.

DiSK (arXiv:2410.03883) weighs two gradients of each text: the one at x + gamma·d, d being the last step's move, by
c = (1 − kappa)/(kappa·gamma), and the one at x by 1 − c. Their sum is clipped, so that a text counts for no more than the clip norm.
The optimizer gets kappa times the noisy sum and 1 − kappa times what it got before. Where c = 1 the gradient at x is not needed.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

import torch
from e2e_quality import ROOT, commit, prepare, standard_error, tuned_rate
from gpt2_like import Gpt2Like
from step_peers import new_report
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence

from ghostshard.texts.packed import read_packed

NOISE_MULTIPLIER = 0.634  # of white noise at epsilon 8 in bench/results/e2e_quality.json
FIRST_RATE = 0.01  # of tuning
DECAYS = (0.8, 0.9, 0.95, 0.99)  # of averages of the weights
LAST = 0.0  # the decay that leaves the last weights alone
AT_A_TIME = 16  # texts
SHORT: dict = {"model": {"vocab_size": 270, "n_positions": 128, "n_embd": 16, "n_layer": 1, "n_head": 2},
               "run": {"expected-batch": 4, "steps": 2, "clip-norm": 1.0, "warmup-steps": 1}, "seeds": [1, 2]}  # fmt: skip

Tensors = dict[str, torch.Tensor]
# By text: its tokens, the places of those to be predicted, and 1 for each of these; all padded.
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """Of a training run. kappa 1: no filter."""

    schedule: str = "cosine"
    kappa: float = 1.0
    gamma: float = 1.0


@dataclass(frozen=True)
class Method:
    name: str
    kind: Kind
    decays: tuple[float, ...] = (LAST,)
    tuned_as: Kind | None = None  # None: as itself


ONE_GRADIENT = Kind(kappa=0.7, gamma=3 / 7)  # c = 1; to first order in d the same as any other gamma
METHODS = (
    Method("white noise", Kind()),
    Method("average", Kind(), DECAYS),
    Method("DiSK kappa 0.7 gamma 3/7", ONE_GRADIENT),
    Method("constant rate", Kind(schedule="constant"), (LAST, *DECAYS)),
    Method("DiSK kappa 0.7 gamma 0.5", Kind(kappa=0.7, gamma=0.5), tuned_as=ONE_GRADIENT),
    Method("DiSK kappa 0.5 gamma 1", Kind(kappa=0.5, gamma=1.0)),
)


class Texts:
    def __init__(self, path: Path):
        packed = read_packed(path)
        self.ids = [torch.tensor(packed.unit(i)) for i in range(packed.units)]
        self.predicted = [torch.tensor(packed.unit_mask(i)).nonzero().flatten() for i in range(packed.units)]

    def batches(self, chosen: list[int]) -> Iterator[Batch]:
        """Of texts alike in length: less is padded."""
        chosen = sorted(chosen, key=lambda i: len(self.ids[i]))
        for first in range(0, len(chosen), AT_A_TIME):
            ids, predicted = ([of[i] for i in chosen[first : first + AT_A_TIME]] for of in (self.ids, self.predicted))
            counted = [torch.ones(len(places)) for places in predicted]
            yield pad_sequence(ids, True), pad_sequence(predicted, True, padding_value=1), pad_sequence(counted, True)


def fresh_model(sizes: dict, seed: int) -> Gpt2Like:
    """With weights as the program draws them. Its head is the token table, which summed_losses multiplies by."""
    model = Gpt2Like(sizes["n_layer"], sizes["n_embd"], sizes["n_head"], sizes["vocab_size"], sizes["n_positions"])
    model.head = torch.nn.Identity()
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if p.ndim > 1:
            ends_branch = name.endswith(("out.weight", "down.weight"))
            torch.nn.init.normal_(p, std=0.02 / math.sqrt(2 * sizes["n_layer"]) if ends_branch else 0.02, generator=generator)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(p)
    return model


def summed_losses(model: Gpt2Like, weights: Tensors, ids: torch.Tensor, predicted: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Of each text, over its tokens to be predicted."""
    hidden = torch.func.functional_call(model, weights, ids[:, :-1])
    before = hidden.gather(1, (predicted - 1)[..., None].expand(-1, -1, hidden.shape[-1]))
    logits = before @ weights["tokens.weight"].T
    losses = functional.cross_entropy(logits.flatten(0, 1), ids.gather(1, predicted).flatten(), reduction="none")
    return (losses.view(counted.shape) * counted).sum(1)


def gradients_of_each(model: Gpt2Like, weights: Tensors, batch: Batch) -> Tensors:
    """[texts, …] of a text's mean loss over its tokens."""

    def loss(weights: Tensors, *text: torch.Tensor) -> torch.Tensor:
        return summed_losses(model, weights, *(part[None] for part in text))[0] / text[-1].sum()

    with sdpa_kernel(SDPBackend.MATH):  # vmap takes the others apart, text by text
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0))(weights, *batch)


def clipped_sum(model: Gpt2Like, weights: Tensors, batch: Batch, clip: float, kind: Kind, move: Tensors | None) -> Tensors:
    """Of gradients that are combined before they are clipped. move: the last step's; None: no step yet."""
    c = (1 - kind.kappa) / (kind.kappa * kind.gamma) if move else 0.0
    each: Tensors = {}
    if c and move:
        beside = {name: w + kind.gamma * move[name] for name, w in weights.items()}
        each = {name: g.mul_(c) for name, g in gradients_of_each(model, beside, batch).items()}
    if abs(1 - c) > 1e-9:
        here = gradients_of_each(model, weights, batch)
        each = {name: each[name].add_(g, alpha=1 - c) if each else g for name, g in here.items()}
    squares = torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0)
    factors = (clip / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    return {name: torch.tensordot(factors, g, dims=1) for name, g in each.items()}


def rate_at(step: int, run: dict, peak: float, schedule: str) -> float:
    """As the program's --lr-schedule."""
    warmup = run["warmup-steps"]
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    done = (step - warmup) / (run["steps"] - warmup)
    return peak * (1 + math.cos(math.pi * done)) / 2 if schedule == "cosine" else peak


def steps(run: dict, texts: Texts, model: Gpt2Like, kind: Kind, rate: float, seed: int) -> Iterator[None]:
    """Trains; a yield after each step."""
    coins, noise = (torch.Generator().manual_seed(1000 * seed + which) for which in (1, 2))
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(parameters.values(), weight_decay=0.0)
    move: Tensors | None = None
    seen: Tensors | None = None  # by the optimizer in the step before
    for step in range(run["steps"]):
        weights = {name: p.detach().clone() for name, p in parameters.items()}
        drawn = torch.rand(len(texts.ids), generator=coins) < run["expected-batch"] / len(texts.ids)
        total = {name: torch.zeros_like(w) for name, w in weights.items()}
        for batch in texts.batches(drawn.nonzero().flatten().tolist()):
            for name, part in clipped_sum(model, weights, batch, run["clip-norm"], kind, move).items():
                total[name] += part
        for name, p in parameters.items():
            noisy = total[name] + NOISE_MULTIPLIER * run["clip-norm"] * torch.randn(p.shape, generator=noise)
            p.grad = noisy / run["expected-batch"]
            if seen:
                p.grad.lerp_(seen[name], 1 - kind.kappa)
        seen = {name: p.grad for name, p in parameters.items()}
        optimizer.param_groups[0]["lr"] = rate_at(step, run, rate, kind.schedule)
        optimizer.step()
        move = {name: p.detach() - weights[name] for name, p in parameters.items()}
        yield


@torch.no_grad()
def loss_of(model: Gpt2Like, weights: Tensors, texts: Texts) -> float:
    """Per token, of all."""
    total = tokens = 0.0
    for batch in texts.batches(list(range(len(texts.ids)))):
        total += float(summed_losses(model, weights, *batch).sum())
        tokens += float(batch[-1].sum())
    return total / tokens


def train(config: dict, folder: Path, kind: Kind, rate: float, seed: int, part: str) -> dict:
    """With the losses on that part by decay of the average."""
    torch.set_num_threads(1)
    model = fresh_model(config["model"], seed)
    averages = {decay: {name: torch.zeros_like(p) for name, p in model.named_parameters()} for decay in (LAST, *DECAYS)}
    for _ in steps(config["run"], Texts(folder / "train.safetensors"), model, kind, rate, seed):
        for decay, average in averages.items():
            for name, p in model.named_parameters():
                average[name].lerp_(p.detach(), 1 - decay)
    evaluated = Texts(folder / f"{part}.safetensors")
    losses = {}
    for decay, average in averages.items():
        if decay == LAST or kind.kappa == 1:
            whole = 1 - decay ** config["run"]["steps"]  # what the steps weigh together, as no first weights are in it
            losses[str(decay)] = loss_of(model, {name: value / whole for name, value in average.items()}, evaluated)
    print(f"{kind}, rate {rate:g}, seed {seed}, {part}: {losses[str(LAST)]:.4f}", file=sys.stderr, flush=True)
    return {**asdict(kind), "rate": rate, "seed": seed, "part": part, "commit": commit(), "losses": losses}


class Runs:
    """Each is made once, in processes beside each other, and kept in a file."""

    def __init__(self, config: dict, folder: Path, output: Path, pool: ProcessPoolExecutor):
        self.config, self.folder, self.output, self.pool = config, folder, output, pool
        self.report = new_report() | {"config": config, "noise_multiplier": NOISE_MULTIPLIER}
        self.begun: dict[tuple, Future] = {}
        known = json.loads(output.read_text()) if output.exists() else {}
        for run in known["runs"] if known.get("config") == config else []:
            kind = Kind(**{field.name: run[field.name] for field in fields(Kind)})
            place = (kind, run["rate"], run["seed"], run["part"])
            self.begun[place] = Future()
            self.begun[place].set_result(run)

    def begin(self, *place) -> Future:
        """place: kind, rate, seed, part."""
        if place not in self.begun:
            self.begun[place] = self.pool.submit(train, self.config, self.folder, *place)
            self.begun[place].add_done_callback(lambda _: self.write())
        return self.begun[place]

    def write(self, **more) -> None:
        runs = [run.result() for run in list(self.begun.values()) if run.done()]
        whole = self.report | {"load_after": os.getloadavg(), "runs": runs, **more}
        self.output.write_text(json.dumps(whole, indent=1) + "\n")

    def tuned_rate(self, method: Method) -> float:
        def loss_at(rate: float) -> float:
            losses = self.begin(method.tuned_as or method.kind, rate, self.config["tuning_seed"], "tune").result()["losses"]
            return min(losses[str(decay)] for decay in method.decays)

        return tuned_rate(loss_at, FIRST_RATE)


def measure(runs: Runs, methods: Sequence[Method]) -> list[dict]:
    """A row for each method and decay. Differences are from the first."""
    for method, rate in itertools.product(methods, (FIRST_RATE, FIRST_RATE / 2, 2 * FIRST_RATE)):  # these are tried in any case
        runs.begin(method.tuned_as or method.kind, rate, runs.config["tuning_seed"], "tune")
    rates = {method: runs.tuned_rate(method) for method in methods}
    begun = {method: [runs.begin(method.kind, rate, seed, "test") for seed in runs.config["seeds"]] for method, rate in rates.items()}
    rows: list[dict] = []
    for method, decay in [(each, decay) for each in methods for decay in each.decays]:
        losses = [run.result()["losses"][str(decay)] for run in begun[method]]
        apart = [one - other for one, other in zip(losses, rows[0]["losses"] if rows else losses, strict=True)]
        rows.append({"method": method.name, "decay": decay, "rate": rates[method], "losses": losses, "mean": statistics.mean(losses),
                     "standard_error": standard_error(losses), "differences": apart, "difference": statistics.mean(apart),
                     "standard_error_of_difference": standard_error(apart)})  # fmt: skip
    return rows


def main() -> None:
    white, *others = METHODS
    names = [method.name for method in others]
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--train", type=Path, required=True)
    command.add_argument("--test", type=Path, required=True)
    command.add_argument("--output", type=Path, required=True)
    command.add_argument("--methods", nargs="+", choices=names, metavar="NAME", help=f"beside white noise, of {names}; default: all")
    command.add_argument("--jobs", type=int, default=1, help="runs at a time, one core each")
    command.add_argument("--short", action="store_true", help="a tiny model whose vocabulary is learnt from --train, two steps, two seeds")
    options = command.parse_args()
    config = json.loads((ROOT / "bench" / "e2e_quality.json").read_text())
    del config["methods"]
    if options.short:
        config |= SHORT | {"vocabulary": {"format": "e2e", "input": str(options.train), "size": SHORT["model"]["vocab_size"]}}
    spawn = multiprocessing.get_context("spawn")  # threads of torch do not outlive a fork
    with tempfile.TemporaryDirectory() as temporary, ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool:
        prepare(config, options.train, options.test, Path(temporary), declared="public")
        runs = Runs(config, Path(temporary), options.output, pool)
        rows = measure(runs, [white, *(method for method in others if method.name in (options.methods or names))])
    runs.write(results=rows)
    print(f"{'method':26} {'decay':>5} {'rate':>5} {'loss':>6} {'± s.e.':>6} {'from white':>10} {'± s.e.':>6}")
    for row in rows:
        print(f"{row['method']:26} {row['decay'] or 'last':>5} {row['rate']:5g} {row['mean']:6.3f} {row['standard_error']:6.3f} "
              f"{row['difference']:+10.3f} {row['standard_error_of_difference']:6.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
