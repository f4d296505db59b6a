"""A use of a parameter that could only be under-counted is refused, by name, and nothing of it is kept."""

import pytest
import torch
from models import CASES, Language, class_loss, next_token_loss
from private import Private, hand_out
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine
from ghostshard.ghost.loss import PrivateLoss


class HeadByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.inner = nn.Linear(8, 8)

    def forward(self, ids):
        return functional.linear(self.inner(self.tokens(ids)), self.tokens.weight)


def test_a_parameter_used_outside_of_its_layer():
    model = HeadByHand()
    private = Private(model, 1.0)
    with pytest.raises(RuntimeError, match=r"'tokens\.weight' was used outside"):
        private.backward(next_token_loss, (torch.randint(0, 11, (4, 5)),))
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(RuntimeError, match="nothing can be released twice"):
        private.released()


class Mixes(nn.Module):
    """Hands one example's rows to another's place: [B, T, d] as [B·T, d]."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x):
        return self.inner(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (2, 5)).sum(0)


def test_a_layer_whose_rows_are_no_longer_units():
    with pytest.raises(ValueError, match=r"inner\.weight.*5 units"):
        Private(Mixes(), 1.0).backward(class_loss, (torch.randn(5, 2, 6), torch.randint(0, 3, (5,))))


@pytest.mark.parametrize("take, shape", [(lambda y: y, r"\(5, 3\)"), (lambda y: y[:3].sum(1), r"\(3,\)"), (lambda y: y.sum(), r"\(\)")])
def test_losses_that_are_not_one_for_each_unit(take, shape):
    private = Private(nn.Sequential(nn.Linear(6, 3)), 1.0, attribution_check=False)
    with pytest.raises(ValueError, match=f"one loss for each of the 5 units.*{shape}"):
        PrivateLoss(private.engine, take(private.module(torch.randn(5, 6)))).backward()


def test_a_release_without_a_backward():
    private = Private(nn.Sequential(nn.Linear(6, 3)), 1.0)
    with pytest.raises(RuntimeError, match="since the last step"):
        private.optimizer.step()
    private.step(class_loss, [(torch.randn(5, 6), torch.randint(0, 3, (5,)))])
    with pytest.raises(RuntimeError, match="released twice"):
        private.optimizer.step()


def test_terms_that_change_within_a_batch():
    private = Private(nn.Sequential(nn.Linear(6, 3)), 1.0, noise_multiplier=1.0)
    batch = (torch.randn(5, 6), torch.randint(0, 3, (5,)))
    private.backward(class_loss, batch)
    private.optimizer.max_grad_norm = 0.1
    with pytest.raises(RuntimeError, match="between logical batches"):
        private.optimizer.step()


def test_an_exception_in_backward_leaves_nothing_behind():
    case = next(case for case in CASES if case.name == "mlp")
    torch.manual_seed(3)
    model, batches = case.build(), case.batches()
    private = Private(model, 0.5)
    alone = private.step(case.loss, batches[:1])

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise MemoryError("out of memory")

    def failing(module, batch):
        x = torch.nn.functional.relu(module._module[0](batch[0]))
        return functional.cross_entropy(module._module[2](Fails.apply(x)), batch[1], reduction="none")

    with pytest.raises(MemoryError):
        private.backward(failing, batches[1])
    again = private.step(case.loss, batches[:1])
    for name in alone:
        assert torch.equal(alone[name], again[name])


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=lambda o: next(iter(o)))
def test_embeddings_that_couple_examples(options):
    model = nn.Sequential(nn.Embedding(11, 8, **options), nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(ValueError, match="no per-example rule"):
        Private(model, 1.0).backward(class_loss, (torch.randint(0, 11, (5, 2)), torch.randint(0, 3, (5,))))


def test_a_forward_that_is_never_gone_back_through():
    model = Language(tied=True)
    private = Private(model, 0.3)
    batch = (torch.randint(0, 11, (4, 5)),)
    expected = private.step(next_token_loss, [batch])
    next_token_loss(private.module, batch)  # its graph is dropped
    next_token_loss(private.module, (batch[0][:2],))
    found = private.step(next_token_loss, [batch])
    for name in expected:
        assert torch.equal(found[name], expected[name])


class CheckpointedAnew(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.use_reentrant = use_reentrant

    def forward(self, x):
        x = checkpoint(lambda y: torch.tanh(self.inner(y)), self.first(x), use_reentrant=self.use_reentrant)
        return self.last(x)


def test_reentrant_checkpointing_says_what_to_do():
    batch = (torch.randn(5, 6), torch.randint(0, 3, (5,)))
    private = Private(CheckpointedAnew(True), 1.0)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        private.backward(class_loss, batch)
    with pytest.raises(RuntimeError, match="nothing can be released twice"):
        private.released()
    Private(CheckpointedAnew(False), 1.0).step(class_loss, [batch])


def test_reversible_layers_are_named():
    """They run a backward of their own within the backward, and no flag of theirs leaves it out."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ReformerConfig(
        vocab_size=29, hidden_size=16, attention_head_size=8, num_attention_heads=2, feed_forward_size=16, attn_layers=["local"], local_attn_chunk_length=6,
        max_position_embeddings=16, axial_pos_embds=False, hidden_dropout_prob=0.0, local_attention_probs_dropout_prob=0.0, num_labels=3, pad_token_id=0,
    )  # fmt: skip
    ids, labels = torch.randint(3, 29, (4, 6)), torch.tensor([0, 1, 2, 0])
    model = transformers.ReformerForSequenceClassification(config).train()
    with pytest.raises(RuntimeError, match="Reversible layers, as Reformer's, always do so"):
        Private(model, 1.0).module(input_ids=ids, labels=labels).loss.backward()
    model = transformers.ReformerForSequenceClassification(config).train()
    model.reformer.encoder.requires_grad_(False)
    private = Private(model, 1.0)
    private.module(input_ids=ids, labels=labels).loss.backward()
    assert private.released()["reformer.embeddings.word_embeddings.weight"].abs().max() > 0


