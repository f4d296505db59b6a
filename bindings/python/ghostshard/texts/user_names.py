"""Who wrote a text: which names are one user's, and which only look so."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable


def one_user(name: str) -> str:
    """The name in one form: Unicode spells é in two ways that nobody sees apart, and whoever is split in two has half the protection."""
    return unicodedata.normalize("NFC", name.strip())


def alike(names: Iterable[str]) -> int:
    """How many users have a name that another user's differs from in upper and lower case, kinds of spaces, compatible forms or signs that
    are not seen, alone. They may be the same person; they are not made one, as names of different people may differ so too."""
    found = defaultdict(set)
    for name in set(names):
        found[_seen(name)].add(name)
    return sum(len(spellings) for spellings in found.values() if len(spellings) > 1)


def _seen(name: str) -> str:
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join("".join(sign for sign in folded if unicodedata.category(sign) != "Cf").split())
