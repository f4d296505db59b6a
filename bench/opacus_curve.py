"""Training beside Opacus' grad_sample_mode="hooks" at equal noise: the same small GPT-2, weights, Poisson batches and noise values,
so that the two loss curves differ by rounding alone. Prints a table in Markdown and writes JSON.

    .venv/bin/python bench/opacus_curve.py --texts devset.csv --output bench/results/opacus_curve.json

--texts: a CSV with a column ref (E2E), or one text a line; tokens are bytes. Equal noise: a third engine of ours with a generator
of the same seed sees batches of no examples, so it releases our noise alone; Opacus is given these numbers in the place of its
own. Opacus needs position ids of shape [B,T] (fault H9); both get them.
"""

import argparse
import copy
import csv
import json
import math
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import opacus
import torch
from opacus.optimizers import optimizer as opacus_optimizer
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine
from ghostshard.ghost.transformers_losses import token_losses
from ghostshard.loaders import PoissonBatchSampler

IGNORED, END = -100, 0


@dataclass
class Setting:
    steps: int = 120
    expected_batch: int = 32
    clip_norm: float = 0.5
    noise_multiplier: float = 0.7
    lr: float = 2e-3
    length: int = 96
    width: int = 64
    layers: int = 2
    seed: int = 5
    noise_seed: int = 9


@dataclass
class Curves:
    ours: list[float] = field(default_factory=list)  # mean loss of each step's batch
    opacus: list[float] = field(default_factory=list)
    held_out: tuple[float, float, float] = (0.0, 0.0, 0.0)  # before, ours, Opacus'
    gradient: float = 0.0  # largest norm of a released gradient
    weights: float = 0.0  # largest difference at the end
    elements: int = 0

    @property
    def difference(self) -> float:
        return max(abs(a - b) for a, b in zip(self.ours, self.opacus, strict=True) if not math.isnan(a))


def tolerance(setting: Setting, curves: Curves) -> float:
    """How far rounding may move a step's loss. One step's released sums agree within 4e-5 of the largest value (a few hundred
    float32 operations on each side, each within 2^-24); Adam, whose second moments here are the noise's, moves a weight by lr
    times that; over the steps before, all in one direction, times the gradient's 1-norm, at most sqrt(elements) of its norm."""
    drift = setting.steps * setting.lr * 4e-5
    return 200 * 2**-24 + drift * math.sqrt(curves.elements) * curves.gradient


def texts_of(path: Path) -> list[str]:
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return [row["ref"] for row in csv.DictReader(file)]
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def encode(texts: list[str], length: int) -> torch.Tensor:
    """Labels [n, length]: bytes, END before and after, IGNORED beyond."""
    labels = torch.full((len(texts), length), IGNORED)
    for row, text in zip(labels, texts, strict=True):
        ids = torch.tensor([END, *text.encode(), END])[:length]
        row[: len(ids)] = ids
    return labels


def inputs(labels: torch.Tensor) -> dict[str, torch.Tensor]:
    places = torch.arange(labels.shape[1]).expand(labels.shape)
    return {
        "input_ids": labels.clamp(min=0), "attention_mask": (labels != IGNORED).long(), "position_ids": places.contiguous()
    }  # fmt: skip


def small_gpt2(setting: Setting):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(setting.seed)
    sizes = {"n_layer": setting.layers, "n_embd": setting.width, "n_head": 2, "vocab_size": 256, "n_positions": setting.length}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(**sizes, **dropout, bos_token_id=END, eos_token_id=END, attn_implementation="eager", use_cache=False)
    return GPT2LMHeadModel(config).train()


@contextmanager
def noise_given(model: torch.nn.Module, source) -> Iterator[None]:
    """Opacus' optimizer takes the noise of the step from source(), parameter by parameter in its order."""
    before, queue = opacus_optimizer._generate_noise, []

    def take(std, reference, **_):
        if not queue:
            values = source()
            queue.extend(values[name] for name, _ in model.named_parameters())
        value = queue.pop(0)
        assert value.shape == reference.shape
        return value

    opacus_optimizer._generate_noise = take
    try:
        yield
    finally:
        opacus_optimizer._generate_noise = before


