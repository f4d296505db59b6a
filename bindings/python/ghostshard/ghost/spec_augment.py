"""SpecAugment of Transformers' speech models: masks by coins of NumPy, written into the batch itself or into what a layer computes."""

from __future__ import annotations

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


__all__ = ["masking", "refuse_masks"]
