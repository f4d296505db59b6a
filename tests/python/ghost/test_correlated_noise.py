"""noise_bands=b and noise_chain=b: each draw is from one group of examples, is charged as a round of it, and has noise that takes back
earlier noise; whatever happens, the report is of the group with the most rounds.

An audit stands beside every loop: it sees which examples were in which released step, and counts how often each may have been drawn.
"""

import json
import math
import warnings
from collections import Counter
from itertools import islice

import pytest
import torch
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from test_deals_of_bins import DELTA, N, Run, lines_of
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from ghostshard import PrivacyEngine
from ghostshard.accountants import epsilon_of_events, get_noise_multiplier
from ghostshard.ghost.correlation import chosen, momenta_of
from ghostshard.loaders import GhostDataLoader
from ghostshard.optim import Muon

GROUPS, DRAWS = 4, 10  # DRAWS are no multiple: turns go on from pass to pass
RATE = GROUPS / DRAWS
KINDS = ["noise_bands", "noise_chain"]
passed_over = pytest.mark.filterwarnings("ignore:a batch of the private loader was passed over")


class Audited(Run):
    """steps: which one each released step was charged as, and how the examples were dealt to groups then."""

    def step(self, x, y) -> None:
        super().step(x, y)
        self.steps = [*getattr(self, "steps", []), (self.engine._ghost.next_step[0] - 1, self.engine._loader.batch_sampler._shift)]


