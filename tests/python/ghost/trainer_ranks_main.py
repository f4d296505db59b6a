"""Two ranks under Transformers' Trainer: writes what each said, and how far the released sums are from a loop over the examples. See test_trainer.py.

    torchrun --nproc_per_node 2 trainer_ranks_main.py results.json
"""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import transformers
from leaving import report_and_leave
from together_main import said_by_each
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine

N, BATCH, CLIP = 16, 4, 100.0  # nothing is clipped
TEXTS = [torch.randint(0, 20, (6,), generator=torch.Generator().manual_seed(seed)) for seed in range(N)]
WITH_LOSSES_BY = ("the model", "the criterion")


class PrivateTrainer(transformers.Trainer):
    """As docs/python.md shows it."""

    def __init__(self, *args, private_loader, **kwargs):
        super().__init__(*args, **kwargs)
        self.private_loader = private_loader

    def get_train_dataloader(self):
        return self.private_loader


def gpt2() -> torch.nn.Module:
    torch.manual_seed(3)
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=20, n_positions=8, bos_token_id=0, eos_token_id=0, **dropout))


def trained(formed_by: str, **arguments) -> float:
    """The largest relative error of the released sums' norms."""
    model = DistributedDataParallel(gpt2())
    engine = PrivacyEngine(accountant="rdp")
    _, optimizer, criterion, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader([{"input_ids": text, "labels": text} for text in TEXTS], batch_size=BATCH),
        noise_multiplier=1e-9, max_grad_norm=CLIP, grad_sample_mode="ghost", wrap_model=False,
    )  # fmt: skip
    drawn: list[int] = []
    sampler = loader.batch_sampler
    draw = sampler.draw_epoch

    def noted():
        epoch = draw()
        batches = list(epoch.batches())
        drawn[:] = [batch.tolist() for batch in batches]
        epoch.batches = lambda: iter(batches)
        return epoch

    sampler.draw_epoch = noted
    errors = []

    def compare(*_) -> None:
        every: list = [None, None]
        dist.all_gather_object(every, drawn[len(errors)])
        oracle = gpt2()
        oracle.load_state_dict(model.module.state_dict())
        for place in sum(every, []):
            oracle(input_ids=TEXTS[place][None], labels=TEXTS[place][None]).loss.backward()
        expected = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in oracle.parameters()])
        released = torch.cat([p.grad.flatten() * BATCH for p in model.parameters()])
        errors.append(float((released - expected).norm() / expected.norm()) if expected.any() else 0.0)

    optimizer.register_step_pre_hook(compare)
    options = {}
    if formed_by == "the criterion":
        options["compute_loss_func"] = lambda outputs, labels, num_items_in_batch=None: criterion(outputs.logits[:, :-1].transpose(1, 2), labels[:, 1:])
    trainer = PrivateTrainer(
        model=model, optimizers=(optimizer, None), private_loader=loader, **options,
        args=transformers.TrainingArguments(
            output_dir=tempfile.mkdtemp(), num_train_epochs=1, per_device_train_batch_size=BATCH, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
            remove_unused_columns=False, **arguments,
        ),
    )  # fmt: skip
    trainer.train()
    assert len(errors) == N // BATCH
    return max(errors)


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    found: dict = {}
    for formed_by in WITH_LOSSES_BY:
        found[formed_by] = said_by_each(lambda: trained(formed_by))
        found[f"{formed_by}, error"] = trained(formed_by, average_tokens_across_devices=False)
    report_and_leave(sys.argv[1], found)


if __name__ == "__main__":
    main()
