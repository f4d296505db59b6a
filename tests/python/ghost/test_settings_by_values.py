"""Settings that follow from values of private batches: numbers that were read in attributes of modules, and what a branch sets (learning rate, decay, clip norm,
modes, weights). Schedules by steps and passes are taken, whatever a loop reads for people."""

import math
import random

import pytest
import torch
from private_run import Run
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

N = 24  # draws of a pass


def own(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def loop(after, *, model=None, passes=2, draws=(8,) * N, **options):
    """after(run, loss, step), once before all (of step -1). Draws have the same units, whose values change from draw to draw."""
    run = Run(draws=draws, model=model, criterion=own, **options)
    torch.manual_seed(3)
    random.seed(3)
    after(run, None, -1)
    for step in range(passes * N):
        if step % N == 0:
            batches = iter(run.loader)
        x, y = next(batches)
        run.optimizer.zero_grad()
        loss = run.criterion(run.module(x), y)
        loss.backward()
        run.optimizer.step()
        run.examples, run.seen_so_far = x, getattr(run, "seen_so_far", 0) + len(x)
        run.data.tensors[0].copy_(torch.randn(40, 6) + torch.randn(()))
        after(run, loss, step)
    return run


def lr(run, value):
    run.optimizer.param_groups[0]["lr"] = value


# Refused ---------------------------------------------------------------------------------------------------------------------


class OwnScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.scale, self.shown = nn.Linear(6, 3), 1.0, 0.0

    def forward(self, x):
        return self._scaled(self.inner(x))

    def _scaled(self, x):
        return x * self.scale


HELD = {
    "dropout": (lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(6, 3)), lambda model, loss: setattr(model[0], "p", min(0.9, 0.1 * loss.item()))),
    "slope": (lambda: nn.Sequential(nn.Linear(6, 3), nn.LeakyReLU(0.1)), lambda model, loss: setattr(model[1], "negative_slope", 0.3 * loss.item())),
    "own": (OwnScale, lambda model, loss: setattr(model, "scale", 1 + 0.1 * loss.item())),
}  # fmt: skip


@pytest.mark.parametrize("model, write", HELD.values(), ids=HELD)
def test_an_attribute_of_a_module_is_no_number_that_was_read(model, write):
    with pytest.raises(ValueError, match="a number that was read from a private batch"):
        loop(lambda run, loss, step: loss and write(run.model, loss), model=model())


def test_a_number_for_people_may_stand_on_a_model():
    def after(run, loss, step):
        run.model.shown = 0.9 * run.model.shown + 0.1 * loss.item() if loss else 0.0

    assert loop(after, model=OwnScale()).charged == 2 * N


def clip_norm(run, loss, step):
    run.optimizer.max_grad_norm = 0.1 if loss is None or loss.item() < 1.3 else 0.02


def decay(run, loss, step):
    run.optimizer.param_groups[0]["weight_decay"] = 0.01 if loss is None or loss < 1.3 else 0.3


def noise(run, loss, step):
    if loss is not None and step % 2 and loss.item() > 1.3:
        run.optimizer.noise_multiplier *= 0.99


def plateau(run, loss, step):
    if loss is None:
        run.best, run.bad = math.inf, 0
        return
    run.best, run.bad = (loss.item(), 0) if loss.item() < run.best or run.bad > 3 + step % 3 else (run.best, run.bad + 1)
    if run.bad > 2:
        run.optimizer.param_groups[0]["lr"] *= 0.5
        run.bad = 0


def scheduler(run, loss, step):
    if loss is None:
        run.scheduler = lr_scheduler.ExponentialLR(run.optimizer.original_optimizer, 0.9)
    elif loss.item() > 1.3:
        run.scheduler.step()


def modes(run, loss, step):
    if loss is not None:
        run.model.train(loss.item() < 1.3)


def frozen(run, loss, step):
    if loss is not None:
        run.model[1].bias.requires_grad_(bool(loss.item() < 1.3))


def weights(run, loss, step):
    if loss is not None and loss.item() > 1.3:
        with torch.no_grad():
            run.model[1].weight.mul_(0.9)


