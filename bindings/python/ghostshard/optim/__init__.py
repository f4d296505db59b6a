"""Optimizers for plain parameters and for FSDP2's: they know the noise's variance, keep moments in 8 bits, or move whole matrices.

What they compute, they compute from gradients and public numbers: under a PrivacyEngine that is post-processing of what was
released. The C++ programs have the same rules (dp/optimizers, fsdp/optimizer.h).
"""

from .adamw import AdamW, AdamW8bit
from .matrices import matrix_groups
from .muon import Muon
from .shampoo import SOAP, Shampoo

__all__ = ["SOAP", "AdamW", "AdamW8bit", "Muon", "Shampoo", "matrix_groups"]
