"""bench/not_kept.py: that it runs, and that its gradients, filter and averages are what they are said to be."""

import json
import os
import subprocess
import sys

import pytest
import torch


@pytest.fixture
def bench(repository, monkeypatch):
    monkeypatch.syspath_prepend(str(repository / "bench"))
    import not_kept

    return not_kept


MODEL = {"vocab_size": 50, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
RUN = {"expected-batch": 3, "steps": 5, "clip-norm": 1.0, "warmup-steps": 2}


@pytest.fixture
def texts(bench):
    """Of several lengths, each with a prompt."""
    generator = torch.Generator().manual_seed(3)
    made = bench.Texts.__new__(bench.Texts)
    made.ids = [torch.randint(0, 50, (length,), generator=generator) for length in (9, 4, 12, 6, 12)]
    made.predicted = [torch.arange(2, len(ids)) for ids in made.ids]
    return made


def gradient(model, weights, ids, predicted):
    """Of one text, without vmap or padding."""
    leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
    hidden = torch.func.functional_call(model, leaves, ids[None, :-1])[0]
    logits = hidden @ leaves["tokens.weight"].T
    loss = torch.nn.functional.cross_entropy(logits[predicted - 1], ids[predicted])
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@pytest.mark.parametrize("kappa, gamma", [(1.0, 1.0), (0.7, 0.5), (0.5, 1.0), (0.3, 0.5)])
@pytest.mark.parametrize("clip", [0.5, 100.0])
def test_both_gradients_of_a_text_are_clipped_together(bench, texts, kappa, gamma, clip):
    model = bench.fresh_model(MODEL, 1)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    move = {name: 0.1 * torch.randn(w.shape, generator=torch.Generator().manual_seed(4)) for name, w in weights.items()}
    beside = {name: w + gamma * move[name] for name, w in weights.items()}
    c = (1 - kappa) / (kappa * gamma)
    expected = {name: torch.zeros_like(w) for name, w in weights.items()}
    for ids, predicted in zip(texts.ids, texts.predicted, strict=True):
        here, there = gradient(model, weights, ids, predicted), gradient(model, beside, ids, predicted)
        both = {name: c * there[name] + (1 - c) * here[name] for name in weights}
        norm = torch.sqrt(sum(g.square().sum() for g in both.values()))
        for name, g in both.items():
            expected[name] += g * min(1.0, clip / float(norm))
    (batch,) = texts.batches(list(range(5)))
    found = bench.clipped_sum(model, weights, batch, clip, bench.Kind(kappa=kappa, gamma=gamma), move)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
    first = bench.clipped_sum(model, weights, batch, clip, bench.Kind(kappa=kappa, gamma=gamma), None)
    plain = bench.clipped_sum(model, weights, batch, clip, bench.Kind(), move)
    assert all(torch.equal(first[name], plain[name]) for name in weights), "no step yet, no second gradient"


def weights_after(bench, texts, kind, seed):
    model = bench.fresh_model(MODEL, 1)
    for _ in bench.steps(RUN, texts, model, kind, 0.01, seed):
        pass
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_runs_of_one_seed_share_batches_and_noise(bench, texts):
    first = weights_after(bench, texts, bench.Kind(), 5)
    assert torch.equal(weights_after(bench, texts, bench.Kind(), 5), first)
    assert not torch.equal(weights_after(bench, texts, bench.Kind(), 6), first)
    apart = [(weights_after(bench, texts, bench.Kind(kappa=kappa, gamma=0.5), 5) - first).norm() for kappa in (0.999, 0.9, 0.7)]
    assert 0 < apart[0] < apart[1] < apart[2], "the less is filtered, the nearer to white noise"


def test_an_average_has_no_share_of_the_first_weights(bench, texts, tmp_path, monkeypatch):
    """A decay near 1 weighs all steps alike."""
    monkeypatch.setattr(bench, "DECAYS", (0.9999,))
    monkeypatch.setattr(bench, "Texts", lambda path: texts)
    monkeypatch.setattr(bench, "loss_of", lambda model, weights, texts: float(weights["tokens.weight"][0, 0]))
    seen = []
    original = bench.steps

    def watched(run, texts, model, *rest):
        for _ in original(run, texts, model, *rest):
            seen.append(model.tokens.weight[0, 0].item())
            yield

    monkeypatch.setattr(bench, "steps", watched)
    run = bench.train({"model": MODEL, "run": RUN}, tmp_path, bench.Kind(), 0.01, 1, "test")
    assert run["losses"]["0.0"] == pytest.approx(seen[-1], rel=1e-6)
    assert run["losses"]["0.9999"] == pytest.approx(sum(seen) / len(seen), rel=1e-3)
    assert seen[-1] != pytest.approx(sum(seen) / len(seen), rel=1e-2)


def test_the_short_form_measures_every_method_and_makes_no_run_twice(bench, repository, tmp_path):
    rows = "".join(f'"name[Place {i}], food[{food}]","Place {i} serves {food}."\n' for i in range(8) for food in ("bread", "fish"))
    (tmp_path / "texts.csv").write_text("mr,ref\n" + rows)
    output = tmp_path / "short.json"
    words = ["--short", "--train", "texts.csv", "--test", "texts.csv", "--output", output]

    def run(*more: str) -> tuple[dict, str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, repository / "bench" / "not_kept.py", *words, *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=240)
        assert done.returncode == 0, done.stderr
        return json.loads(output.read_text()), done.stdout

    report, printed = run()
    found = [(row["method"], row["decay"]) for row in report["results"]]
    assert found == [(method.name, decay) for method in bench.METHODS for decay in method.decays]
    assert len(printed.splitlines()) == 1 + len(found)
    white = report["results"][0]
    assert white["differences"] == [0.0, 0.0]
    for row in report["results"]:
        assert row["differences"] == [one - other for one, other in zip(row["losses"], white["losses"], strict=True)]
    assert {run["part"] for run in report["runs"]} == {"tune", "test"} and all(run["commit"] for run in report["runs"])

    again, _ = run("--methods", "average")
    assert again["runs"] == report["runs"]
    assert again["results"] == [row for row in report["results"] if row["method"] in ("white noise", "average")]