def run_of(kind="noise_bands", **options) -> Audited:
    data = DataLoader(Run().arguments["data_loader"].dataset, batch_size=N // DRAWS)
    return Audited(**{"data_loader": data, "sampling": None, kind: GROUPS, **options}).begin()


def rounds(ledger) -> list[int]:
    by_group = Counter(line["step"] % GROUPS for line in lines_of(ledger))
    return [by_group[group] for group in range(GROUPS)]


def audit(run: Audited, ledger) -> None:
    """No step holds an example of another group, the accountant knows of no fewer rounds than the ledger, and the report is the ledger's."""
    event = {"type": "poisson_gaussian", "sampling_rate": pytest.approx(RATE, rel=1e-15), "noise_multiplier": 1.0}
    assert all(line["event"] == event for line in lines_of(ledger))
    for (step, shift), examples in zip(getattr(run, "steps", []), run.released, strict=True):
        assert {(each - shift) % GROUPS for each in examples} <= {step % GROUPS}, "it is charged to another group"
    assert run.charged >= max(rounds(ledger))
    run.engine.report(ledger.parent, delta=DELTA)
    report = json.loads((ledger.parent / "privacy_report.json").read_text())
    assert report["sampler"]["executed_is_assumed"] is True and report["guarantee"]["applies"] is True
    assert report["population_and_steps"]["groups"]["rounds"] == rounds(ledger)
    poisson = [({**lines_of(ledger)[0]["event"]}, max(rounds(ledger)))]
    expected = epsilon_of_events(poisson, delta=DELTA, adjacency="zero-out").upper
    assert report["guarantee"]["epsilon"]["upper"] == expected
    assert run.engine.get_epsilon(DELTA) >= expected * (1 - 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_each_turn_is_a_round_of_its_group(kind, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    run = run_of(kind, ledger=ledger)
    for step, (x, y) in enumerate(batch for _ in range(2) for batch in run.loader):
        run.optimizer.zero_grad()
        run.under_way = []
        run.backward(x, y)
        assert run.charged == 1 + step // GROUPS, "before its gradient is there"
        assert len(lines_of(ledger)) == 1 + step
        assert {each % GROUPS for each in run.under_way} <= {step % GROUPS}
        run.optimizer.step()
    assert [line["step"] for line in lines_of(ledger)] == list(range(2 * DRAWS))
    assert run.charged == max(rounds(ledger)) == math.ceil(2 * DRAWS / GROUPS)
    audit(run, ledger)
    header = json.loads(ledger.read_text().splitlines()[0])
    assert header["sampling_groups"] == GROUPS and kind in header


@passed_over
def test_whatever_ends_a_pass_no_group_has_more_rounds_than_were_charged(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    run = run_of(ledger=ledger)
    run.train(steps=3).train(steps=1)
    first, second = iter(run.loader), iter(run.loader)
    for batches in (first, second, second, first):
        run.step(*next(batches))
    for i, (x, y) in enumerate(run.loader):
        if i in (0, 4, 5):
            continue  # passed over
        if i == 2:
            run.under_way = []
            run.backward(x, y)
            run.optimizer.zero_grad()  # dropped
            continue
        run.step(x, y)
    run.train()
    audit(run, ledger)


@passed_over
def test_a_draw_that_is_passed_over_is_a_round_of_its_own_group(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    run = run_of(ledger=ledger)
    passed = False
    for i, (x, y) in enumerate(run.loader):
        if not passed and i > 0 and len(x):
            passed = True
        else:
            run.step(x, y)
    assert [line["step"] for line in lines_of(ledger)] == list(range(DRAWS))
    assert run.charged == math.ceil(DRAWS / GROUPS) + 1, "whole, since its step was not known yet"
    audit(run, ledger)


@pytest.mark.parametrize("options", [{"accumulation_steps": 2}, {"memory_budget": 0}, {"accumulate": True}], ids=str)
def test_a_draw_may_come_in_pieces(options, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    run = run_of("noise_chain", ledger=ledger, **options)
    pieces = options.get("accumulation_steps", 1)
    for i, (x, y) in enumerate(run.loader):
        run.backward(x, y)
        if (i + 1) % pieces == 0:
            run.optimizer.step()
            run.optimizer.zero_grad()
    assert [line["step"] for line in lines_of(ledger)] == list(range(DRAWS))
    audit(run, ledger)


def test_a_batch_memory_manager_cuts_draws_of_a_group(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    run = run_of(ledger=ledger)
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=2, optimizer=run.optimizer) as physical:
        for x, y in physical:
            run.optimizer.zero_grad()
            run.backward(x, y)
            run.optimizer.step()
    assert [line["step"] for line in lines_of(ledger)] == list(range(DRAWS))
    audit(run, ledger)


# The noise -----------------------------------------------------------------------------------------------------------

WIDTH = 200


def noise_of(steps: int, **options) -> torch.Tensor:
    """[steps, elements]: the noise of a run without gradients, in units of noise multiplier times clip norm."""
    torch.manual_seed(3)
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    data = DataLoader(TensorDataset(torch.zeros(40, WIDTH), torch.zeros(40, dtype=torch.long)), batch_size=5)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no ledger")
        module, optimizer, criterion, loader = PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), data_loader=data, noise_multiplier=1.0, max_grad_norm=0.5,
            grad_sample_mode="ghost", **options,
        )  # fmt: skip
    found, before = [], model.weight.detach().clone()
    for x, y in islice(loader, steps):
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()
        found.append((before - model.weight.detach()).flatten() * 5 / 0.5)
        before = model.weight.detach().clone()
    return torch.stack(found)


def second_moments(noise: torch.Tensor) -> torch.Tensor:
    return noise.double() @ noise.double().T / noise.shape[1]


# A product of two normal numbers has a deviation of at most sqrt(2) times their deviations' product; their mean over WIDTH² elements
# one of sqrt(2)/WIDTH of it. Six of these, relative to the largest variance.
TOLERANCE = 6 * math.sqrt(2) / WIDTH


def assert_noise(found: torch.Tensor, mixing: torch.Tensor) -> None:
    """mixing [steps, steps]: x = mixing · z of independent z."""
    expected = mixing @ mixing.T
    assert (second_moments(found) - expected).abs().max() < TOLERANCE * expected.max()


def test_bands_take_back_noise_of_the_steps_before():
    correlation = chosen(torch.optim.SGD([nn.Parameter(torch.ones(2))]), 8, generator=False, noise_bands=3)
    bands = torch.eye(5, dtype=torch.float64)
    for k, ratio in enumerate(correlation.ratios, 1):
        bands += torch.diag(torch.full((5 - k,), ratio, dtype=torch.float64), -k)
    norm = math.sqrt(1 + sum(ratio**2 for ratio in correlation.ratios))
    assert min(correlation.ratios) > 0.1, "there is something to see"
    assert_noise(noise_of(5, noise_bands=3), norm * torch.linalg.inv(bands))


def test_a_chain_takes_back_noise_of_the_step_before():
    steps, decay = chosen(torch.optim.SGD([nn.Parameter(torch.ones(2))]), 8, generator=False, noise_chain=3).chain
    mixing = torch.zeros(5, 5, dtype=torch.float64)
    for step in range(5):
        norm = math.sqrt(sum(decay ** (2 * i) for i in range(steps - step % steps)))
        mixing[step, step] = norm
        if step % steps:
            mixing[step, step - 1] = -decay * norm
    assert decay > 0.1
    assert_noise(noise_of(5, noise_chain=3), mixing)


def test_bands_may_come_from_a_generator_of_ones_own_and_a_chain_may_not():
    runs = [noise_of(4, noise_bands=3, noise_generator=torch.Generator().manual_seed(4)) for _ in range(2)]
    assert torch.equal(*runs)
    with pytest.raises(ValueError, match="cannot be combined with a noise_generator"):
        noise_of(4, noise_chain=3, noise_generator=torch.Generator().manual_seed(4))


def test_weights_follow_what_the_parameters_are_trained_with():
    matrix, vector = nn.Parameter(torch.ones(30, 30)), nn.Parameter(torch.ones(30))
    sgd = torch.optim.SGD([{"params": [matrix], "momentum": 0.5}, {"params": [vector]}], lr=0.1)
    assert momenta_of(sgd) == [(0.0, 30.0), (0.5, 900.0)]
    assert momenta_of(Muon([matrix, vector], momentum=0.7)) == [(0.7, 900.0), (0.9, 30.0)], "vectors go by AdamW"
    one = lambda momentum: chosen(torch.optim.SGD([matrix], lr=1, momentum=momentum), 40, generator=False, noise_bands=4).ratios
    mixed = chosen(sgd, 40, generator=False, noise_bands=4).ratios
    assert one(0.5)[0] < mixed[0] < one(0.0)[0] or one(0.5)[0] > mixed[0] > one(0.0)[0]
    assert abs(mixed[0] - one(0.5)[0]) < abs(mixed[0] - one(0.0)[0]), "the matrix has 30 times the elements"
    falling = chosen(sgd, 40, generator=False, noise_bands=4, noise_rates=[40 - step for step in range(40)])
    assert falling.ratios != mixed and falling.steps == 40


def test_what_an_optimizer_hears_of_the_noise_is_its_variance():
    run = run_of("noise_bands", noise_rates=[1.0] * 20)
    correlation = run.engine._ghost.run.correlation
    inverse = [1.0]  # of (1, a_1, ...) as a series
    for i in range(1, 20):
        inverse.append(-sum(a * inverse[i - k] for k, a in enumerate(correlation.ratios, 1) if k <= i))
    norm = 1 + sum(ratio**2 for ratio in correlation.ratios)
    assert correlation.variance == pytest.approx(norm * sum(h * h for h in inverse), rel=1e-9)
    run.train(steps=1)
    assert run.engine._ghost.run.release_variance((0.1, 1.0)) == pytest.approx((0.1 / (N // DRAWS)) ** 2 * correlation.variance)


# A target, terms, checkpoints ----------------------------------------------------------------------------------------


def test_noise_for_a_target_pays_for_rounds():
    run = Run(
        target_epsilon=3.0, target_delta=DELTA, epochs=2, sampling=None, noise_bands=GROUPS,
        data_loader=DataLoader(Run().arguments["data_loader"].dataset, batch_size=N // DRAWS),
    )  # fmt: skip
    del run.arguments["noise_multiplier"]
    run.begin().train(passes=2)
    assert 2.99 < run.engine.get_epsilon(DELTA) <= 3.0
    rate = run.engine._ghost.run.sampling_rate
    expected = get_noise_multiplier(target_epsilon=3.0, target_delta=DELTA, sample_rate=rate, steps=math.ceil(2 * DRAWS / GROUPS))
    assert run.optimizer.noise_multiplier == expected
    assert run.engine._ghost.run.correlation.steps == 2 * DRAWS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["noise_multiplier", "max_grad_norm"])
def test_terms_stay_what_they_were(kind, name, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    run = run_of(kind, ledger=ledger)
    batches = iter(run.loader)
    run.step(*next(batches))
    setattr(run.optimizer, name, 0.5)
    with pytest.raises(ValueError, match="one clip norm and one noise multiplier in all steps"):
        run.step(*next(batches))
    assert len(lines_of(ledger)) == 1


def test_a_schedule_of_the_noise_is_refused():
    run = run_of()
    schedule = ExponentialNoise(run.optimizer, gamma=0.9)
    batches = iter(run.loader)
    run.step(*next(batches))
    schedule.step()
    with pytest.raises(ValueError, match="one noise multiplier"):
        run.step(*next(batches))


def test_noise_there_must_be():
    with pytest.raises(ValueError, match="needs a noise multiplier"):
        run_of(noise_multiplier=0.0).train(steps=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_goes_on_repeats_lost_steps_as_rounds(kind, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    run = run_of(kind, ledger=ledger).train(steps=6)
    run.save(tmp_path / "saved")
    run.train(steps=3)  # and are lost
    run.engine._ghost.let_go_of_ledger()
    again = run_of(kind, ledger=ledger)
    with pytest.warns(UserWarning, match="counts 3 steps, the checkpoint's accountant 2"):
        again.load(tmp_path / "saved")
    again.train(steps=5)
    steps = [(line["step"], line["attempt"]) for line in lines_of(ledger)]
    assert steps == [(step, 0) for step in range(9)] + [(8, 1), (9, 0), (10, 0), (11, 0), (12, 0)]
    audit(again, ledger)
    assert max(rounds(ledger)) == 5, "group 0: steps 0, 4, 8, and in the session that goes on 8 again, 12"


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_that_stands_elsewhere_when_a_run_goes_on_has_no_more_rounds_than_are_reported(kind, tmp_path):
    """In another process nothing tells that the data set was shuffled anew. Both of an example's places had a turn."""
    ledger = tmp_path / "ledger.jsonl"
    run = run_of(kind, ledger=ledger).train(steps=2)
    run.save(tmp_path / "saved")
    run.engine._ghost.let_go_of_ledger()
    for order in range(2, 4):
        data = Subset(run.loader.dataset, [(place + order) % N for place in range(N)])
        again = run_of(kind, ledger=ledger, data_loader=DataLoader(data, batch_size=N // DRAWS))
        again.load(tmp_path / "saved")
        again.train(steps=2)
        again.engine._ghost.let_go_of_ledger()
        assert max(rounds(ledger)) == order, "one of each session"
        again.engine.report(tmp_path, delta=DELTA)
        report = json.loads((tmp_path / "privacy_report.json").read_text())
        assert report["guarantee"]["epsilon"]["upper"] == epsilon_of_events([(lines_of(ledger)[0]["event"], order)], delta=DELTA, adjacency="zero-out").upper


def test_the_pass_that_was_under_way_ends_when_a_checkpoint_is_loaded(tmp_path):
    """Its examples are dealt otherwise than those that follow."""
    run = run_of(ledger=tmp_path / "ledger.jsonl")
    batches, not_begun = iter(run.loader), iter(run.loader)
    run.step(*next(batches))
    run.save(tmp_path / "saved")
    held = next(batches)
    run.load(tmp_path / "saved")
    for batch in (lambda: held, lambda: next(batches), lambda: next(not_begun)):
        with pytest.raises(RuntimeError, match="its pass over the data ended when a checkpoint was loaded"):
            run.step(*batch())
    run.train(steps=2)
    audit(run, tmp_path / "ledger.jsonl")


def test_a_step_that_is_repeated_in_one_process_is_charged_again(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    run = run_of(ledger=ledger).train(steps=5)
    run.save(tmp_path / "saved")
    run.train(steps=1)
    run.load(tmp_path / "saved")
    run.train(steps=1)
    assert [(line["step"], line["attempt"]) for line in lines_of(ledger)][-2:] == [(5, 0), (8, 0)]
    assert run.charged == max(rounds(ledger)) == 3
    audit(run, ledger)


def test_a_checkpoint_after_turns_that_were_left_out_goes_on(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    run = run_of(ledger=ledger)
    first, second = iter(run.loader), iter(run.loader)
    run.step(*next(first))
    run.step(*next(second))  # the same group's turn again: three steps are left out
    assert [line["step"] for line in lines_of(ledger)] == [0, GROUPS]
    run.save(tmp_path / "saved")
    run.engine._ghost.let_go_of_ledger()
    again = run_of(ledger=ledger)
    again.load(tmp_path / "saved")
    again.train(steps=2)
    audit(again, ledger)


@pytest.mark.parametrize("changes", [{"noise_bands": 2}, {"noise_bands": 1, "noise_chain": GROUPS}, {"noise_multiplier": 2.0},
                                     {"noise_rates": [3.0, *9 * [1.0]]}], ids=str)  # fmt: skip
def test_a_run_goes_on_with_its_own_noise(changes, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    run = run_of(ledger=ledger).train(steps=5)
    run.save(tmp_path / "saved")
    run.engine._ghost.let_go_of_ledger()
    other = run_of(ledger=ledger, **changes)
    with pytest.raises(ValueError, match="this one has|this one deals"):
        other.load(tmp_path / "saved")


# What is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    ({"noise_chain": 2}, "give one of noise_bands and noise_chain"),
    ({"noise_bands": DRAWS + 1}, "at most the 10 batches of a pass"),
    ({"noise_bands": 0}, "noise_bands must be a whole number >= 1, got 0"),
    ({"noise_bands": 2.5}, "noise_bands must be a whole number >= 1, got 2.5"),
    ({"noise_bands": 1, "noise_rates": [1.0]}, "noise_rates weigh correlated noise"),
    ({"noise_rates": [1.0, -1.0, 1.0, 1.0]}, "noise_rates must be finite and > 0"),
    ({"noise_rates": [1.0, 2.0]}, r"noise bands must be from 1 to the number of steps \(2\)"),
    ({"clipping": "adaptive"}, "cannot be combined with clipping='adaptive'"),
    ({"sampling": "balls_in_bins"}, "neither with sampling='balls_in_bins' nor with max_batch_size"),
    ({"max_batch_size": 20}, "neither with sampling='balls_in_bins' nor with max_batch_size"),
    ({"own_batches": True}, "batches of your own are not drawn by it"),
    ({"grad_sample_mode": "hooks"}, "noise_bands is of our modes alone"),
    ({"noise_blt": 2}, "noise from buffers is of ghostshard-finetune-gpt2 --noise-blt"),
], ids=["both", "too_many", "none", "broken", "rates_of_white_noise", "rates", "few_rates", "adaptive", "bins", "largest_batch", "own_batches", "hooks", "buffers"])  # fmt: skip
def test_what_is_not_derived_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        run_of(**options)


def test_a_register_is_refused(tmp_path):
    (tmp_path / "data").write_text("x")
    register = {"path": tmp_path / "register", "data": tmp_path / "data", "limit": 10.0}
    with pytest.raises(ValueError, match="leave noise_bands and noise_chain out"):
        run_of(ledger=tmp_path / "ledger.jsonl", register=register)


def test_a_loader_that_draws_from_all_is_refused():
    loader = GhostDataLoader.from_data_loader(DataLoader(Run().arguments["data_loader"].dataset, batch_size=4))
    with pytest.raises(ValueError, match="the loader that shuffles"):
        run_of(data_loader=loader)
