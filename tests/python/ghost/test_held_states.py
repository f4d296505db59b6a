"""What the optimizer keeps comes of its own steps: states that were written or loaded between two steps are refused, up to what is released already."""

import copy

import pytest
import torch
from private_run import Run
from torch.nn import functional as F

REFUSED = "is not what its last step made of it"


def run_with(kind=torch.optim.SGD, **options):
    run = Run(**options)
    run.optimizer.original_optimizer = kind(run.model.parameters(), lr=0.01, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    return run


def trained(run, deed):
    for step, (x, y) in enumerate(run.loader):
        run.step(x, y)
        deed(run, step, x, y)


def raw_gradients(run, x, y):
    twin = copy.deepcopy(run.model)
    F.cross_entropy(twin(x), y).backward()
    return [p.grad for p in twin.parameters()]


def adds_raw_gradients(run, step, x, y):
    for p, gradient in zip(run.model.parameters(), raw_gradients(run, x, y)):
        run.optimizer.state[p]["momentum_buffer"].add_(gradient)


def adds_to_data(run, step, x, y):
    for p, gradient in zip(run.model.parameters(), raw_gradients(run, x, y)):
        run.optimizer.state[p]["momentum_buffer"].data.add_(gradient)


def replaces(run, step, x, y):
    for p, gradient in zip(run.model.parameters(), raw_gradients(run, x, y)):
        run.optimizer.state[p]["momentum_buffer"] = gradient


def adds_another(run, step, x, y):
    """That the optimizer may look up one day."""
    for p, gradient in zip(run.model.parameters(), raw_gradients(run, x, y)):
        run.optimizer.state[p]["other"] = gradient


class Twin:
    """Trains beside without noise, and its optimizer's state is loaded."""

    def __init__(self):
        self.model = None

    def __call__(self, run, step, x, y):
        if self.model is None:
            self.model = copy.deepcopy(run.model)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()
        run.optimizer.load_state_dict(self.optimizer.state_dict())


@pytest.mark.parametrize("deed", [adds_raw_gradients, adds_to_data, replaces, adds_another, Twin()], ids=["added", "data", "replaced", "another", "twin"])
def test_states_with_gradients_without_noise_are_refused(deed):
    run = run_with()
    with pytest.raises(RuntimeError, match=REFUSED):
        trained(run, deed)
    assert len(run.engine.accountant.history) and run.charged <= 2


def test_the_users_word_is_taken():
    run = run_with(allow_vouched=True)
    trained(run, adds_raw_gradients)
    assert run.charged == 5


def halves(run, step, x, y):
    for state in run.optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.dim():
                value.mul_(0.5)


def clears(run, step, x, y):
    run.optimizer.original_optimizer.state.clear()


def zeroes(run, step, x, y):
    for state in run.optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()


class GoesBack:
    def __call__(self, run, step, x, y):
        if step == 1:
            self.saved = copy.deepcopy(run.optimizer.state_dict())
        if step == 3:
            run.optimizer.load_state_dict(self.saved)


def reads_and_writes_it_back(run, step, x, y):
    run.optimizer.load_state_dict(run.optimizer.state_dict())


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
@pytest.mark.parametrize("deed", [halves, clears, zeroes, GoesBack(), reads_and_writes_it_back], ids=lambda deed: getattr(deed, "__name__", "goes_back"))
def test_what_nobody_learns_of_is_taken(deed, kind):
    if kind is torch.optim.Adagrad and deed is clears:
        pytest.skip("it makes its states when it is built")
    run = run_with(kind)
    trained(run, deed)
    assert run.charged == 5


def test_a_state_that_was_saved_after_it_was_written_to_is_refused():
    run = run_with()

    def deed(run, step, x, y):
        adds_raw_gradients(run, step, x, y)
        run.optimizer.load_state_dict(run.optimizer.state_dict())

    with pytest.raises(RuntimeError, match=REFUSED):
        trained(run, deed)


def test_a_state_before_the_first_step_is_the_users_own():
    run = run_with()
    warm = torch.optim.SGD([torch.nn.Parameter(torch.randn_like(p)) for p in run.model.parameters()], lr=0.01, momentum=0.9)
    for p in warm.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    warm.step()
    run.optimizer.load_state_dict(warm.state_dict())
    trained(run, lambda *_: None)
    assert run.charged == 5


@pytest.mark.parametrize("name, value", [("betas", (lambda x: (abs(x.mean().item()), 0.99))), ("lr", lambda x: 0.01 * x.mean().abs())])
def test_settings_within_settings_are_not_read_from_a_batch(name, value):
    run = run_with(torch.optim.AdamW)
    x, y = next(iter(run.loader))
    run.backward(x, y)
    run.optimizer.param_groups[0][name] = value(x)
    with pytest.raises(ValueError, match="was read from a private batch"):
        run.optimizer.step()
