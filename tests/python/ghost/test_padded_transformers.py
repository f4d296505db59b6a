"""How far a batch is padded follows from its longest example: Transformers models that it moves are refused, those that mask are not."""

import pytest
import torch
import transformers
from padded_texts import REFUSED, V, left, right, run_of, steps
from torch.nn.utils.rnn import pad_sequence


def gpt2():
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=V, n_positions=16, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.1, pad_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def bert():
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=V, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, max_position_embeddings=16, num_labels=3, initializer_range=0.5
    )
    return transformers.BertForSequenceClassification(config)


def t5():
    torch.manual_seed(1)
    config = transformers.T5Config(vocab_size=V, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


def with_labels(collate, ignored):
    def collated(examples):
        batch = collate(examples)
        labels = batch["x"].masked_fill(~batch["mask"], -100) if ignored else batch["x"].clone()
        return {"input_ids": batch["x"], "attention_mask": batch["mask"].long(), "labels": labels}

    return collated


def with_classes(*, masked):
    def collated(examples):
        batch = right(examples)
        mask = {"attention_mask": batch["mask"].long()} if masked else {}
        return {"input_ids": batch["x"], "labels": batch["y"], **mask}

    return collated


def in_pairs(examples):
    """Sources and targets have lengths of their own."""
    batch = with_labels(right, True)(examples)
    targets = pad_sequence([x.flip(0)[: 2 + int(x.sum()) % 5] for x, _ in examples], batch_first=True)
    return batch | {"labels": targets.masked_fill(targets == 0, -100)}


TRANSFORMERS_REFUSED = {
    "gpt2, padding is a target": (gpt2, with_labels(right, False)), "gpt2, on the left without positions": (gpt2, with_labels(left, True)),
    "bert without a mask": (bert, with_classes(masked=False)),
}  # fmt: skip
TRANSFORMERS_TAKEN = {
    "gpt2": (gpt2, with_labels(right, True)), "bert": (bert, with_classes(masked=True)), "t5": (t5, with_labels(right, True)), "t5 in pairs": (t5, in_pairs),
}  # fmt: skip


def of_the_model(module, criterion, batch):
    return module(**batch).loss


@pytest.mark.parametrize("model, collate", TRANSFORMERS_REFUSED.values(), ids=TRANSFORMERS_REFUSED)
def test_a_transformer_that_padding_moves_is_refused(model, collate):
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(of_the_model, run_of(model(), collate))


@pytest.mark.parametrize("model, collate", TRANSFORMERS_TAKEN.values(), ids=TRANSFORMERS_TAKEN)
def test_a_transformer_that_masks_is_taken(model, collate, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    steps(of_the_model, run_of(model(), collate), 4)


@pytest.mark.parametrize("model", [bert, gpt2], ids=lambda each: each.__name__)
def test_outputs_that_nobody_takes_may_have_gradients(model, monkeypatch):
    """Attention at padded places goes into what is masked later."""
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    made = model()
    made.config._attn_implementation, made.config.output_attentions, made.config.output_hidden_states = "eager", True, True
    steps(of_the_model, run_of(made, with_classes(masked=True) if model is bert else with_labels(right, True)), 4)
