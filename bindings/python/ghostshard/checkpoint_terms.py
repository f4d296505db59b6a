"""What a checkpoint's run and the one that goes on with it must have alike, because steps would be charged as others if it differed."""

from __future__ import annotations

import json

__all__ = ["ONE_CHECKPOINT", "checkpoint_parts", "refuse_unlike"]

ONE_CHECKPOINT = "all ranks must load one and the same checkpoint, into accountants that hold the same charges"


def checkpoint_parts(text: str, held: tuple) -> dict[str, str]:
    """What ranks compare of the state that each loads, and of what its accountant holds. A plan of memory may be each rank's own."""
    state = json.loads(text)
    compared = {name: state[name] for name in ("accountant", "branches", "ledger", "step", "attempt", "terms") if name in state}
    return {"the checkpoint's step and charges": json.dumps(compared, sort_keys=True), "the accountant": repr(held)}


def refuse_unlike(state: dict, own: dict, *, mechanism: str, ledger: str | None) -> None:
    """ValueError for a checkpoint of another accountant, of steps of another kind, or of a run with a ledger if this one has none, or the
    reverse. state: what checkpoint.parse() gave. own: this run's terms, as state["terms"] has the checkpoint's."""
    mark, before = state["ledger"], state["terms"]
    if state["accountant"]["mechanism"] != mechanism:
        raise ValueError(
            f"the checkpoint is of accountant {state['accountant']['mechanism']!r}, the engine has {mechanism!r}: build it with the same one"
        )
    if before.get("largest_batch") != own.get("largest_batch"):
        raise ValueError(
            f"the checkpoint's run had the largest batch {before.get('largest_batch')} ([examples, at most in a step]), this one has "
            f"{own.get('largest_batch')}: its steps would be charged as others. Give make_private() the same max_batch_size"
        )
    if before.get("bins") != own.get("bins"):
        raise ValueError(
            f"a pass of the checkpoint's run had the number of bins {before.get('bins')} (None: no balls-in-bins sampling), one of this run "
            f"has {own.get('bins')}: what is charged would be something else. Give make_private() the same sampling, and a loader of as many "
            "batches"
        )
    _refuse_other_groups(before, own)
    if mark is not None and ledger is None:
        raise ValueError(
            f"the checkpoint's run keeps a ledger ({mark['path']}): name it with attach_ledger() before make_private(), so that it goes on"
        )
    if mark is None and ledger is not None and state["counted"]:
        raise ValueError(
            f"the checkpoint's run kept no ledger, so {ledger} would lack its {state['counted'].total()} steps: a ledger holds a run from "
            "its first step"
        )


def _refuse_other_groups(before: dict, own: dict) -> None:
    groups, here = before.get("sampling_groups"), own.get("sampling_groups")
    if groups != here:
        raise ValueError(
            f"the checkpoint's run dealt the examples to {groups} groups (None: its noise was not correlated), this one deals them to {here}: "
            "give make_private() the same noise_bands or noise_chain"
        )
    changed = [name for name in ("clip_norm", "noise_multiplier", "sampling_rate") if before.get(name) != own.get(name)]
    if here is not None and changed:
        raise ValueError(
            f"correlated noise is derived for one clip norm, noise multiplier and rate in all steps: the checkpoint's run had another {changed[0]}, "
            f"{before.get(changed[0])}, this one has {own.get(changed[0])}"
        )
