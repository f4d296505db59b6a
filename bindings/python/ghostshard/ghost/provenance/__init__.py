"""Is the batch that reaches the model the one that the private loader drew? drawn.py has the idea."""

from . import operations as operations

from .constants import READS, Read, ReadInt
from .drawn import Drawn, of_the_same, plain, vouch_for
from .findings import Finding, may_train
from .no_provenance import NoProvenance
from .proof import Provenance
from .summaries import Summaries

__all__ = ["READS", "Drawn", "Finding", "NoProvenance", "Provenance", "Read", "ReadInt", "Summaries", "may_train", "of_the_same", "plain", "vouch_for"]
