"""Fine-tunes a Hugging Face GPT-2, tied head and all, with differential privacy, sharded over ranks by FSDP2.

    torchrun --nproc_per_node 2 examples/finetune_gpt2.py --texts notes.txt --epsilon 8 --output run

One line of the file is one example: its author is protected up to (epsilon, delta). --model takes a folder or a name of
Hugging Face; without it a small model with random weights is trained, to see how things go together. The output folder
gets the model, the write-ahead ledger and the privacy report. Ranks train on GPUs where there is one for each
(--device).
"""

import argparse
import math
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import add_device_option, meet
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from ghostshard import FSDP2Wrapper, PrivacyEngine
from ghostshard.accountants import default_delta
from ghostshard.texts.vocabulary import load_vocabulary

IGNORED = -100


class Lines(Dataset):
    def __init__(self, path: Path, vocabulary, max_length: int):
        texts = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        end = [vocabulary.end_of_text_id]
        self.examples = [(end + ids + end)[:max_length] for ids in vocabulary.encode(texts)]

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, i: int) -> list[int]:
        return self.examples[i]


def padded(examples: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(map(len, examples))
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, tokens in enumerate(examples):
        ids[row, : len(tokens)] = labels[row, : len(tokens)] = torch.tensor(tokens)
    return {"input_ids": ids, "attention_mask": (labels != IGNORED).long(), "labels": labels}


def small_model(vocabulary_size: int, end_of_text: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        n_layer=4, n_embd=192, n_head=4, vocab_size=vocabulary_size, n_positions=256, bos_token_id=end_of_text,
        eos_token_id=end_of_text, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="UTF-8, one example a line")
    parser.add_argument("--output", type=Path, required=True, help="a new folder")
    parser.add_argument("--model", help="folder or name of a causal language model (default: a small one, untrained)")
    parser.add_argument("--tokenizer", default="gpt2", help="folder with a tokenizer.json, or gpt2")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, help="default: min(1e-6, n^-1.1) for n examples")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="examples a step expects, over all ranks")
    parser.add_argument("--clip-norm", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--max-length", type=int, default=100)
    add_device_option(parser)
    return parser


def main() -> None:
    parser = command_line()
    args = parser.parse_args()
    device, mesh = meet(parser, args.device)
    first = dist.get_rank() == 0
    vocabulary = load_vocabulary(args.tokenizer)
    data = Lines(args.texts, vocabulary, args.max_length)
    delta = args.delta or default_delta(len(data))
    if first:
        args.output.mkdir(parents=True)

    torch.manual_seed(0)  # the same weights on every rank; noise and sampling do not depend on it
    if args.model:
        model = AutoModelForCausalLM.from_pretrained(args.model)
    else:
        model = small_model(vocabulary.size, vocabulary.end_of_text_id)
    model.train()
    FSDP2Wrapper(model.to(device), mesh=mesh)

    engine = PrivacyEngine(accountant="contour")
    engine.attach_ledger(args.output / "ledger.jsonl")
    module, optimizer, _, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0),
        data_loader=DataLoader(data, batch_size=args.batch, collate_fn=padded),
        target_epsilon=args.epsilon,
        target_delta=delta,
        epochs=args.epochs,
        max_grad_norm=args.clip_norm,
        grad_sample_mode="ghost_fsdp",
    )
    steps = args.epochs * len(loader)
    if first:
        print(f"{len(data)} texts, {steps} steps, noise multiplier {optimizer.noise_multiplier:.4f}")
    done = 0
    for _ in range(args.epochs):
        for batch in loader:
            optimizer.zero_grad()
            module(**{name: value.to(device) for name, value in batch.items()}).loss.backward()
            optimizer.step()
            done += 1
            if first and (done % max(1, steps // 10) == 0 or done == steps):
                spent = engine.get_epsilon(delta)
                print(f"step {done}/{steps}  epsilon {math.ceil(1000 * spent) / 1000:.3f}", flush=True)

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if first:
        model.save_pretrained(args.output / "model", state_dict=weights)
        print(engine.report(args.output, delta=delta))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
