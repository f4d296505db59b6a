"""clipping="adaptive": the clip norm follows a noised count over the expected batch, under Opacus' names."""

import inspect
import json
import math
import warnings

import pytest
import torch
from opacus.optimizers import AdaClipDPOptimizer
from private_run import BATCH, Run

from ghostshard.ghost import clip_quantile

SILENT = {"noise": 0.01, "unclipped_num_std": 0.02}  # noise of the count that is rounded to nothing
START = 1e-6  # below every example's norm


def run_of(**options) -> Run:
    return Run(**({"clipping": "adaptive", "max_grad_norm": START} | options))


def clip_norms(run: Run) -> list[float]:
    found = [run.optimizer.max_grad_norm]
    for x, y in run.loader:
        run.step(x, y)
        found.append(run.optimizer.max_grad_norm)
    return found


def shares(found: list[float]) -> list[float]:
    return [0.5 - math.log(then / now) / 0.2 for now, then in zip(found, found[1:])]


@pytest.mark.parametrize("options", [
    {}, {"memory_budget": 0}, {"accumulate": True}, {"loss_reduction": "sum", "criterion": torch.nn.CrossEntropyLoss(reduction="sum")},
], ids=["plain", "two_passes", "accumulated", "sums"])  # fmt: skip
def test_the_count_is_divided_by_the_expected_batch(options):
    draws = (8, 7, 9, 0, 6)
    above = shares(clip_norms(run_of(draws=draws, **SILENT, **options)))
    assert above == pytest.approx([0.5 - drawn / 2 / BATCH for drawn in draws], abs=1e-9)
    below = shares(clip_norms(run_of(draws=draws, max_grad_norm=30.0, **SILENT, **options)))
    assert below == pytest.approx([0.5 + drawn / 2 / BATCH for drawn in draws], abs=1e-9)


def test_its_arguments_are_those_of_opacus():
    assert set(clip_quantile.NAMES) <= set(inspect.signature(AdaClipDPOptimizer).parameters)
    found = clip_norms(run_of(
        target_unclipped_quantile=0.9, clipbound_learning_rate=0.5, max_clipbound=1e-3, min_clipbound=START, draws=(8, 8), **SILENT
    ))  # fmt: skip
    assert found == pytest.approx([START, START * math.exp(0.45), START * math.exp(0.9)], rel=1e-12)
    assert clip_norms(run_of(max_clipbound=1.01 * START, draws=(8,), **SILENT))[-1] == 1.01 * START


def test_a_draw_that_is_passed_over_does_not_move_it():
    run = run_of(draws=(8, 8, 8), **SILENT)
    batches = iter(run.loader)
    run.step(*next(batches))
    after = run.optimizer.max_grad_norm
    next(batches)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, y = next(batches)
        run.optimizer.zero_grad()
        run.backward(x, y)
    assert run.optimizer.max_grad_norm == after
    assert run.charged == 3


def test_both_parts_are_charged_as_one_gaussian(tmp_path):
    run = run_of(ledger=tmp_path / "ledger.jsonl", unclipped_num_std=2.0)
    found = clip_norms(run)
    assert run.engine.accountant.history == [(1.0, 0.2, 5)]
    header, *lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert header["clip_norm"] == START and header["clipping"].startswith("flat, per example")
    assert header["clip_quantile"] == {"target": 0.5, "rate": 0.2, "count_noise": 2.0, "least": START / 1000, "most": START * 1000}
    assert [line["clip_norm"] for line in lines] == found[:-1]
    event = lines[0]["event"]
    assert event["type"] == "poisson_adaptive_clipping" and event["count_noise"] == 2.0
    assert event["noise_multiplier"] == header["noise_multiplier"]
    assert 1 < 1 / math.hypot(1 / event["noise_multiplier"], 1 / 4) < 1 + 1e-12
    run.engine.report(tmp_path / "report", delta=1e-5)
    report = json.loads((tmp_path / "report" / "privacy_report.json").read_text())
    assert report["guarantee"]["applies"] and all(each.get("holds", True) for each in report["assumptions"])
    assert report["guarantee"]["epsilon"]["upper"] == pytest.approx(run.engine.get_epsilon(1e-5), rel=1e-6)
    assert report["mechanism"]["clip_norms"]["last"] == found[-2]


def test_a_run_goes_on_with_the_clip_norm_of_its_checkpoint(tmp_path):
    def begun():
        return run_of(ledger=tmp_path / "ledger.jsonl", noise=1.3, unclipped_num_std=2.0, target_unclipped_quantile=0.51, draws=(8, 7, 9))

    first = begun()  # shares are multiples of 1/16: none is 0.51, and the clip norm moves
    batches = iter(first.loader)
    first.step(*next(batches))
    first.engine.save_checkpoint(path=tmp_path / "saved.pt", module=first.module, optimizer=first.optimizer)
    saved = first.optimizer.max_grad_norm
    first.step(*next(batches))  # its result is lost
    first.engine._ghost.let_go_of_ledger()
    second = begun()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        second.engine.load_checkpoint(path=tmp_path / "saved.pt", module=second.module, optimizer=second.optimizer)
    assert not any("other terms" in str(each.message) for each in said)
    assert second.optimizer.max_grad_norm == saved != START
    assert second.engine.accountant.history == [(1.3, 0.2, 2)], "under the name that it was charged by"
    second.step(*next(iter(second.loader)))
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    again = lines[-1]
    assert (again["step"], again["attempt"], again["clip_norm"]) == (1, 1, saved)


@pytest.mark.parametrize(("options", "message"), [
    ({"unclipped_num_std": 0.5}, "smaller than 2 . unclipped_num_std = 1.0"),
    ({"noise": 0.0}, "noise_multiplier must be > 0"),
    ({"target_unclipped_quantile": 1.0}, "strictly between 0 and 1"),
    ({"clipbound_learning_rate": float("nan")}, "clipbound_learning_rate must be finite and > 0"),
    ({"min_clipbound": 1.0}, "max_grad_norm must lie between"),
    ({"clipping": "flat", "unclipped_num_std": 2.0}, "for clipping='adaptive'"),
], ids=["count_noise", "no_noise", "quantile", "rate", "limits", "flat"])  # fmt: skip
def test_refusals_name_the_rule(options, message):
    with pytest.raises(ValueError, match=message):
        run_of(**({"unclipped_num_std": 2.0} | options))


def test_automatic_clipping_scales_every_example():
    run = Run(clipping="automatic", noise=1e-6, max_grad_norm=1.0, draws=(8,))
    before = [p.detach().clone() for p in run.model.parameters()]
    x, y = next(iter(run.loader))
    gradients = []
    for one, label in zip(torch.as_tensor(x), torch.as_tensor(y)):
        run.model.zero_grad()
        with torch.enable_grad():
            weights = [p.detach().clone().requires_grad_() for p in run.model.parameters()]
            torch.nn.functional.cross_entropy(torch.nn.functional.linear(one, *weights), label).backward()
        gradients.append([w.grad for w in weights])
    run.step(x, y)
    norms = [math.sqrt(sum(float(g.square().sum()) for g in each)) for each in gradients]
    for i, (p, was) in enumerate(zip(run.model.parameters(), before)):
        expected = sum(each[i] / (norm + 0.01) for each, norm in zip(gradients, norms)) / BATCH
        torch.testing.assert_close((was - p.detach()) / 0.1, expected, rtol=1e-4, atol=1e-4)