def best_weights(run, loss, step):
    if loss is None or loss.item() < run.best:
        run.best, run.kept = math.inf if loss is None else loss.item(), {name: value.clone() for name, value in run.model.state_dict().items()}
    else:
        run.model.load_state_dict(run.kept)
        run.best *= 1.1


def rolled_back(run, loss, step):
    """From the second step on, so that the first comparison has nothing to do."""
    if step == 2:
        run.kept = {name: value.clone() for name, value in run.model.state_dict().items()}
    elif loss is not None and loss.item() > 1.3 and step > 2:
        run.model.load_state_dict(run.kept)


def momenta_cleared(run, loss, step):
    if loss is None:
        run.optimizer.param_groups[0]["momentum"] = 0.9
    elif loss.item() > 1.3:
        run.optimizer.state.clear()


def hooked(run, change) -> None:
    def hook(*_) -> None:
        if run.large:
            change([each for each in run.model.parameters() if each.grad is not None])

    run.large = False
    run.optimizer.register_step_pre_hook(hook)


def gradients_halved(run, loss, step):
    """By the loss of the batch before."""
    if loss is None:
        hooked(run, lambda parameters: [each.grad.mul_(0.5) for each in parameters])
    else:
        run.large = bool(loss.item() > 1.3)


def gradients_dropped(run, loss, step):
    if loss is None:
        hooked(run, lambda parameters: setattr(parameters[0], "grad", None))
    else:
        run.large = bool(loss.item() > 1.3)


def by_math(run, loss, step):
    if loss is not None:
        lr(run, 0.1 * math.exp(-loss.item()))


def by_float(run, loss, step):
    if loss is not None:
        lr(run, 0.05 + 0.1 * float(loss))


def to_and_fro(run, loss, step):
    lr(run, 0.1 if loss is None or float(loss) < 1.3 else 0.01)


BRANCHES = [clip_norm, decay, noise, plateau, scheduler, modes, frozen, weights, best_weights, rolled_back, momenta_cleared, gradients_halved, gradients_dropped, by_math, by_float, to_and_fro]


@pytest.mark.parametrize("after", BRANCHES, ids=lambda each: each.__name__)
def test_a_setting_does_not_follow_from_what_was_read(after):
    with pytest.raises(ValueError, match="follows from values of private batches as it seems"):
        loop(after, model=nn.Sequential(nn.Dropout(0.1), nn.Linear(6, 3)))


def test_nor_does_whether_a_release_is_applied():
    run = Run(draws=(8,) * N, criterion=own)
    with pytest.raises(ValueError, match="the choice of releases that no step applied follows from values of private batches"):
        for _ in range(3):
            for x, y in run.loader:
                run.optimizer.zero_grad()
                loss = run.criterion(run.module(x), y)
                loss.backward()
                run.optimizer.pre_step()
                if loss.item() < 1.3:
                    run.optimizer.original_optimizer.step()
                run.data.tensors[0].copy_(torch.randn(40, 6) + torch.randn(()))


UNEVEN = tuple(random.Random(4).choices((4, 6, 7, 9), k=N))


def by_examples(run, loss, step):
    if loss is not None:
        lr(run, 0.05 * (1 + math.cos(math.pi * run.seen_so_far / 600)))


def by_elements(run, loss, step):
    if loss is not None:
        run.elements = getattr(run, "elements", 0) + run.examples.numel()
        lr(run, 0.1 * (1 - run.elements / 6000) ** 2)


def by_size(run, loss, step):
    if loss is not None:
        lr(run, 0.1 / (1 + len(run.examples)) ** 1.5)


@pytest.mark.parametrize("after", [by_examples, by_elements, by_size], ids=lambda each: each.__name__)
def test_a_setting_does_not_follow_from_how_much_was_drawn(after):
    """By a function of any form."""
    with pytest.raises(ValueError, match="follows from values of private batches as it seems: in .* of how many"):
        loop(after, draws=UNEVEN)


def test_somebody_may_vouch_for_a_setting():
    assert loop(clip_norm, allow_vouched=True).charged == 2 * N


