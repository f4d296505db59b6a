"""One training step of one engine, on command. Started by bench/peers.py, one process a rank.

Rank 0 reads `step`, `step TEXTS` or `quit` from standard input and answers a step with seconds of wall time, seconds of
processor time, peak memory in MiB, MB on the loopback interface (of all ranks together, protocol included), and the MB
that rank 0 has to send by kind of collective: all-gather, reduce-scatter, all-reduce (by the algorithms that send least;
Gloo's may send more).

On a GPU (--device cuda, rank r of the host on device r) the clock is read when the device is done, and peak memory is
the device's, of PyTorch's allocator.

With --compute-dtype bfloat16 parameters are gathered and layers computed in bfloat16 (FSDP2's MixedPrecisionPolicy).

With --optimizer NAME (step_optimizers.py) an answer has six numbers more, of rank 0's optimizer: seconds, MB of state, and the MB that
it has to send by all-gather, reduce-scatter, all-reduce and all-to-all.

Engines: fsdp2 (PyTorch's fully_shard per block, no privacy), fsdp2_accumulate (the same, gradients reduced with the last
microbatch), ghostshard, ghostshard_reduced_each (accumulate=False), ghostshard_two_passes (memory_budget=0), opacus_fsdp (Opacus' ghost_fsdp), opacus_dpddp (Opacus' ghost, model
whole on every rank).
"""

import argparse
import contextlib
import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
from gpt2_like import Gpt2Like
from host_memory import peak_host_memory_mib
from step_optimizers import Meter, make
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, TensorDataset

SIZES = {"layers": 4, "width": 512, "heads": 8, "vocab": 8192, "length": 100, "texts": 8, "microbatches": 4}


class Plain:
    def __init__(self, model, mesh, accumulate, optimizer, mp_policy):
        for block in model.h:
            fully_shard(block, mesh=mesh, mp_policy=mp_policy)
        self.model = fully_shard(model, mesh=mesh, mp_policy=mp_policy)
        self.optimizer = make(optimizer, model)
        self.accumulate = accumulate

    def step(self, batches):
        scale = 1.0 / (len(batches) * len(batches[0][0]) * dist.get_world_size())
        for i, (ids, targets) in enumerate(batches):
            self.model.set_requires_gradient_sync(not self.accumulate or i + 1 == len(batches))
            losses = nn.functional.cross_entropy(self.model(ids).flatten(0, 1), targets.flatten(), reduction="sum")
            (losses * (scale / ids.shape[1])).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class Private:
    """Both engines with Opacus' interface; Opacus adds up microbatches only under a BatchMemoryManager."""

    def __init__(self, model, engine, mode, optimizer="torch_adamw", **options):
        self.privacy = engine
        data = DataLoader(TensorDataset(torch.zeros(64, 1)), batch_size=8)
        self.module, self.optimizer, self.criterion, _ = engine.make_private(
            module=model, optimizer=make(optimizer, model), data_loader=data, noise_multiplier=1.0, max_grad_norm=1.0,
            poisson_sampling=False, grad_sample_mode=mode, criterion=nn.CrossEntropyLoss(), **options)

    def step(self, batches):
        for i, (ids, targets) in enumerate(batches):
            self.optimizer.signal_skip_step(do_skip=i + 1 < len(batches))
            self.optimizer.zero_grad()
            logits = self.module(ids)
            self.criterion(logits.flatten(0, 1), targets.flatten(), shape=logits.shape).backward()
            self.optimizer.step()


def build(engine, args):
    torch.manual_seed(1)
    model = Gpt2Like(args.layers, args.width, args.heads, args.vocab, args.length).to(args.device)
    mesh = init_device_mesh(args.device, (dist.get_world_size(),))
    optimizer = args.optimizer or "torch_adamw"
    mp_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if args.compute_dtype == "bfloat16" else None)
    if engine.startswith("fsdp2"):
        return Plain(model, mesh, engine.endswith("accumulate"), optimizer, mp_policy)
    if engine.startswith("ghostshard"):
        from ghostshard import FSDP2Wrapper, PrivacyEngine

        options = {"accumulate": False} if engine.endswith("reduced_each") else {}
        if engine.endswith("two_passes"):
            options["memory_budget"] = 0
        return Private(FSDP2Wrapper(model, mesh=mesh, mp_policy=mp_policy), PrivacyEngine(), "ghost_fsdp", optimizer, **options)
    from opacus import PrivacyEngine
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
    from opacus.utils.fsdp_utils import FSDP2Wrapper

    if engine == "opacus_fsdp":
        return Private(FSDP2Wrapper(model, mp_policy=mp_policy), PrivacyEngine(), "ghost_fsdp")
    if args.compute_dtype != "float32":
        raise SystemExit(f"{engine}: DistributedDataParallel has no mixed precision of its own")
    return Private(DifferentiallyPrivateDistributedDataParallel(model), PrivacyEngine(), "ghost")


