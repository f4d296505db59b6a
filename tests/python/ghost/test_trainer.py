"""Hugging Face's Trainer: the plain one makes a loader of its own and is refused; the one of docs/python.md is right."""

import re

import pytest
import torch
from launch import results_of_ranks
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

N, BATCH = 40, 8


def documented_trainer(repository):
    """The class as docs/python.md shows it."""
    text = (repository / "docs" / "python.md").read_text(encoding="utf-8")
    source = re.search(r"```python\n(class PrivateTrainer.*?)\nPrivateTrainer\(", text, re.S)
    assert source is not None
    found: dict = {"transformers": transformers}
    exec(source.group(1), found)
    return found["PrivateTrainer"]


def parts(**options):
    torch.manual_seed(3)
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 50, "n_positions": 16}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropout, bos_token_id=0, eos_token_id=0))
    texts = [{"input_ids": torch.randint(0, 50, (6,))} for _ in range(N)]
    for text in texts:
        text["labels"] = text["input_ids"].clone()
    engine = PrivacyEngine(accountant="rdp")
    hooks, optimizer, parts.criterion, loader = engine.make_private(
        module=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), data_loader=DataLoader(texts, batch_size=BATCH),
        noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost", wrap_model=False, **options,
    )  # fmt: skip
    return engine, model, optimizer, loader, texts


def arguments(folder, **options):
    return transformers.TrainingArguments(
        output_dir=str(folder), num_train_epochs=2, per_device_train_batch_size=BATCH, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, remove_unused_columns=False, **options,
    )  # fmt: skip


def test_the_plain_trainer_is_refused(tmp_path):
    engine, model, optimizer, _, texts = parts()
    before = [p.detach().clone() for p in model.parameters()]
    trainer = transformers.Trainer(model=model, args=arguments(tmp_path), train_dataset=texts, optimizers=(optimizer, None))
    with pytest.raises(RuntimeError, match="no batch of the private loader.*Trainer makes a loader of its own"):
        trainer.train()
    assert engine.accountant.history == []
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before))


@pytest.mark.parametrize("pieces", [1, 2])
def test_the_documented_trainer_trains_on_every_draw(pieces, tmp_path, repository):
    engine, model, optimizer, loader, _ = parts(accumulation_steps=pieces)
    before = [p.detach().clone() for p in model.parameters()]
    documented_trainer(repository)(
        model=model, args=arguments(tmp_path, gradient_accumulation_steps=pieces), optimizers=(optimizer, None),
        private_loader=loader,
    ).train()  # fmt: skip
    assert engine.accountant.history == [(1.0, 0.2, 10)]
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before))


def test_a_loss_of_ones_own_is_the_private_criterions(tmp_path, repository):
    """The Trainer hands the number of all labels to the model then, too; label_smoothing_factor is this criterion's."""
    engine, model, optimizer, loader, _ = parts(criterion=torch.nn.CrossEntropyLoss(label_smoothing=0.1))
    before = [p.detach().clone() for p in model.parameters()]

    def loss(outputs, labels, num_items_in_batch=None):
        return parts.criterion(outputs.logits[:, :-1].transpose(1, 2), labels[:, 1:])

    documented_trainer(repository)(
        model=model, args=arguments(tmp_path), optimizers=(optimizer, None), private_loader=loader, compute_loss_func=loss,
    ).train()  # fmt: skip
    assert engine.accountant.history == [(1.0, 0.2, 10)]
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before))


def test_a_number_of_all_labels_that_a_model_names_is_followed():
    engine, model, optimizer, loader, _ = parts()

    class Divided(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.GPT2LMHeadModel(model.config)

        def forward(self, input_ids, num_items_in_batch=None):
            return self.model(input_ids=input_ids).logits / num_items_in_batch

    divided = Divided()
    module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=divided, optimizer=torch.optim.SGD(divided.parameters(), lr=0.1), data_loader=DataLoader(loader.dataset, batch_size=BATCH),
        noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost",
    )  # fmt: skip
    batch = next(iter(loader))
    logits = module(input_ids=batch["input_ids"], num_items_in_batch=batch["labels"].ne(-100).sum())
    with pytest.raises(ValueError, match="num_items_in_batch is not known to be of the batch.*sum joined its examples"):
        criterion(logits.transpose(1, 2), batch["labels"]).backward()


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    return results_of_ranks("trainer_ranks_main.py", 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("formed_by", ["the model", "the criterion"])
def test_losses_times_the_number_of_ranks_are_refused(formed_by, on_two_ranks):
    assert all("each example's loss is 2 times what model or criterion formed" in said and "average_tokens_across_devices=False" in said for said in on_two_ranks[formed_by])
    assert on_two_ranks[f"{formed_by}, error"] < 1e-4
