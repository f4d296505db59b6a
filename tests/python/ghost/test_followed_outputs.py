"""Between the model and the criterion: values that pass no gradient are followed, and those of other examples are refused."""

import pytest
import torch
from private_run import Run
from torch import nn
from torch.nn import functional as F

TABLE = torch.arange(12.0).view(4, 3)


def others(run, out):
    return run.data[20 : 20 + len(out)][0][:, :3]


def softmax_over_the_batch(run, out, x, y):
    with torch.no_grad():
        weights = out.softmax(0)
    return out * weights


def centred_in_place(run, out, x, y):
    out -= out.detach().mean(0)
    return out


def centred_by_data(run, out, x, y):
    out.data.sub_(out.data.mean(0))
    return out


def centred_without_gradients(run, out, x, y):
    with torch.no_grad():
        out.sub_(out.mean(0))
    return out


def a_column_of_others(run, out, x, y):
    out = out.clone()
    out[:, 0] = others(run, out)[:, 0]
    return out


def chosen_by_others(run, out, x, y):
    out = out.clone()
    out[others(run, out)[:, 0] > 0] = 0.0
    return out


def data_of_others(run, out, x, y):
    out.data = others(run, out)
    return out


def rows_of_others_behind(run, out, x, y):
    return out + torch.cat([out, others(run, out)])[len(out) :]


REFUSED = {
    "minus the mean": lambda run, out, x, y: out - out.detach().mean(0),
    "by the largest": lambda run, out, x, y: out / out.detach().abs().max(),
    "softmax over the batch": softmax_over_the_batch,
    "others' values": lambda run, out, x, y: out + others(run, out),
    "others' inputs": lambda run, out, x, y: out * x.flip(0)[:, :3],
    "others' outputs": lambda run, out, x, y: out - out.detach().flip(0),
    "others' labels": lambda run, out, x, y: out * run.data[20 : 20 + len(out)][1][:, None],
    "chosen by others' labels": lambda run, out, x, y: out.gather(1, run.data[20 : 20 + len(out)][1][:, None].expand(-1, 3)),
    "labels as columns": lambda run, out, x, y: (out @ torch.ones(3, len(out)) * y)[:, :3],
    "beside others": lambda run, out, x, y: torch.cat([out, others(run, out)], 1) @ torch.ones(6, 3),
    "rows of others behind": rows_of_others_behind,
    "products with others": lambda run, out, x, y: torch.bmm(out[:, :, None], others(run, out)[:, None])[:, 0],
    "similar to others": lambda run, out, x, y: out * F.cosine_similarity(out, others(run, out))[:, None],
    "summed with others": lambda run, out, x, y: torch.einsum("bi,bi->b", out, others(run, out))[:, None] + out,
    "after a function that is not known": lambda run, out, x, y: unknown(out) - unknown(out).detach().mean(0),
    "others after it": lambda run, out, x, y: unknown(out) + others(run, out),
    "centred in place": centred_in_place,
    "centred by data": centred_by_data,
    "centred without gradients": centred_without_gradients,
    "a column of others": a_column_of_others,
    "chosen by others": chosen_by_others,
    "data of others": data_of_others,
}


def unknown(out):
    return torch.cdist(out, TABLE[:, :3])[:, :3]


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_values_of_others_without_a_gradient_are_refused(change):
    run = Run(attribution_check=False)
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match="is not known to be of the batch"):
        run.criterion(change(run, run.module(x), x, y), y).backward()
    assert run.charged == 0


def test_a_number_of_the_outputs_is_refused():
    run = Run(attribution_check=False)
    x, y = next(iter(run.loader))
    out = run.module(x)
    with pytest.raises(ValueError, match="is not known to be of the batch"):
        (run.criterion(out, y) * out.detach().mean()).backward()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.cdist(x, torch.zeros(3, 3)) * 0 + 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def written_to_rows_of_its_own(out, x, y):
    kept = torch.zeros_like(out)
    kept[:, :2] = out[:, :2]
    kept[:, 2] = x[:, 0]
    kept[kept > 1] = 1.0
    return kept


def focal(out, x, y):
    with torch.no_grad():
        weight = (1 - out.softmax(1).gather(1, y[:, None])) ** 2
    return out * weight


