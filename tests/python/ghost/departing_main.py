"""Two ranks, of which rank 0 leaves: started by torchrun, each writes what it says and when. See test_departing_ranks.py.

    torchrun --nproc_per_node 2 departing_main.py folder how sharded|replicas
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from opacus.utils.batch_memory_manager import BatchMemoryManager
from together_main import Run

from ghostshard.ghost.checks import presence

FOLDER, HOW, KIND = Path(sys.argv[1]), sys.argv[2], sys.argv[3]


def evaluated_and_saved_by_all(run: Run) -> None:
    """In training mode, in evaluation mode with gradients off, and once more on rank 1 later than on rank 0."""
    run.optimizer.zero_grad()
    time.sleep(0.3 * dist.get_rank())
    run.module.eval()
    with torch.no_grad():
        run.module(torch.ones(5, 6))
        run.module(torch.ones(2 + dist.get_rank(), 6))
    run.module.train()
    run.engine.state_dict()


def evaluated_and_saved_by_one(run: Run) -> None:
    """Of a model of which every rank has the whole."""
    run.optimizer.zero_grad()
    with torch.no_grad():
        run.module(torch.ones(5, 6))
    run.engine.save_checkpoint(path=FOLDER / "checkpoint.pt", module=run.module, optimizer=run.optimizer)


def lives_on() -> None:
    """Until the other rank has ended with a sentence."""
    limit = time.monotonic() + 60
    while not (FOLDER / "1.json").exists() and time.monotonic() < limit:
        time.sleep(0.05)


def deed_of_rank_0(run: Run, x, y) -> None:
    """In the place of a step, or before it."""
    if HOW == "raises":
        raise OSError("no such file")
    if HOW == "exits":
        os._exit(0)
    if HOW == "evaluates":
        with torch.no_grad():
            run.module(x)
    if HOW == "saves":
        run.engine.state_dict()
    if HOW == "dies in backward":
        out = run.module(x)
        out.register_hook(lambda _: os._exit(0))
        run.criterion(out, y).backward()
    if HOW == "breaks after a forward":
        run.module(x)


def trained(run: Run, batches) -> None:
    for i, (x, y) in enumerate(batches):
        if HOW == "all together" and i == 2:
            evaluated_and_saved_by_all(run)
        if HOW == "rank 0 alone" and i == 2 and dist.get_rank() == 0:
            evaluated_and_saved_by_one(run)
        if HOW == "all break" and i == 2:
            break
        if dist.get_rank() == 0 and i == 2:
            if HOW == "returns":
                return
            deed_of_rank_0(run, x, y)
            if HOW.startswith("breaks"):
                break
        run.optimizer.zero_grad()
        run.criterion(run.module(x), y).backward()
        if HOW == "breaks before step()" and dist.get_rank() == 0 and i == 1:
            break
        run.optimizer.step()
    if HOW == "breaks into a barrier" and dist.get_rank() == 0:
        dist.barrier()
    elif HOW.startswith("breaks"):
        lives_on()
        run.engine.state_dict()


def trained_by_all(run: Run) -> None:
    """One rank looks at its model for a second before all begin again; and one keeps the iterator that all have left."""
    kept = iter(run.loader) if dist.get_rank() == 1 else None
    trained(run, run.loader if kept is None else kept)
    time.sleep(1.5 * (1 - dist.get_rank()))
    run.optimizer.zero_grad()
    run.engine.state_dict()
    for x, y in run.loader:
        run.optimizer.zero_grad()
        run.criterion(run.module(x), y).backward()
        run.optimizer.step()


def one_keeps_its_iterator(run: Run) -> None:
    """Rank 0 does, and lets it go when rank 1 has been told for whom it waits."""
    told = FOLDER / "told.txt"
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_: told.write_text(str(message)) if "has waited" in str(message) else None
    presence._NOTICE = timedelta(seconds=0.5)
    held = [iter(run.loader)]
    for i, (x, y) in enumerate(held[0]):
        if dist.get_rank() == 0 and i == 2:
            break
        run.optimizer.zero_grad()
        run.criterion(run.module(x), y).backward()
        run.optimizer.step()
    limit = time.monotonic() + 60
    while not told.exists() and time.monotonic() < limit:
        time.sleep(0.05)
    held.clear()
    lives_on()
    run.engine.state_dict()


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    run = Run(sharded=KIND == "sharded")
    said, began = "nothing", time.monotonic()
    try:
        if HOW == "all break":
            trained_by_all(run)
        elif HOW == "keeps its iterator":
            one_keeps_its_iterator(run)
        elif HOW.endswith("with a manager"):
            with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=4, optimizer=run.optimizer) as physical:
                trained(run, physical)
        else:
            trained(run, run.loader)
    except (RuntimeError, ValueError, OSError) as error:
        said = f"{type(error).__name__}: {error}"
    (FOLDER / f"{dist.get_rank()}.json").write_text(json.dumps({"said": said, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()
