"""Losses that Transformers' models form of their labels, from the private loader on: of decoders whose inputs follow from the labels, and of masks that a matcher
gives to queries."""

import copy

import pytest
import torch
from launch import SUM_TOLERANCE
from private_run import prescribe
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine

transformers = pytest.importorskip("transformers")
pytest.importorskip("scipy")

CLIP, SIZES = 0.1, (3, 2)


def texts_to_texts():
    """In the second batch, too, when its loss is known to be formed of its logits."""
    if not hasattr(transformers, "T5GemmaConfig"):
        pytest.skip("this Transformers has no T5Gemma")
    sizes = {
        "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "attention_dropout": 0.0,
    }  # fmt: skip
    config = transformers.T5GemmaConfig(encoder=sizes, decoder=sizes | {"use_cache": False}, dropout_rate=0.0, classifier_dropout_rate=0.0, attention_dropout=0.0, vocab_size=23)
    examples = [{"input_ids": torch.randint(3, 23, (7,)), "labels": torch.randint(3, 23, (5,))} for _ in range(3)]
    return transformers.T5GemmaForConditionalGeneration(config), examples, ()


def masks():
    """A table of queries that is read whole, a leaf that the decoder begins with, and a matcher that gives whole numbers for each example."""
    swin = {"model_type": "swin", "image_size": 32, "embed_dim": 8, "depths": [1] * 4, "num_heads": [2] * 4, "window_size": 2, "patch_size": 2, "drop_path_rate": 0.0}
    decoder = {"model_type": "detr", "d_model": 16, "decoder_layers": 1, "encoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "num_queries": 5}
    off = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    stages = {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
    config = transformers.MaskFormerConfig(backbone_config=swin | stages, decoder_config=decoder | off, fpn_feature_size=32, mask_feature_size=32, num_labels=3)
    examples = [{"pixel_values": torch.randn(3, 32, 32), "mask_labels": torch.randint(0, 2, (n, 32, 32)).float(), "class_labels": torch.randint(0, 3, (n,))} for n in (2, 1, 3)]
    return transformers.MaskFormerForInstanceSegmentation(config), examples, ("mask_labels", "class_labels")


def expected_of(model, examples, collate):
    """The clipped gradients of each, in float64."""
    twin, found = copy.deepcopy(model).double(), []
    double = lambda value: value.double() if value.is_floating_point() else value
    for example in examples:
        twin.zero_grad()
        twin(**collate([{name: double(value) for name, value in example.items()}])).loss.backward()
        gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in twin.named_parameters()}
        norm = float(torch.sqrt(sum(value.square().sum() for value in gradients.values())))
        found.append({name: min(1.0, CLIP / norm) * value for name, value in gradients.items()})
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", [texts_to_texts, masks])
def test_each_batch_releases_the_sum_over_its_examples(build):
    torch.manual_seed(3)
    model, examples, listed = build()
    model.train()

    def collate(drawn):
        return {name: [each[name] for each in drawn] if name in listed else torch.stack([each[name] for each in drawn]) for name in drawn[0]}

    expected = expected_of(model, examples, collate)
    private, optimizer, _, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), data_loader=DataLoader(examples, batch_size=len(examples), collate_fn=collate),
        noise_multiplier=0.0, max_grad_norm=CLIP, grad_sample_mode="ghost",
    )  # fmt: skip
    prescribe(loader, SIZES)
    for batch, size in zip(loader, SIZES, strict=True):
        optimizer.zero_grad()
        private(**batch).loss.backward()
        optimizer.step()
        sums = {name: sum(each[name] for each in expected[:size]) for name in expected[0]}
        largest = max(float(value.abs().max()) for value in sums.values())
        assert max(float((p.grad * len(examples) - sums[name]).abs().max()) for name, p in model.named_parameters()) < SUM_TOLERANCE * largest
