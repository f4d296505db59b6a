"""An evaluation wherever a loop may have one: it changes no step, and no step changes it."""


import pytest
import torch
from launch import results_of_ranks
from private_run import prescribe
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine

pytest.importorskip("transformers")
from evaluations import BATCH, CLIP, DRAWS, MODELS, PLACES, Texts, packed, plain, same, trained


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_steps_are_what_they_are_without(build, training):
    """Where an evaluation's batch comes between a forward and what is made of it, and in all places."""
    expected, _ = trained(build)
    assert any(bool(value.any()) for value in expected[0].values())
    for where in (PLACES[1:2], PLACES[2:3], PLACES):
        released, scores = trained(build, where, training=training)
        assert same(released, expected), where
        assert len(scores) == len(where) * len(DRAWS) and all(0 < each < 100 for each in scores)


@pytest.mark.parametrize("build", [plain, packed], ids=lambda build: build.__name__)
def test_between_the_batches_of_a_draw(build):
    expected, _ = trained(build, accumulation=2)
    released, _ = trained(build, PLACES, accumulation=2)
    assert same(released, expected)


def test_an_evaluations_score_is_the_models():
    """Of the whole batch, by the criterion as it is."""
    torch.manual_seed(3)
    model, _, call, loss_of = plain()
    data = Texts()
    module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5), data_loader=DataLoader(data, batch_size=BATCH), noise_multiplier=1.0,
        max_grad_norm=CLIP, grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss(),
    )  # fmt: skip
    prescribe(loader, (0, 4, 0))
    held_out = next(iter(DataLoader(data, batch_size=7)))

    def score():
        module.eval()
        with torch.no_grad():
            found = criterion(module(held_out[0]), held_out[1]).item()
            assert abs(found - F.cross_entropy(model(held_out[0]), held_out[1]).item()) < 1e-6
        module.train()

    score()
    for batch in loader:
        optimizer.zero_grad()
        output = call(module, batch)
        score()
        loss_of(criterion, output, batch).backward()
        score()
        optimizer.step()
        score()


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return results_of_ranks("evaluations_main.py", 2, tmp_path_factory.mktemp("evaluations"))


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", ["plain", "packed", "hugging_face", "a_loss_of_its_own"])
def test_sharded_steps_are_what_they_are_without(said, name, mode):
    """By FSDP2 on two ranks, of which one has no example in some steps."""
    assert said[f"{name} {mode}"] is True
