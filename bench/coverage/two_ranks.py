"""Families and methods under FSDP2 on the ranks of torchrun; writes verdicts as JSON. Arguments: file, then names of rows."""

from __future__ import annotations

import datetime
import json
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from one_step import Verdict, judged, step_of
from rows import Row, built, rows

from ghostshard import FSDP2Wrapper

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/python/ghost"))
from leaving import leave


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, ranks, wanted, found = dist.get_rank(), dist.get_world_size(), set(sys.argv[2:]), {}
    for row in rows():
        if row.name not in wanted:
            continue
        model, batch = built(row)
        verdict = judged(lambda: step_of(model, batch, prepared=FSDP2Wrapper, rank=rank, ranks=ranks))
        if verdict.kind == "fault":
            verdict = _without_privacy(row) or verdict
        found[row.name] = asdict(verdict)
        if rank == 0:
            Path(sys.argv[1]).write_text(json.dumps(found))
    dist.barrier()
    leave()


def _without_privacy(row: Row) -> Verdict | None:
    """The error of FSDP2 alone; None: there is none."""
    model, batch = built(row)
    try:
        FSDP2Wrapper(model)(**batch).loss.backward()
    except Exception as error:
        return Verdict("not by FSDP2", said=" ".join(str(error).split()))
    return None


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(1)
    main()
