"""loss.loss_per_sample may be read, set and written to row by row; values of other examples are refused there as between the model and the criterion."""

import pytest
import torch
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from private_run import Run
from torch.nn import functional as F

REFUSED = "what the loss is formed of is not known to be of the batch"


def weights_of(y):
    return (y == 0).float() + 0.5


def set_to(change):
    def write(loss, x, y):
        loss.loss_per_sample = change(loss.loss_per_sample, y)

    return write


def divided_in_place(loss, x, y):
    losses = loss.loss_per_sample
    losses /= losses.detach().mean()


def trimmed(loss, x, y):
    losses = loss.loss_per_sample
    losses[losses.detach() > 1.2 * losses.detach().mean()] = 0


def others_subtracted(loss, x, y):
    loss.loss_per_sample.sub_(loss.loss_per_sample.detach().flip(0))


def then_added(loss, x, y):
    divided_in_place(loss, x, y)
    return loss * 2 + 1


def by_a_read_number(loss, x, y):
    loss.loss_per_sample.mul_(loss.loss_per_sample.std().item())


WRONG = {
    "normalised": set_to(lambda losses, y: losses / losses.detach().mean()), "by others' weights": set_to(lambda losses, y: losses * weights_of(y).flip(0)),
    "divided in place": divided_in_place, "trimmed": trimmed, "others subtracted": others_subtracted, "then added": then_added, "by a read number": by_a_read_number,
}  # fmt: skip


def own(outputs, y):
    return F.cross_entropy(outputs, y, reduction="none")


def steps_of(run, write, of=lambda run, x, y: run.criterion(run.module(x), y), passes=8):
    done = 0
    for _ in range(passes):
        for x, y in run.loader:
            run.optimizer.zero_grad()
            loss = of(run, x, y)
            (write(loss, x, y) or loss).backward()
            run.optimizer.step()
            done += 1
    return done


@pytest.mark.parametrize("criterion", [{}, {"criterion": own}], ids=["torch's", "own"])
@pytest.mark.parametrize("name", WRONG)
def test_losses_take_no_values_of_other_examples(name, criterion):
    run = Run(**criterion)
    with pytest.raises(ValueError, match=REFUSED):
        steps_of(run, WRONG[name])
    assert run.charged == 0


def weighted_in_place(loss, x, y):
    losses = loss.loss_per_sample
    losses *= weights_of(y)
    assert float(loss) == pytest.approx(float(losses.detach().mean()))


def large_ones_left_out(loss, x, y):
    losses = loss.loss_per_sample
    losses[losses.detach() > 1.5] = 0


HONEST = {
    "weighted": set_to(lambda losses, y: losses * weights_of(y)), "halved": set_to(lambda losses, y: losses * 0.5), "weighted in place": weighted_in_place,
    "large ones left out": large_ones_left_out, "bounded": lambda loss, x, y: loss.loss_per_sample.clamp_(max=1.5) is None or None,
    "read": lambda loss, x, y: loss.loss_per_sample.mean().item() * 0 or None, "then added": lambda loss, x, y: weighted_in_place(loss, x, y) or loss * 2 + loss,
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_losses_may_be_written_to_row_by_row(name):
    assert steps_of(Run(), HONEST[name]) == 40


def of_pairs(run, x, y):
    return run.criterion(run.module(torch.cat([x, x + 0.1]), units=torch.arange(len(x)).repeat(2)), y.repeat(2))


def test_losses_of_joined_rows_take_no_values_of_other_examples():
    with pytest.raises(ValueError, match=REFUSED):
        steps_of(Run(), divided_in_place, of_pairs)


@pytest.mark.parametrize("name", ["weighted", "halved", "weighted in place"])
def test_losses_of_joined_rows_may_be_written_to(name):
    assert steps_of(Run(), HONEST[name], of_pairs) == 40


def test_written_losses_train_as_the_same_losses_of_a_criterion():
    sums = []
    for run, write in ((Run(noise=0.0, criterion=lambda o, y: own(o, y) * weights_of(y)), lambda *_: None), (Run(noise=0.0, criterion=own), HONEST["weighted"]),
                       (Run(noise=0.0, criterion=own), weighted_in_place)):  # fmt: skip
        steps_of(run, write, passes=1)
        sums.append(run.model.weight.detach().clone())
    torch.testing.assert_close(sums[1], sums[0])
    torch.testing.assert_close(sums[2], sums[0])


def test_opacus_tensor_by_hand_says_what_to_use():
    run = Run()
    for x, y in run.loader:
        loss = DPTensorFastGradientClipping(run.module, run.optimizer, own(run.module(x), y))
        with pytest.raises(RuntimeError, match="one loss for each example"):
            loss.backward()
        break