class TimeFirst(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.inner, self.layer, self.out = nn.Linear(4, 8), layer, nn.Linear(8, 3)

    def forward(self, x):
        h = self.inner(x).transpose(0, 1)
        found = self.layer(h, h, h) if isinstance(self.layer, nn.MultiheadAttention) else self.layer(h)
        return self.out((found[0] if isinstance(found, tuple) else found).mean(0))


TIME_FIRST = {
    "attention": lambda: nn.MultiheadAttention(8, 2),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 1, enable_nested_tensor=False),
}


@pytest.mark.parametrize("places", [5, 7])
@pytest.mark.parametrize("build", TIME_FIRST.values(), ids=TIME_FIRST)
def test_a_layer_that_takes_time_first_is_told_what_it_needs(build, places):
    private = Private(TimeFirst(build()), 1.0)
    with pytest.raises((ValueError, RuntimeError), match="It takes time first: build it with batch_first=True"):
        private.backward(class_loss, (torch.randn(5, places, 4), torch.randint(0, 3, (5,))))


def made_private():
    data, model = TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,))), nn.Sequential(nn.Linear(6, 3))
    return PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=8), noise_multiplier=1.0,
        max_grad_norm=1.0, grad_sample_mode="ghost",
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:no ledger")
def test_a_batch_from_which_examples_were_dropped():
    module, _, criterion, loader = made_private()
    hand_out(loader, 4)
    with pytest.raises(ValueError, match=r"over 2 units.*torch\.utils\.data\.Subset"):
        criterion(module(torch.randn(2, 6)), torch.zeros(2, dtype=torch.long)).backward()


@pytest.mark.filterwarnings("ignore:no ledger")
def test_another_model_trains_through_a_frozen_one_between_hooks():
    module, _, criterion, loader = made_private()
    hand_out(loader, 4)
    module.requires_grad_(False)
    generator = nn.Linear(2, 6)
    with pytest.raises(ValueError, match=r"between disable_hooks\(\) and enable_hooks\(\)"):
        module(generator(torch.randn(4, 2)))
    module.disable_hooks()
    module(generator(torch.randn(4, 2))).sum().backward()
    module.enable_hooks()
    module.requires_grad_(True)
    assert generator.weight.grad.abs().sum() > 0
    criterion(module(torch.randn(4, 6)), torch.zeros(4, dtype=torch.long)).backward()
