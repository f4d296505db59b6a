"""SpecAugment of Transformers' speech models: masks by coins of NumPy, written into the batch itself or into what a layer computes. And NEFTune's noise."""

from __future__ import annotations

from typing import Any

from torch import nn


def masking(model: nn.Module) -> list[nn.Module]:
    """Those of its modules that can. (To look for them before each forward would take some per cent of a small model's.)"""
    return [module for module in model.modules() if hasattr(module, "_mask_input_features")]


def refuse_masks(modules: list[nn.Module]) -> None:
    """ValueError before a forward that would write them into its argument (Whisper)."""
    for module in modules:
        config = getattr(module, "config", None)
        if not module.training or not getattr(config, "apply_spec_augment", False):
            continue
        if getattr(config, "mask_time_prob", 0) > 0 or getattr(config, "mask_feature_prob", 0) > 0:
            raise ValueError(
                f"{type(module).__name__} masks its inputs by coins of NumPy and writes the masks into the batch itself, which is not followed (SpecAugment). Set "
                "model.config.apply_spec_augment = False, and mask each example in the data set or its collate_fn"
            )


def refuse_noise(transformer: Any) -> None:
    """ValueError for NEFTune's noise on embeddings, whose size goes with the padded length. It is off in forwards without dropout, which are compared, so it is
    known by the number that its hook reads."""
    try:
        embeddings = transformer.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return
    if getattr(embeddings, "neftune_noise_alpha", None) and embeddings.training:
        raise ValueError(
            "NEFTune adds noise to the embeddings that goes with how far the batch is padded, which follows from its longest example: one would move all others. "
            "Leave neftune_noise_alpha out of the training's arguments"
        )


__all__ = ["masking", "refuse_masks", "refuse_noise"]
