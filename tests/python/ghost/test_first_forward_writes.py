"""What a model's forward writes to its parameters on a private batch is refused, in the first forward too: it follows from examples, without noise."""

import pytest
import torch
from private_run import Run
from torch import nn

WRITTEN = "written to by the model's own forward"


class Model(nn.Module):
    """write(model, x) in each forward, or in that of one step."""

    def __init__(self, write, at=None):
        super().__init__()
        self.a, self.l = nn.Linear(6, 6), nn.Linear(6, 3)
        self.write, self.at, self.step = write, at, 0

    def forward(self, x):
        if self.at in (None, self.step):
            with torch.no_grad():
                self.write(self, x)
        return self.l(self.a(x))


def centred(model, x):
    model.a.bias.copy_(-x.mean(0) / x.std(0))


def one_factor(model, x):
    model.l.weight.data.div_(model.l(x).std())


def replaced(model, x):
    model.a.weight.data = torch.diag(1 / x.std(0))


WRITES = {"ActNorm, whitening": centred, "LSUV": one_factor, "by .data": replaced}


def steps_of(run, passes=8):
    done = 0
    for _ in range(passes):
        for x, y in run.loader:
            run.model.step = done
            run.step(x, y)
            done += 1
    return done


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("at", [0, 3])
def test_no_forward_writes_what_follows_from_a_batch(write, at):
    run = Run(model=Model(write, at))
    with pytest.raises(RuntimeError, match=WRITTEN):
        steps_of(run)
    assert run.charged == at


def test_a_forward_that_records_nothing_writes_nothing():
    run = Run(model=Model(centred, 0))
    for x, y in run.loader:
        with torch.no_grad():
            run.module(x)
        with pytest.raises(RuntimeError, match=WRITTEN):
            run.step(x, y)
        break


def test_what_it_wrote_is_not_released_by_saving():
    run = Run(model=Model(centred, 0))
    for x, _ in run.loader:
        run.module(x)
        break
    assert WRITTEN in run.module.engine.weights.changed_since_a_step()


HONEST = {
    "nothing": lambda model, x: None,
    "bounds": lambda model, x: model.l.weight.clamp_(-0.3, 0.3),
    "its own values": lambda model, x: model.a.weight.copy_(model.a.weight.clone()),
    "an attribute": lambda model, x: setattr(model, "held", x.mean(0)),
}


@pytest.mark.parametrize("write", HONEST.values(), ids=HONEST)
def test_forwards_that_write_no_values_of_a_batch_train(write):
    assert steps_of(Run(model=Model(write))) == 40


def test_weights_are_loaded_after_a_forward_and_before_the_first_backward():
    run = Run(model=Model(HONEST["nothing"]))
    for x, _ in run.loader:
        run.module(x)
        break
    with torch.no_grad():
        run.model.a.bias.copy_(torch.arange(6.0))
    run.optimizer.zero_grad()
    assert steps_of(run) == 40


def test_a_lazy_layer_that_had_its_extents_trains():
    model = nn.Sequential(nn.LazyLinear(5), nn.LazyLinear(3))
    model(torch.zeros(1, 6))
    assert steps_of(Run(model=model)) == 40


def test_the_users_word_stands_for_it():
    write = lambda model, x: model.a.bias.copy_(torch.arange(6.0))
    with pytest.raises(RuntimeError, match=WRITTEN):
        steps_of(Run(model=Model(write, 0)))
    assert steps_of(Run(model=Model(write, 0), allow_vouched=True)) == 40