TAKEN = {
    "as it is": lambda out, x, y: out,
    "of other extents": lambda out, x, y: out.view(len(out), 1, 3).squeeze(1).contiguous(),
    "at a temperature": lambda out, x, y: out.div(2.0).float(),
    "focal": focal,
    "beside its own value": lambda out, x, y: out - out.detach(),
    "masked": lambda out, x, y: out.masked_fill(F.one_hot(y, 3) == 1, -5.0),
    "margins": lambda out, x, y: out - 0.3 * torch.eye(3)[y],
    "one of several": lambda out, x, y: out * torch.zeros(len(y), 3).scatter_(1, y[:, None], 1.0),
    "with its inputs": lambda out, x, y: out * x[:, :3],
    "normalised": lambda out, x, y: (out - out.mean(1, keepdim=True)) / out.detach().std(1, keepdim=True),
    "priors": lambda out, x, y: out + torch.tensor([0.1, 0.2, 0.3]).log(),
    "prototypes": lambda out, x, y: out @ TABLE[:3],
    "noise": lambda out, x, y: out + torch.randn_like(out),
    "one after another": lambda out, x, y: torch.stack([each.softmax(0) for each in out]) if len(out) else out,
    "sorted": lambda out, x, y: out.sort(1).values,
    "two outputs": lambda out, x, y: torch.cat([out, -out], 1)[:, 1:4],
    "einsum": lambda out, x, y: torch.einsum("bi,ij->bj", out, TABLE[:3]),
    "a function that is not known": lambda out, x, y: unknown(out) * x[:, :1],
    "a function of one's own": lambda out, x, y: Doubled.apply(out) + out,
    "written to": written_to_rows_of_its_own,
    "a linear layer": lambda out, x, y: F.linear(out, TABLE[:3], torch.ones(3)),
    "dropout": lambda out, x, y: F.dropout(F.relu(out), 0.5),
}


@pytest.mark.parametrize("change", TAKEN.values(), ids=TAKEN)
def test_what_follows_from_each_example_is_taken(change):
    run = Run(draws=(8, 1, 0, 3, 7), attribution_check=False)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        run.criterion(change(run.module(x), x, y), y).backward()
        run.optimizer.step()
    assert run.charged == 5


def test_penalties_of_each_example_are_taken():
    run = Run()
    for x, y in run.loader:
        run.optimizer.zero_grad()
        out = run.module(x)
        (run.criterion(out, y) + 0.1 * out.pow(2).mean(1) + run.criterion(out.flip(1), 2 - y)).backward()
        run.optimizer.step()
    assert run.charged == 5


class Steps(nn.Module):
    """[units, 6] -> [6, units, 3], beside a mask of the units and a table."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 3)

    def forward(self, x):
        return {"out": self.layer(x[..., None]).transpose(0, 1), "mask": x[:, 0] > 0, "table": TABLE[:3]}


@pytest.mark.parametrize("mixing", [False, True])
def test_rows_of_outputs_are_known_by_their_extents(mixing):
    """Also if a draw has as many examples as there are steps, or classes."""
    run = Run(model=Steps(), draws=(8, 6, 3, 4), attribution_check=False)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        found = run.module(x)
        out = (found["out"].mean(0) @ found["table"]) * found["mask"][:, None]
        loss = run.criterion(out - out.detach().mean(0) if mixing else out, y)
        if mixing:
            with pytest.raises(ValueError, match="mean joined its examples"):
                loss.backward()
            return
        loss.backward()
        run.optimizer.step()
    assert run.charged == 4


def test_layers_called_by_a_method_are_followed():
    class Method(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.two(self.one(x))

        def method(self, x, mixing):
            h = self.one(x)
            return self.two(h - h.detach().mean(0) if mixing else torch.tanh(h) + torch.ones(6))

    for mixing in (False, True):
        run = Run(model=Method())
        x, y = next(iter(run.loader))
        loss = run.criterion(run.model.method(x, mixing), y)
        if not mixing:
            loss.backward()
            run.optimizer.step()
            continue
        with pytest.raises(ValueError, match="mean joined its examples"):
            loss.backward()


def test_a_state_may_be_carried_on():
    """Detached, it follows from the same examples; another batch's does not."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x, h=None):
            return self.layer(x) + (0 if h is None else h)

    run = Run(model=Cell(), draws=(6, 6))
    kept = None
    for x, y in run.loader:
        run.optimizer.zero_grad()
        h = run.module(x).detach() if kept is None else kept
        loss = run.criterion(run.module(x, h), y)
        if kept is not None:
            with pytest.raises(ValueError, match="another batch of the loader"):
                loss.backward()
            continue
        loss.backward()
        run.optimizer.step()
        kept = h
