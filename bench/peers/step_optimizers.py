"""The optimizers that bench/optimizers.py compares, over FSDP2's shards, and what their part of a step costs: seconds, bytes of state,
bytes by kind of collective.

torch_adamw (fused), torch_muon (torch.optim.Muon on DTensors, AdamW for the rest), torch_muon_gathered (torch.optim.Muon on whole
matrices, which every rank keeps and computes, from gathered gradients), adamw, adamw8bit, muon, shampoo, soap (ghostshard.optim).
"""

import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

RATE = 1e-5
# What a rank sends of the larger of a collective's input and output, by the algorithms that send least.
SENT = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "all_to_all": 1}
KINDS = {"allgather": "all_gather", "reducescatter": "reduce_scatter", "allreduce": "all_reduce", "alltoall": "all_to_all"}


def is_muons(name, parameter):
    """Tables and head, whose rows are tokens', go by AdamW."""
    return parameter.dim() == 2 and name.startswith("h.")


class Several(torch.optim.Optimizer):
    """Optimizers that have a part of the parameters each, as one."""

    def __init__(self, *parts):
        super().__init__([p for part in parts for group in part.param_groups for p in group["params"]], {})
        self.parts = parts

    def step(self):
        for part in self.parts:
            part.step()


class GatheredMuon(torch.optim.Optimizer):
    def __init__(self, shards):
        super().__init__(shards, {})
        self.shards = shards
        self.whole = [torch.nn.Parameter(p.detach().full_tensor()) for p in shards]
        self.parts = [torch.optim.Muon(self.whole, RATE, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")]

    def step(self):
        for shard, whole in zip(self.shards, self.whole):
            whole.grad = shard.grad.full_tensor()
        self.parts[0].step()
        for shard, whole in zip(self.shards, self.whole):
            own = shard.detach().to_local()
            first = dist.get_rank() * -(-len(whole) // dist.get_world_size())
            own.copy_(whole[first : first + len(own)].detach())
            whole.grad = None


def make(name, model):
    if name == "torch_adamw":
        return torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    if name.startswith("torch_muon"):
        named = dict(model.named_parameters())
        matrices = [p for key, p in named.items() if is_muons(key, p)]
        rest = [p for key, p in named.items() if not is_muons(key, p)]
        muon = GatheredMuon(matrices) if name.endswith("gathered") else torch.optim.Muon(matrices, RATE, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        return Several(muon, torch.optim.AdamW(rest, lr=RATE, weight_decay=0.0, fused=True))
    from ghostshard import optim

    if name in ("muon", "shampoo", "soap"):
        kind = {"muon": optim.Muon, "shampoo": optim.Shampoo, "soap": optim.SOAP}[name]
        return kind(optim.matrix_groups(model, adamw=lambda key, p: not is_muons(key, p)), RATE, weight_decay=0.0)
    return {"adamw": optim.AdamW, "adamw8bit": optim.AdamW8bit}[name](model.parameters(), RATE, weight_decay=0.0)


def state_bytes(optimizer):
    """On this rank."""
    if hasattr(optimizer, "parts"):
        return sum(map(state_bytes, optimizer.parts))
    values = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return sum((value.to_local() if isinstance(value, DTensor) else value).nbytes for value in values)


class Collectives(TorchDispatchMode):
    """Bytes that this rank has to send for the collectives within, by kind."""

    def __init__(self):
        super().__init__()
        self.sent = dict.fromkeys(SENT, 0.0)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # it comes again as the operations on local tensors
        result = function(*args, **(kwargs or {}))
        operation = str(function).split("::")[-1].removeprefix("c10d.").removeprefix("_c10d_functional.").replace("_", "")
        kind = next((kind for start, kind in KINDS.items() if operation.startswith(start)), None)
        if kind and "c10d" in str(function):
            tensors = list(tensors_in((args, kwargs or {}, result)))
            others = (dist.get_world_size() - 1) / dist.get_world_size()
            splits = [each for each in args if isinstance(each, list) and each and isinstance(each[0], int)]
            if kind == "all_to_all" and len(splits) == 2:  # received and given
                self.sent[kind] += (sum(splits[1]) - splits[1][dist.get_rank()]) * tensors[0].element_size()
            else:
                self.sent[kind] += SENT[kind] * others * max(tensor.nbytes for tensor in tensors)
        return result


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(each)


class Meter:
    """Of an optimizer's steps: their seconds, and what the first one sends, which is counted and so is slower."""

    def __init__(self, optimizer, wait):
        self.optimizer, self._wait, self.seconds, self._collectives = optimizer, wait, 0.0, Collectives()
        self._steps = 0
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)

    def _begin(self, *_):
        if self._steps == 0:
            self._collectives.__enter__()
        self._wait()
        self._begun = time.perf_counter()

    def _end(self, *_):
        self._wait()
        self.seconds = time.perf_counter() - self._begun
        if self._steps == 0:
            self._collectives.__exit__(None, None, None)
        self._steps += 1

    def answer(self):
        return [self.seconds, state_bytes(self.optimizer) / 1e6, *(sent / 1e6 for sent in self._collectives.sent.values())]
