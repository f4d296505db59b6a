"""Is the batch that reaches the model the one that the private loader drew? drawn.py has the idea."""

from . import operations as operations, read_in_torch as read_in_torch

from .constants import READS, Read, ReadInt, bare
from .drawn import Drawn, of_the_same, plain, vouch_for
from .findings import Finding, functions_under, may_train
from .no_provenance import NoProvenance
from .proof import Provenance
from .strangers import guard
from .summaries import Summaries

__all__ = ["READS", "Drawn", "Finding", "NoProvenance", "Provenance", "Read", "ReadInt", "Summaries", "bare", "functions_under", "guard", "may_train", "of_the_same", "plain", "vouch_for"]
