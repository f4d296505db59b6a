"""Fine-tunes a Hugging Face GPT-2 (tied head, all parameters) with differential privacy, sharded over ranks by FSDP2.

    torchrun --nproc_per_node 2 examples/finetune_gpt2.py --texts notes.txt --epsilon 8 --output run

One line of the file is one example: its author is protected up to (epsilon, delta). --model takes a folder or a name of
Hugging Face; without it a small model with random weights is trained, to see how things go together. The output folder
gets the model, the write-ahead ledger and the privacy report. Ranks train on GPUs if there is one for each (--device).
"""

import math

import torch
import torch.distributed as dist
from ranks import meet
from texts import command_line, lines, padded
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from ghostshard import FSDP2Wrapper, PrivacyEngine
from ghostshard.accountants import default_delta
from ghostshard.texts.vocabulary import load_vocabulary


def small_model(vocabulary_size: int, end_of_text: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        n_layer=4, n_embd=192, n_head=4, vocab_size=vocabulary_size, n_positions=256, bos_token_id=end_of_text,
        eos_token_id=end_of_text, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def main() -> None:
    parser = command_line(__doc__, model="causal language model", lr=1e-3, max_length=100)
    parser.add_argument("--tokenizer", default="gpt2", help="folder with a tokenizer.json, or gpt2")
    parser.add_argument("--delta", type=float, help="default: min(1e-6, n^-1.1) for n examples")
    args = parser.parse_args()
    device, mesh = meet(parser, args.device)
    first = dist.get_rank() == 0
    vocabulary = load_vocabulary(args.tokenizer)
    end = [vocabulary.end_of_text_id]
    data = [(end + ids + end)[: args.max_length] for ids in vocabulary.encode(lines(args.texts))]
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
    summary = engine.report(args.output, delta=delta, every_rank=True)
    if first:
        print(summary)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
