"""One training step of GPT-2 under PyTorch's own FSDP2 (fully_shard), without privacy, on command.

Started by bench/step_peers.py, one process a rank (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Rank 0 reads `fsdp2`
(every microbatch reduced, as fully_shard does by itself), `fsdp2_accumulate` (gradients summed whole on the rank and
reduced with the last microbatch) or `quit` from standard input and answers with seconds of wall and processor time.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from host_memory import peak_host_memory_mib
from torch.distributed.fsdp import fully_shard
from transformers import GPT2Config, GPT2LMHeadModel

COMMANDS = ["quit", "fsdp2", "fsdp2_accumulate"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("layers", 4), ("width", 512), ("heads", 8), ("vocab", 8192), ("length", 100), ("texts", 8),
                        ("microbatches", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--untied", action="store_true")
    return parser.parse_args()


def build(args):
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=args.vocab, n_positions=max(1024, args.length), n_embd=args.width,
                        n_layer=args.layers, n_head=args.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                        use_cache=False, tie_word_embeddings=not args.untied, attn_implementation="sdpa")
    model = GPT2LMHeadModel(config)
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    return model


def step(model, optimizer, batches, accumulate):
    scale = 1.0 / (len(batches) * batches[0][0].size(0) * dist.get_world_size())
    for i, (ids, targets) in enumerate(batches):
        model.set_requires_gradient_sync(not accumulate or i + 1 == len(batches))
        logits = model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        (loss * (scale / ids.size(1))).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def main():
    args = arguments()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, fused=True)
    torch.manual_seed(100 + rank)
    shape = (args.texts, args.length)
    batches = [(torch.randint(args.vocab, shape), torch.randint(args.vocab, shape)) for _ in range(args.microbatches)]
    while True:
        command = torch.zeros(1, dtype=torch.long)
        if rank == 0:
            word = sys.stdin.readline().strip() or "quit"
            command[0] = COMMANDS.index(word)
        dist.broadcast(command, 0)
        if command.item() == 0:
            break
        wall, processor = time.perf_counter(), time.process_time()
        step(model, optimizer, batches, accumulate=command.item() == 2)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        dist.barrier()
        if rank == 0:
            peak = peak_host_memory_mib()
            print(f"{wall:.6f} {processor:.6f} {peak:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
