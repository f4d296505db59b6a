"""Transformers' speech models, whose own parameter (a masked place) makes them one layer with all their children."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private import Private

transformers = pytest.importorskip("transformers")

SOUNDS = torch.randn(4, 400, generator=torch.Generator().manual_seed(1))
CLASSES = torch.tensor([0, 2, 1, 0])


def wav2vec2(**config):
    config = transformers.Wav2Vec2Config(
        conv_dim=[8, 8], conv_kernel=[10, 8], conv_stride=[5, 4], num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        classifier_proj_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, vocab_size=12, num_labels=3,
        apply_spec_augment=False, layerdrop=0.0, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0,
        **config,
    )  # fmt: skip
    return transformers.Wav2Vec2ForSequenceClassification(config).train()


@pytest.mark.parametrize("encoder", ["frozen", "training"])
@pytest.mark.parametrize("before", ["new", "it was evaluated before"])
def test_a_model_that_is_taken_whole_gives_its_hidden_states(before, encoder):
    """Hooks that Transformers sets up at a first forward are not those of the layer that is computed example by example. And what the encoder makes a
    leaf of its own needs no gradient, as the sounds need none."""
    torch.manual_seed(3)
    model = wav2vec2()
    if encoder == "frozen":
        model.freeze_feature_encoder()
    loss = lambda model, batch: model(input_values=batch[0], labels=batch[1]).loss
    batches = [(SOUNDS, CLASSES), (SOUNDS[1:], CLASSES[1:])]
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, batches, 0.5)
    if before != "new":
        with torch.no_grad():
            model(input_values=SOUNDS)
    private = Private(model, 0.5)
    for sounds, classes in batches:
        private.module(input_values=sounds, labels=classes).loss.backward()
    assert oracle.worst_difference(private.released(), expected) < 2 * SUM_TOLERANCE
    with torch.no_grad():
        assert len(model.wav2vec2(SOUNDS, output_hidden_states=True).hidden_states) == 2


def test_a_sum_over_examples_names_the_setting_that_makes_it():
    model = transformers.Wav2Vec2ForCTC(wav2vec2().config)
    model.config.ctc_loss_reduction = "sum"
    given = {"input_values": SOUNDS, "labels": torch.randint(1, 12, (4, 3))}
    with pytest.raises(ValueError, match='ctc_loss_reduction is "sum": set that to "mean"'):
        Private(model.train(), 0.5).module(**given).loss.backward()
    model = transformers.Wav2Vec2ForCTC(wav2vec2().config)
    model.config.ctc_loss_reduction = "mean"
    Private(model.train(), 0.5).module(**given).loss.backward()
