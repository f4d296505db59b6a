"""GhostShard: differentially private training at almost the speed of non-private fully sharded training."""

TYPE_CHECKING = False  # not from typing: until command.py is reached, Ctrl-C would end in a traceback, so nothing is loaded here

__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from .fsdp import FSDP2Wrapper as FSDP2Wrapper
    from .ghost.packing import next_token_labels as next_token_labels
    from .ghost.packing import pack_texts as pack_texts
    from .ghost.provenance import vouch_for as vouch_for
    from .ghost.rules import per_example as per_example
    from .ghost.rules import register_rule as register_rule
    from .ghost.weights import digest_of_weights as digest_of_weights
    from .privacy_engine import PrivacyEngine as PrivacyEngine

# Loaded when asked for: the commands of this package need neither Opacus nor the compiled engine.
_PLACES = {
    "PrivacyEngine": "privacy_engine",
    "FSDP2Wrapper": "fsdp",
    "digest_of_weights": "ghost.weights",
    "next_token_labels": "ghost.packing",
    "pack_texts": "ghost.packing",
    "per_example": "ghost.rules",
    "register_rule": "ghost.rules",
    "vouch_for": "ghost.provenance",
}


def __getattr__(name: str) -> "Any":
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *_PLACES]