class Traffic:
    """Bytes that this rank must send for the collectives of torch.distributed, and for those of GhostShard's engine."""

    def __init__(self, ghost):
        self.sent = {"all_gather": 0.0, "reduce_scatter": 0.0, "all_reduce": 0.0}
        self.ghost = ghost
        others = (dist.get_world_size() - 1) / dist.get_world_size()
        self._count("all_gather_into_tensor", "all_gather", others)
        self._count("reduce_scatter_tensor", "reduce_scatter", others)
        self._count("all_reduce", "all_reduce", 2 * others)

    def _count(self, function, kind, share):
        original = getattr(dist, function)

        def counted(*args, **kwargs):
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
            self.sent[kind] += share * max(tensor.nbytes for tensor in tensors)  # the larger of input and output
            return original(*args, **kwargs)

        setattr(dist, function, counted)

    def so_far(self):
        return {**self.sent, "reduce_scatter": self.sent["reduce_scatter"] + (self.ghost.bytes_sent if self.ghost else 0)}


def loopback_bytes():
    with open("/proc/net/dev") as devices:
        return next((int(line.split(":")[1].split()[8]) for line in devices if line.strip().startswith("lo:")), 0)


class Place:
    """The host, or this rank's GPU."""

    def __init__(self, device):
        self.device, self.on_gpu = device, device == "cuda"
        if self.on_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl" if self.on_gpu else "gloo")

    def wait(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def peak_mib(self):
        if self.on_gpu:
            return torch.cuda.max_memory_allocated() / 2**20
        return peak_host_memory_mib()

    def batch(self, vocabulary, shape):
        return tuple(torch.randint(vocabulary, shape).to(self.device) for _ in range(2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    for name, value in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compute-dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--optimizer")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    place = Place(args.device)
    control = dist.new_group(backend="gloo")
    engine = build(args.engine, args)
    meter = Meter(getattr(engine.optimizer, "original_optimizer", engine.optimizer), place.wait) if args.optimizer else None
    traffic = Traffic(engine.module.engine if args.engine.startswith("ghostshard") else None)
    batches = {}
    while True:
        texts = torch.zeros(1, dtype=torch.long)
        if dist.get_rank() == 0:
            word, *number = sys.stdin.readline().split() or ["quit"]
            if word == "step":
                texts[0] = int(number[0]) if number else args.texts
        dist.broadcast(texts, 0, group=control)
        if not texts.item():
            break
        shape = (texts.item(), args.length)
        if shape not in batches:
            torch.manual_seed(100 + dist.get_rank())
            batches[shape] = [place.batch(args.vocab, shape) for _ in range(args.microbatches)]
            place.wait()
        before, sent = traffic.so_far(), loopback_bytes()
        wall, processor = time.perf_counter(), time.process_time()
        engine.step(batches[shape])
        place.wait()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        dist.barrier(group=control)
        if dist.get_rank() == 0:
            sent = (loopback_bytes() - sent) / 1e6
            kinds = " ".join(f"{(now - before[kind]) / 1e6:.2f}" for kind, now in traffic.so_far().items())
            kinds += "".join(f" {number:.6f}" for number in (meter.answer() if meter else []))
            print(f"{wall:.6f} {processor:.6f} {place.peak_mib():.1f} {sent:.2f} {kinds}", flush=True)
    if args.engine.startswith("ghostshard") and dist.get_rank() == 0:
        with contextlib.suppress(RuntimeError):  # no step was taken
            print(engine.privacy.explain_plan(), end="", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
