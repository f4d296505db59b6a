"""Is the batch that reaches the model the one that the private loader drew? drawn.py has the idea."""

from . import operations as operations

from .constants import Read, ReadInt, summary_of_reads
from .drawn import Drawn, of_the_same, plain, vouch_for
from .findings import Finding, may_train
from .no_provenance import NoProvenance
from .proof import Provenance

__all__ = ["Drawn", "Finding", "NoProvenance", "Provenance", "Read", "ReadInt", "summary_of_reads", "may_train", "of_the_same", "plain", "vouch_for"]