def private(setting: Setting, model, data: torch.Tensor, engine, mode: str, **options):
    units = len(data) // setting.expected_batch * setting.expected_batch
    loader = DataLoader(TensorDataset(data[:units]), batch_size=setting.expected_batch)
    lr = options.pop("lr", setting.lr)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = engine.make_private(
            module=model, optimizer=torch.optim.Adam(model.parameters(), lr=lr), data_loader=loader,
            noise_multiplier=setting.noise_multiplier, max_grad_norm=setting.clip_norm, poisson_sampling=False,
            grad_sample_mode=mode, **options,
        )  # fmt: skip
    return found[0], found[1]


@torch.no_grad()
def held_out_loss(model, labels: torch.Tensor) -> float:
    logits = model(**inputs(labels)).logits
    return token_losses(logits, labels, shift=True, reduction="mean").mean().item()


def train(setting: Setting, labels: torch.Tensor, held_out: torch.Tensor, noise_seed_of_opacus: int | None = None) -> Curves:
    def generator(seed: int = setting.noise_seed) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    first = small_gpt2(setting)
    curves = Curves(elements=sum(p.numel() for p in first.parameters()))
    models = [first, copy.deepcopy(first), copy.deepcopy(first)]
    before = held_out_loss(first, held_out)
    ours, step_ours = private(setting, models[0], labels, PrivacyEngine(), "ghost", noise_generator=generator())
    theirs, step_theirs = private(setting, models[1], labels, opacus.PrivacyEngine(), "hooks")
    silent, step_silent = private(
        setting, models[2], labels, PrivacyEngine(), "ghost", lr=0.0,
        noise_generator=generator(noise_seed_of_opacus or setting.noise_seed),
    )  # fmt: skip

    def noise() -> dict[str, torch.Tensor]:
        none = labels[:0]
        silent(**inputs(none), labels=none).loss.backward()
        step_silent.step()
        return {name: p.grad * setting.expected_batch for name, p in models[2].named_parameters()}

    rate = setting.expected_batch / len(labels)
    sampler = PoissonBatchSampler(num_samples=len(labels), sample_rate=rate, steps=setting.steps, generator=generator(3))
    with noise_given(models[1], noise):
        for batch in sampler:
            part = labels[batch]
            step_ours.zero_grad()
            loss = ours(**inputs(part), labels=part).loss
            curves.ours.append(loss.item() if len(part) else math.nan)
            loss.backward()
            step_ours.step()
            norm = torch.sqrt(sum(p.grad.square().sum() for p in models[0].parameters()))
            curves.gradient = max(curves.gradient, float(norm))

            step_theirs.zero_grad()
            losses = token_losses(theirs(**inputs(part)).logits, part, shift=True, reduction="mean")
            curves.opacus.append(losses.mean().item())
            losses.mean().backward()
            step_theirs.step()
    for model in models[:2]:
        model.eval()
    ours.disable_hooks()
    curves.held_out = (before, *(held_out_loss(model, held_out) for model in models[:2]))
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    curves.weights = max(float((p - q).detach().abs().max()) for p, q in pairs)
    return curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=Setting.steps)
    args = parser.parse_args()
    setting = Setting(steps=args.steps)
    labels = encode(texts_of(args.texts), setting.length)
    held_out, labels = labels[-200:], labels[:-200]
    labels = labels[: len(labels) // setting.expected_batch * setting.expected_batch]
    began = time.monotonic()
    curves = train(setting, labels, held_out)
    within = tolerance(setting, curves)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    args.output.write_text(
        json.dumps({"setting": vars(setting), "units": len(labels), "tolerance": within, "difference": curves.difference}
                   | vars(curves), indent=1) + "\n"
    )  # fmt: skip
    print("| step | GhostShard | Opacus `hooks` | difference |\n|---|---|---|---|")
    for step in range(0, setting.steps, max(setting.steps // 6, 1)):
        a, b = curves.ours[step], curves.opacus[step]
        print(f"| {step} | {a:.6f} | {b:.6f} | {abs(a - b):.1e} |")
    before, a, b = curves.held_out
    print(f"| held out, before {before:.4f} | {a:.6f} | {b:.6f} | {abs(a - b):.1e} |")
    print(f"\nlargest difference {curves.difference:.1e}, by rounding at most {within:.1e}; of a weight {curves.weights:.1e}")


if __name__ == "__main__":
    main()
