"""Modules whose children get rows that are not the examples' own: they are computed as one layer, without a word of the user's."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private import Private
from torch import nn


class Words(nn.Module):
    """A softmax over many words, the rare ones in clusters that get the rows of their own words alone."""

    def __init__(self):
        super().__init__()
        self.below, self.words = nn.Linear(6, 8), nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10], div_value=1.5)

    def forward(self, x, words):
        return self.words(self.below(x), words).output


def speech(**config):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "conv_dim": (8,), "conv_stride": (5,),
        "conv_kernel": (10,), "num_feat_extract_layers": 1, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "layerdrop": 0.0,
        "feat_extract_norm": "layer", "hidden_dropout": 0.0, "attention_dropout": 0.0, "feat_proj_dropout": 0.0, "final_dropout": 0.0, "activation_dropout": 0.0,
        "ctc_loss_reduction": "mean",
    }  # fmt: skip
    return transformers.WavLMForCTC(transformers.WavLMConfig(**sizes | config)).train()


def words():
    return Words(), (torch.randn(5, 6), torch.tensor([1, 7, 12, 19, 3])), lambda model, batch: -model(*batch)


def speech_of(**config):
    batch = torch.randn(3, 100), torch.randint(1, 12, (3, 4))
    return speech(**config), batch, lambda model, batch: model(input_values=batch[0], labels=batch[1]).loss


def text_of(kind, head, **config):
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, f"{kind}Config"):
        pytest.skip(f"this Transformers has no {kind}")
    sizes = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0}
    off = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0} if kind == "Longformer" else {"attention_dropout": 0.0, "use_cache": False}
    model = getattr(transformers, f"{kind}For{head}")(getattr(transformers, f"{kind}Config")(**sizes | off | config)).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape))  # some are made without values
    labels = torch.randint(0, 2, (4,)) if head == "SequenceClassification" else torch.randint(1, 23, (4, 8))
    return model, (torch.randint(1, 23, (4, 8)), labels), lambda model, batch: model(input_ids=batch[0], attention_mask=torch.ones_like(batch[0]), labels=batch[1]).loss


def distances(**config):
    """SEW-D's table of them, whose weight it takes whole."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "squeeze_factor": 2, "conv_dim": (8,), "conv_stride": (5,),
        "conv_kernel": (10,), "num_feat_extract_layers": 1, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False, "layerdrop": 0.0,
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "feat_proj_dropout": 0.0, "final_dropout": 0.0, "activation_dropout": 0.0, "ctc_loss_reduction": "mean",
    }  # fmt: skip
    batch = torch.randn(3, 200), torch.randint(1, 12, (3, 4))
    return transformers.SEWDForCTC(transformers.SEWDConfig(**sizes | config)).train(), batch, lambda model, batch: model(input_values=batch[0], labels=batch[1]).loss


class Begun(nn.Module):
    """Words behind a token of its own, so that its embedding is computed with it, and a head that is tied to that."""

    def __init__(self):
        super().__init__()
        self.begin, self.words = Begin(), nn.Linear(8, 20)
        self.words.weight = self.begin.words.weight

    def forward(self, words):
        return self.words(torch.tanh(self.begin(words)))


class Begin(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.words = nn.Parameter(torch.randn(1, 1, 8)), nn.Embedding(20, 8)

    def forward(self, words):
        return torch.cat([self.first.expand(len(words), 1, 8), self.words(words)], 1)


def tied():
    words = torch.randint(0, 20, (4, 5))
    return Begun(), (words,), lambda model, batch: nn.functional.cross_entropy(model(batch[0])[:, :-1].transpose(1, 2), batch[0], reduction="none").mean(1)


def longformer():
    """Rows that its attention turns for its own children, of as many places as there are examples, too."""
    return text_of("Longformer", "SequenceClassification", attention_window=4, max_position_embeddings=16, type_vocab_size=2)


def jetmoe():
    """Its attention takes a part of its experts by other ways than their forward."""
    sizes = {"num_key_value_heads": 2, "kv_channels": 8, "num_local_experts": 3, "num_experts_per_tok": 1, "max_position_embeddings": 16}
    return text_of("JetMoe", "CausalLM", **sizes)


CASES = {"words": words, "speech": speech_of, "speech_with_norms_before": lambda: speech_of(do_stable_layer_norm=True), "longformer": longformer, "jetmoe": jetmoe, "tied": tied, "distances": lambda: distances(mask_time_prob=0.0), "distances_in_one_layer": distances}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_the_sum_is_exact(build):
    torch.manual_seed(2)
    model, batch, loss = build()
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, [batch], 0.5)
    private = Private(model, 0.5)
    if build in (words, tied):
        private.backward(loss, batch)
    else:
        loss(private.module, batch).backward()
    assert oracle.worst_difference(private.released(), expected) < SUM_TOLERANCE
