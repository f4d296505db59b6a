"""Is the batch that reaches the model the one that the private loader drew? drawn.py has the idea."""

from . import operations as operations
from . import read_in_torch as read_in_torch
from .collectives import watch_collectives
from .constants import READS, Read, ReadInt, bare
from .decisions import DECISIONS, outcomes_of
from .drawn import Drawn, of_the_same, plain, vouch_for
from .findings import Finding, functions_under, may_train, of_no_forward, under
from .no_provenance import NoProvenance
from .orders import as_units
from .penalties import IN_ITS_PLACE
from .proof import Provenance
from .strangers import guard
from .summaries import Summaries

__all__ = ["DECISIONS", "IN_ITS_PLACE", "READS", "Drawn", "Finding", "NoProvenance", "Provenance", "Read", "ReadInt", "Summaries", "as_units", "bare", "functions_under", "guard", "may_train", "of_no_forward", "of_the_same", "outcomes_of", "plain", "under", "vouch_for", "watch_collectives"]
