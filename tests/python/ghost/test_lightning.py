"""PyTorch Lightning's own Trainer, with the private loader, as docs/python.md shows it."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine

L = pytest.importorskip("lightning")

N, BATCH, PASSES = 40, 8, 2
DRAWN = [(1.0, BATCH / N, PASSES * N // BATCH)]


class Lit(L.LightningModule):
    """Its criterion is a child, as everybody's is."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch, _):
        loss = self.criterion(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return {"loss": loss}

    def configure_optimizers(self):
        return self.optimizer


class ByHand(Lit):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, _):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.criterion(self.net(batch[0]), batch[1]))
        optimizer.step()


class Validated(Lit):
    def validation_step(self, batch, _):
        self.log("loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))


def examples():
    g = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(N, 6, generator=g), torch.randint(3, (N,), generator=g))


def private(lit, **options):
    engine = PrivacyEngine(accountant="rdp")
    plain = DataLoader(examples(), batch_size=BATCH)
    lit.net, lit.optimizer, lit.criterion, loader = engine.make_private(
        module=lit.net, optimizer=torch.optim.Adam(lit.net.parameters()), data_loader=plain, noise_multiplier=1.0, max_grad_norm=1.0,
        criterion=lit.criterion, grad_sample_mode="ghost", **options,
    )  # fmt: skip
    return engine, loader, plain


def trainer(folder, **options):
    return L.Trainer(max_epochs=PASSES, accelerator="cpu", logger=False, default_root_dir=str(folder), enable_progress_bar=False, enable_model_summary=False, **options)


@pytest.mark.parametrize("build", [Lit, ByHand])
def test_every_draw_is_one_step(build, tmp_path):
    lit = build()
    engine, loader, _ = private(lit)
    before = [p.detach().clone() for p in lit.net.parameters()]
    trainer(tmp_path).fit(lit, loader)
    assert engine.accountant.history == DRAWN
    assert all(not torch.equal(p, q) for p, q in zip(lit.net.parameters(), before))


def test_draws_in_pieces(tmp_path):
    lit = Lit()
    engine, loader, _ = private(lit, accumulation_steps=2)
    trainer(tmp_path, accumulate_grad_batches=2).fit(lit, loader)
    assert engine.accountant.history == DRAWN


def test_held_out_data_and_gradients_that_are_clipped(tmp_path):
    lit = Validated()
    engine, loader, plain = private(lit)
    trainer(tmp_path, gradient_clip_val=1.0).fit(lit, loader, plain)
    assert engine.accountant.history == DRAWN


def test_a_loader_of_ones_own_is_refused(tmp_path):
    lit = Lit()
    engine, _, plain = private(lit)
    with pytest.raises(RuntimeError, match="no batch of the private loader is under way"):
        trainer(tmp_path).fit(lit, plain)
    assert engine.accountant.history == []
