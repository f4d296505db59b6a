"""Is the batch that reaches the model the one that the private loader drew? drawn.py has the idea."""

from .drawn import Drawn, plain, vouch_for
from .proof import Finding, NoProvenance, Provenance

__all__ = ["Drawn", "Finding", "NoProvenance", "Provenance", "plain", "vouch_for"]
