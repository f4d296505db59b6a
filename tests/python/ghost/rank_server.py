"""Ranks as forks of one process that has imported torch and what else they need: importing it takes a rank longer than most scripts.

Reads one JSON object a line from standard input (script, arguments, ranks, port, environment, seconds) and answers with one
(code, said). A rank that fails or is silent for too long ends the others, as torchrun does it.
"""

import json
import os
import random
import runpy
import signal
import sys
import tempfile
import time

import numpy
import opacus
import peft
import torch
import torch._dynamo  # FSDP2 asks it at its first forward
import torch.distributed
import torch.distributed.fsdp
import torch.onnx  # so does DTensor
from transformers import BertForQuestionAnswering, GPT2LMHeadModel, LlamaForCausalLM, T5ForConditionalGeneration

from ghostshard import FSDP2Wrapper, PrivacyEngine
from ghostshard.ghost import engine
from ghostshard.ghost.checks.gradients import AttributionCheck

READY = (
    opacus, peft, BertForQuestionAnswering, GPT2LMHeadModel, LlamaForCausalLM, T5ForConditionalGeneration, FSDP2Wrapper, PrivacyEngine, engine,
)  # fmt: skip
AttributionCheck.again = AttributionCheck.more_calls = 0  # conftest.py


def become_rank(job: dict, rank: int, said: int) -> dict:
    """In the fork."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ.clear()
    os.environ.update(job["environment"])
    ranks = str(job["ranks"])
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(job["port"])
    )
    random.seed()
    numpy.random.seed()
    return job


def wait_for(children: list[int], seconds: float) -> int:
    """The first status that is not 0, after which the others are ended; 124 if time is up."""
    end, code, left = time.monotonic() + seconds, 0, set(children)
    while left:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            left.discard(child)
            code = code or os.waitstatus_to_exitcode(status)
        elif time.monotonic() > end:
            code = code or 124
        else:
            time.sleep(0.01)
        if code:
            for other in left:
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            left.clear()
    return code


def serve() -> dict | None:
    """Comes back in a rank with its job, in the server when its input ends."""
    for line in sys.stdin:
        job = json.loads(line)
        with tempfile.TemporaryFile() as said:
            children = []
            for rank in range(job["ranks"]):
                child = os.fork()
                if child == 0:
                    return become_rank(job, rank, said.fileno())
                children.append(child)
            code = wait_for(children, job["seconds"])
            said.seek(0)
            text = said.read().decode(errors="replace")
        print(json.dumps({"code": code, "said": text}), flush=True)
    return None


assert READY and torch.get_num_threads() == 1, "OMP_NUM_THREADS must be 1: threads do not survive a fork"
mine = serve()
if mine is not None:
    sys.argv = [mine["script"], *mine["arguments"]]
    sys.path[0] = os.path.dirname(mine["script"])
    runpy.run_path(mine["script"], run_name="__main__")
