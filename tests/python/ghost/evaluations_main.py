"""Two ranks that evaluate in the middle of training: started by torchrun, writes whether each step was what it is without. See test_evaluations.py.

    torchrun --nproc_per_node 2 evaluations_main.py results.json
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch.distributed as dist
from evaluations import PLACES, a_loss_of_its_own, hugging_face, packed, plain, same, trained

DRAWS = ((3, 2, 0, 1), (2, 0, 3, 2))  # of each rank


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    mine, found = DRAWS[dist.get_rank()], {}
    for build in (plain, packed, hugging_face, a_loss_of_its_own):
        expected, _ = trained(build, draws=mine, sharded=True)
        for mode in ("eval", "train"):
            released, _ = trained(build, PLACES, training=mode == "train", draws=mine, sharded=True)
            found[f"{build.__name__} {mode}"] = same(released, expected)
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