# Taken -----------------------------------------------------------------------------------------------------------------------


def best_is_kept(run, loss):
    """As people do it."""
    if loss is not None and loss.item() < getattr(run, "best", math.inf):
        run.best = loss.item()
    run.seen = None if loss is None else (float(loss), f"{loss:.3f}")


def stepped(make, *, every=1):
    def after(run, loss, step):
        best_is_kept(run, loss)
        if step < 0:
            run.scheduler = make(run.optimizer)
        elif (step + 1) % every == 0:
            run.scheduler.step()

    return after


def warm_up(run, loss, step):
    best_is_kept(run, loss)
    lr(run, 0.1 * min(1, (step + 2) / 10))


def warm_up_and_cosine(run, loss, step):
    best_is_kept(run, loss)
    lr(run, 0.1 * (step + 2) / 10 if step < 10 else 0.05 * (1 + math.cos(math.pi * (step - 10) / 60)))


def by_step(run, loss, step):
    best_is_kept(run, loss)
    lr(run, 0.1 * 0.5 ** ((step + 1) // 7))


def clipped_by_hand(run, loss, step):
    """Of what was released, now and then, whatever the loss is."""
    best_is_kept(run, loss)
    if loss is None:
        hooked(run, lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.07))
        run.large = True


def cleared_by_pass(run, loss, step):
    best_is_kept(run, loss)
    if loss is None:
        run.optimizer.param_groups[0]["momentum"] = 0.9
    elif (step + 1) % N == 0 or loss.item() > 1e3:
        run.optimizer.state.clear()


def milestones(run, loss, step):
    best_is_kept(run, loss)
    lr(run, 0.1 if step < 20 else 0.01 if step < 51 else 0.001)


def by_pass(run, loss, step):
    best_is_kept(run, loss)
    lr(run, 0.1 * 0.7 ** ((step + 1) // N))


def annealed(run, loss, step):
    best_is_kept(run, loss)
    run.optimizer.max_grad_norm = 0.1 * 0.99 ** (step + 1)
    run.optimizer.param_groups[0]["weight_decay"] = 0.01 * random.random()


def evaluated(run, loss, step):
    best_is_kept(run, loss)
    if step % 5 == 0:
        run.model.eval()
        with torch.no_grad():
            run.at = run.model(torch.ones(2, 6)).sum().item()
        run.model.train()


def unfrozen(run, loss, step):
    best_is_kept(run, loss)
    run.model.bias.requires_grad_(step >= 30)


def clamped(run, loss, step):
    best_is_kept(run, loss)
    with torch.no_grad():
        run.model.weight.clamp_(-0.4, 0.4)


SCHEDULES = {
    "lambda": stepped(lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / 10))),
    "one_cycle": stepped(lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)),
    "cosine": stepped(lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10)), "restarts": stepped(lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 7)),
    "steps": stepped(lambda optimizer: lr_scheduler.StepLR(optimizer, 5)), "step_by_pass": stepped(lambda optimizer: lr_scheduler.StepLR(optimizer, 1), every=N),
    "milestones_of_torch": stepped(lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [5, 11, 13, 30, 41])),
    "one_after_another": stepped(lambda optimizer: lr_scheduler.SequentialLR(optimizer, [lr_scheduler.LinearLR(optimizer, total_iters=5), lr_scheduler.ExponentialLR(optimizer, 0.9)], [5])),
} | {each.__name__: each for each in (warm_up, warm_up_and_cosine, by_step, milestones, by_pass, annealed, evaluated, unfrozen, clamped, clipped_by_hand, cleared_by_pass)}  # fmt: skip


@pytest.mark.parametrize("draws", [(8,) * N, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("after", SCHEDULES.values(), ids=SCHEDULES)
def test_schedules_of_steps_and_passes_are_taken(after, draws):
    assert loop(after, draws=draws).charged == 2 * N


def test_an_adaptive_clip_norm_is_taken():
    assert loop(lambda run, loss, step: best_is_kept(run, loss), clipping="adaptive", noise=0.5).charged == 2 * N
