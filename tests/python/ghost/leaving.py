"""The end of a script on several ranks."""

import json
import os
import sys

import torch.distributed as dist


def leave() -> None:
    """Ends the process without tearing the interpreter down.

    A worker thread of torch's Gloo group that was not scheduled since its last collective still holds that collective's
    tensors; it needs the interpreter to free them, and "terminate called without an active exception" ends the process
    if that is gone by then (PyTorch's DeviceMesh keeps the group, and so the threads, beyond destroy_process_group).
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def report_and_leave(results: str, found: object) -> None:
    """Writes rank 0's findings into the file `results`, as JSON."""
    if dist.get_rank() == 0:
        with open(results, "w") as file:
            json.dump(found, file)
    leave()
