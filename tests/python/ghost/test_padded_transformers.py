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


def bart():
    torch.manual_seed(1)
    config = transformers.BartConfig(
        vocab_size=V, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8,
        max_position_embeddings=32, pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=3, forced_eos_token_id=None,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


def llama():
    """Its table has zeros for padding, and what sees them alone gives logits of zeros."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=V, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, intermediate_size=8, max_position_embeddings=16, pad_token_id=0
    )
    return transformers.LlamaForCausalLM(config)


def but_the_first(collate):
    def collated(examples):
        batch = collate(examples)
        first = batch["attention_mask"].cumsum(1) == 1
        return batch | {"labels": batch["labels"].masked_fill(first, -100)}

    return collated


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


def in_pairs(examples, ignored=True):
    """Sources and targets have lengths of their own."""
    batch = with_labels(right, True)(examples)
    targets = pad_sequence([x.flip(0)[: 2 + int(x.sum()) % 5] for x, _ in examples], batch_first=True)
    return batch | {"labels": targets.masked_fill(targets == 0, -100) if ignored else targets}


def in_counted_pairs(examples):
    return in_pairs(examples, ignored=False)


def twice(examples):
    """Targets are twice as long as sources."""
    batch = with_labels(right, True)(examples)
    return batch | {"labels": pad_sequence([x.repeat(2) for x, _ in examples], batch_first=True)}


TRANSFORMERS_REFUSED = {
    "gpt2, padding is a target": (gpt2, with_labels(right, False)), "gpt2, on the left without positions": (gpt2, with_labels(left, True)),
    "llama, on the left, the first token counts": (llama, with_labels(left, True)),
    "t5, padding is a target": (t5, with_labels(right, False)), "t5 in pairs, padding is a target": (t5, in_counted_pairs), "t5, twice": (t5, twice),
    "bart, padding is a target": (bart, with_labels(right, False)), "bart in pairs, padding is a target": (bart, in_counted_pairs), "bart, twice": (bart, twice),
    "bert without a mask": (bert, with_classes(masked=False)),
}  # fmt: skip
TRANSFORMERS_TAKEN = {
    "gpt2": (gpt2, with_labels(right, True)), "bert": (bert, with_classes(masked=True)), "t5": (t5, with_labels(right, True)), "t5 in pairs": (t5, in_pairs),
    "bart": (bart, with_labels(right, True)), "bart in pairs": (bart, in_pairs), "llama": (llama, with_labels(right, True)),
    "llama on the left, but for the first token": (llama, but_the_first(with_labels(left, True))),
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


def test_a_loss_that_does_not_go_backward_may_follow_padding(monkeypatch):
    """Labels of 0 at padding, for a loss that the loop leaves aside."""
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)

    def of_logits(module, criterion, batch):
        return criterion(module(**batch).logits[:, :-1].transpose(1, 2), batch["labels"][:, 1:])

    steps(of_logits, run_of(gpt2(), with_labels(right, False), torch.nn.CrossEntropyLoss(ignore_index=0)), 4)


def test_noise_that_goes_with_the_padded_length_is_refused():
    from transformers.integrations.neftune import neftune_post_forward_hook

    model = gpt2()
    embeddings = model.get_input_embeddings()
    run = run_of(model, with_labels(right, True))
    embeddings.neftune_noise_alpha = 5.0
    embeddings.register_forward_hook(neftune_post_forward_hook)
    with pytest.raises(ValueError, match="NEFTune adds noise"):
        steps(of_the_model, run)
