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
from rows import built, rows

from ghostshard import FSDP2Wrapper
from one_step import judged, step_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/python/ghost"))
from leaving import leave  # noqa: E402


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, ranks, wanted, found = dist.get_rank(), dist.get_world_size(), set(sys.argv[2:]), {}
    for row in rows():
        if row.name not in wanted:
            continue
        model, batch = built(row)
        found[row.name] = asdict(judged(lambda: step_of(model, batch, prepared=FSDP2Wrapper, rank=rank, ranks=ranks)))
        if rank == 0:
            Path(sys.argv[1]).write_text(json.dumps(found))
    dist.barrier()
    leave()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(1)
    main()
