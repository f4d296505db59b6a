"""Scenarios of one_rank_main.py that look at steps: noise, whole trajectories, packed texts, memory, waits of the host."""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable
from typing import Any

import oracle
import packed
import torch
from models import CASES, next_token_loss
from on_device import DEVICE, here, there
from private import Private
from ranks_main import gpt2

from ghostshard import pack_texts

LANGUAGE = next(case for case in CASES if case.name == "language_tied")


def tokens() -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randint(0, 50, (5, 8)),), (torch.randint(0, 50, (3, 8)),)]


def noise() -> dict[str, bool]:
    """Of a step over no example: the noise alone, from one seed on both."""
    drawn = {}
    for device in ("cpu", DEVICE):
        torch.manual_seed(7)
        generator = torch.Generator().manual_seed(5)
        private = Private(LANGUAGE.build().to(device), 0.3, noise_multiplier=2.0, generator=generator)
        empty = (torch.zeros(0, 7, dtype=torch.long, device=device),)
        drawn[device] = [here(private.step(LANGUAGE.loss, [empty])) for _ in range(2)]
    first, second = drawn["cpu"]
    return {
        "same_bits": all(torch.equal(drawn[DEVICE][i][name], drawn["cpu"][i][name]) for i in (0, 1) for name in first),
        "steps_differ": all(not torch.equal(first[name], second[name]) for name in first),
        "is_there": all(bool((value != 0).all()) for value in first.values()),
    }


def trajectory() -> dict[str, float]:
    """Weights after six steps of SGD with noise, two microbatches each, from one seed: the end points of the CPU and of the
    device, and the distance on the CPU if a weight is off by `moved` at the beginning."""
    lr, moved = 0.02, 1e-3

    def weights(device: str, offset: float = 0.0) -> dict[str, torch.Tensor]:
        torch.manual_seed(7)
        model, batches = LANGUAGE.build(), [LANGUAGE.batches() for _ in range(6)]
        with torch.no_grad():
            for p in model.parameters():
                p += offset * torch.randn_like(p)
        private = Private(
            model.to(device), LANGUAGE.clip_norm, noise_multiplier=0.5, generator=torch.Generator().manual_seed(5), lr=lr
        )
        for step in batches:
            private.optimizer.zero_grad()
            for batch in step:
                private.backward(next_token_loss, tuple(value.to(device) for value in batch))
            private.optimizer.step()
        return here({name: p.detach() for name, p in model.named_parameters()})

    def apart(a: dict, b: dict) -> float:
        return float(torch.sqrt(sum((a[name].double() - b[name].double()).square().sum() for name in a)))

    on_cpu = weights("cpu")
    return {
        "device_from_cpu": apart(weights(DEVICE), on_cpu),
        "moved_from_cpu": apart(weights("cpu", moved), on_cpu),
        "moved_by": moved,
        "parameters": sum(value.numel() for value in on_cpu.values()),
        "lr": lr,
        "steps": 6,
        "examples": 7,
        "clip_norm": LANGUAGE.clip_norm,
        "largest": max(float(value.abs().max()) for value in on_cpu.values()),
    }


def packed_texts(texts_of_each: tuple[int, ...], *, apart: bool = False) -> float:
    """Texts end to end; apart: a user's texts do not stand together, so that rows are put in order as they are recorded."""
    torch.manual_seed(11)
    model = gpt2()
    users = packed.some_users(*texts_of_each, lengths=[3, 7, 1, 5, 2, 6])
    expected = packed.clipped_sum(model, users, 0.5)
    private = Private(model.to(DEVICE), 0.5)
    batch = pack_texts(users, users=True)
    if apart:
        texts = [text for user in users for text in user]
        owners = [owner for owner, user in enumerate(users) for _ in user]
        order = [*range(0, len(texts), 2), *range(1, len(texts), 2)]
        batch = pack_texts([texts[i] for i in order]) | {"user_ids": torch.tensor([owners[i] for i in order])}
    private.module(**there(batch)).loss.backward()
    return oracle.worst_difference(here(private.released()), expected)


def memory(seen: Any) -> list[int]:
    """Bytes of the device in use after each step, without those of its release."""
    torch.manual_seed(7)
    gc.collect()  # what other scenarios left would go at some step of this one
    private = Private(LANGUAGE.build().to(DEVICE), 0.5, noise_multiplier=1.0)
    used = []
    for _ in range(4):
        private.step(LANGUAGE.loss, there(LANGUAGE.batches()))
        private.optimizer.zero_grad()
        used.append(seen.bytes_in_use())
    return used


def waits(seen: Any, shard: Callable[[torch.nn.Module], torch.nn.Module] = lambda model: model) -> dict[str, Any]:
    """How often the host waits for the device in each of three steps, in four of AdamW, and in a forward of the model without us."""
    batch = there(tokens()[0])

    def private(**options: Any) -> Private:
        torch.manual_seed(7)
        return Private(shard(gpt2().to(DEVICE)), 0.5, noise_multiplier=1.0, **options)

    def counted(call: Callable[[], object]) -> int:
        before = seen.host_waits()
        call()
        return seen.host_waits() - before

    def forward_and_backward(of: Private) -> None:
        of.module(input_ids=batch[0], labels=batch[0]).loss.backward()

    def step(of: Private) -> None:
        forward_and_backward(of)
        of.engine.release()

    def step_of_adamw(of: Private) -> None:
        forward_and_backward(of)
        of.optimizer.step()
        of.optimizer.zero_grad()

    alone, adamw = private(), private(optimizer=functools.partial(torch.optim.AdamW, foreach=False), lr=1e-3)
    found = {"steps": [counted(lambda: step(alone)) for _ in range(3)], "of_adamw": [counted(lambda: step_of_adamw(adamw)) for _ in range(4)]}
    alone.engine.enable(False)
    return found | {"own": counted(lambda: alone.model(input_ids=batch[0]))}


def moved() -> float:
    """A model that goes to the device after it was made private, as `model.to(device)` may come late in a script."""
    torch.manual_seed(7)
    model, batches = LANGUAGE.build(), LANGUAGE.batches()
    expected = oracle.clipped_sum(copy.deepcopy(model), LANGUAGE.loss, batches, LANGUAGE.clip_norm)
    private = Private(model, LANGUAGE.clip_norm)
    private.step(LANGUAGE.loss, batches)
    private.optimizer.zero_grad()
    model.to(DEVICE)
    return oracle.worst_difference(here(private.step(LANGUAGE.loss, there(batches))), expected)


def scenarios(seen: Any) -> dict:
    return {
        "noise": noise,
        "trajectory": trajectory,
        "packed_texts": lambda: packed_texts((1,) * 6),
        "packed_users": lambda: packed_texts((2, 1, 3)),
        "packed_users_apart": lambda: packed_texts((2, 1, 3), apart=True),
        "memory": lambda: memory(seen),
        **({"waits": lambda: waits(seen)} if DEVICE == "emulated" else {}),
        "moved": moved,
    }
