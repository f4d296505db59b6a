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


CASES = {"words": words, "speech": speech_of, "speech_with_norms_before": lambda: speech_of(do_stable_layer_norm=True)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_the_sum_is_exact(build):
    torch.manual_seed(2)
    model, batch, loss = build()
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, [batch], 0.5)
    private = Private(model, 0.5)
    if build is words:
        private.backward(loss, batch)
    else:
        loss(private.module, batch).backward()
    assert oracle.worst_difference(private.released(), expected) < SUM_TOLERANCE
