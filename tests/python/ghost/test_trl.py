"""TRL's SFTTrainer with the private loader, as docs/python.md shows it."""

import re

import pytest
import torch
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine

transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")
pytest.importorskip("accelerate")
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

N, BATCH = 40, 8


def documented_trainer(repository):
    """The class as docs/python.md shows it."""
    text = (repository / "docs" / "python.md").read_text(encoding="utf-8")
    source = re.search(r"```python\n(class PrivateSFTTrainer.*?)\n\n\S", text, re.S)
    assert source is not None
    found: dict = {"transformers": transformers, "trl": trl}
    exec(source.group(1), found)
    return found["PrivateSFTTrainer"]


@pytest.fixture(scope="module")
def vocabulary():
    words = {**{f"w{i}": i for i in range(40)}, "[PAD]": 40, "[EOS]": 41, "[UNK]": 42}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", eos_token="[EOS]", unk_token="[UNK]")


@pytest.fixture
def run(tmp_path, vocabulary):
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=43, **sizes))
    texts = Dataset.from_list([{"text": " ".join(f"w{(7 * i + j) % 40}" for j in range(4 + i % 6))} for i in range(N)])
    args = trl.SFTConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], num_train_epochs=2, per_device_train_batch_size=BATCH, save_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    prepared = trl.SFTTrainer(model=model, args=args, train_dataset=texts, processing_class=vocabulary)
    engine = PrivacyEngine(accountant="rdp")
    _, optimizer, _, loader = engine.make_private(
        module=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), noise_multiplier=1.0, max_grad_norm=1.0, wrap_model=False,
        data_loader=DataLoader(prepared.train_dataset, batch_size=BATCH, collate_fn=prepared.data_collator), grad_sample_mode="ghost",
    )  # fmt: skip
    return engine, {"model": model, "args": args, "train_dataset": texts, "processing_class": vocabulary, "optimizers": (optimizer, None)}, loader


def test_the_documented_trainer_trains_on_every_draw(run, repository):
    engine, given, loader = run
    before = [p.detach().clone() for p in given["model"].parameters()]
    documented_trainer(repository)(private_loader=loader, **given).train()
    assert engine.accountant.history == [(1.0, BATCH / N, 2 * N // BATCH)]
    assert any(not torch.equal(p, q) for p, q in zip(given["model"].parameters(), before))


def test_a_loss_past_the_head_says_what_to_do(run):
    engine, given, loader = run

    class Own(trl.SFTTrainer):
        def get_train_dataloader(self):
            return loader

    with pytest.raises(ValueError, match="LlamaForCausalLM gives no logits.*compute_loss be that of transformers.Trainer"):
        Own(**given).train()
    assert engine.accountant.history == []
