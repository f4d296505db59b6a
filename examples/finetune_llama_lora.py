"""LoRA (PEFT) on a Llama, with differential privacy, sharded over ranks by FSDP2. The model stays its owner's.

    torchrun --nproc_per_node 2 examples/finetune_llama_lora.py --texts notes.txt --output run

Only adapters are trained, so per-example gradients are small and any length is cheap. `wrap_model=False` returns a
handle beside the model: the model is used as before, and `cleanup()` gives it back as it was. Each line of the file is one
example. Without --model a small Llama with random weights is trained on bytes, to see how things go together. Ranks train on
GPUs if there is one for each (--device).
"""

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from ranks import meet
from safetensors.torch import save_file
from texts import command_line, lines, padded
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from ghostshard import FSDP2Wrapper, PrivacyEngine
from ghostshard.accountants import default_delta

END_OF_TEXT = 256  # after the 256 bytes


def small_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=257, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=END_OF_TEXT, eos_token_id=END_OF_TEXT,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def encoded(texts: list[str], model: str | None, max_length: int) -> list[list[int]]:
    if model is None:
        return [[*text.encode()[: max_length - 1], END_OF_TEXT] for text in texts]
    tokenizer = AutoTokenizer.from_pretrained(model)
    return [tokenizer(text + tokenizer.eos_token)["input_ids"][:max_length] for text in texts]


def main() -> None:
    parser = command_line(__doc__, model="Llama-like model", lr=2e-3, max_length=128)
    parser.add_argument("--rank", type=int, default=8, help="rank of the adapters")
    args = parser.parse_args()
    device, mesh = meet(parser, args.device)
    first = dist.get_rank() == 0
    data = encoded(lines(args.texts), args.model, args.max_length)
    delta = default_delta(len(data))
    if first:
        args.output.mkdir(parents=True)

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(args.model) if args.model else small_llama()
    adapters = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.0, target_modules="all-linear")
    model = get_peft_model(base, adapters)
    model.train()
    FSDP2Wrapper(model.to(device), mesh=mesh)

    engine = PrivacyEngine(accountant="contour")
    engine.attach_ledger(args.output / "ledger.jsonl")
    hooks, optimizer, _, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.lr, weight_decay=0.0),
        data_loader=DataLoader(data, batch_size=args.batch, collate_fn=padded),
        target_epsilon=args.epsilon,
        target_delta=delta,
        epochs=args.epochs,
        max_grad_norm=args.clip_norm,
        grad_sample_mode="ghost_fsdp",
        wrap_model=False,
    )
    for epoch in range(args.epochs):
        for batch in loader:
            optimizer.zero_grad()
            model(**{name: value.to(device) for name, value in batch.items()}).loss.backward()
            optimizer.step()
        if first:
            print(f"epoch {epoch + 1}/{args.epochs}  epsilon {engine.get_epsilon(delta):.3f}", flush=True)
    hooks.cleanup()

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if first:
        adapters.save_pretrained(args.output / "adapters")
        save_file(get_peft_model_state_dict(model, weights), args.output / "adapters" / "adapter_model.safetensors")
    summary = engine.report(args.output, delta=delta, every_rank=True)
    if first:
        print(summary)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
