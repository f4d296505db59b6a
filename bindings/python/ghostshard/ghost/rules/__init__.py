"""Layers whose trainable parameters are recorded instead of getting a gradient."""

from . import convolutions  # noqa: F401 (registers itself)
from .layers import Layer, affine, per_example, register_rule, rule_for

__all__ = ["Layer", "affine", "per_example", "register_rule", "rule_for"]
