"""The learning rate over a run: what metrics.jsonl shows is what the schedule says, and a step's size follows it."""

import math

import numpy
import pytest
from program import PLAIN, PRIVATE, arguments, metrics, weights

STEPS, PEAK = 8, 0.5


def rates(shape: str, warmup: int = 0, floor: float = 0.0) -> list[float]:
    """The rate of each step, written out as a list."""
    shapes = {
        "constant": lambda x: PEAK,
        "linear": lambda x: PEAK - (PEAK - floor) * x,
        "cosine": lambda x: floor + (PEAK - floor) * (1 + math.cos(math.pi * x)) / 2,
    }
    climb = [PEAK * (step + 1) / (warmup + 1) for step in range(warmup)]
    rest = STEPS - warmup
    return climb + [shapes[shape](step / rest) for step in range(rest)]


SCHEDULES = {
    "constant": ({}, rates("constant")),
    "warmup": ({"warmup_steps": "3"}, rates("constant", 3)),
    "linear": ({"lr_schedule": "linear"}, rates("linear")),
    "cosine_with_all": ({"lr_schedule": "cosine", "warmup_steps": "2", "min_learning_rate": "0.1"}, rates("cosine", 2, 0.1)),
}


@pytest.mark.parametrize("kind", [PRIVATE, PLAIN], ids=["private", "plain"])
@pytest.mark.parametrize("flags, expected", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_metrics_show_the_rate_of_the_step_just_done(program, flags, expected, kind):
    done = program.run(arguments(kind, steps=str(STEPS), learning_rate=str(PEAK), optimizer="sgd", **flags))
    assert done.code == 0, done.err
    shown = [line["learning_rate"] for line in metrics(program.folder / "run")]
    assert shown == pytest.approx([expected[0], *expected], rel=1e-14)


def test_a_step_is_as_long_as_its_rate(program):
    """One step of plain SGD moves the weights by rate times gradient: half the rate, half the way."""
    start = {name: values.astype(numpy.float64) for name, values in read(program, "model").items()}
    way = {}
    for name, warmup in (("whole", "0"), ("half", "1")):  # warm-up over one step starts at half the peak
        flags = {"steps": "2", "optimizer": "sgd", "learning_rate": "1e-3", "output": name, "warmup_steps": warmup}
        assert program.run(arguments(PLAIN, **flags, lr_schedule="linear")).code == 0
        line = metrics(program.folder / name)
        way[name] = (line[1]["learning_rate"] + line[2]["learning_rate"], distance(weights(program.folder / name), start))
    # Over two short steps the gradient hardly changes.
    assert way["whole"][1] / way["half"][1] == pytest.approx(way["whole"][0] / way["half"][0], rel=0.15)


def read(program, folder: str) -> dict:
    from safetensors.numpy import load_file

    return load_file(program.folder / folder / "model.safetensors")


def distance(tensors: dict, start: dict) -> float:
    return math.sqrt(sum(((tensors[name] - start[name]) ** 2).sum() for name in start))
