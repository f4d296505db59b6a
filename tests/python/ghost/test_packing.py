"""Packed batches: the sum is that of texts run alone, and leaks are refused."""

import copy
import functools

import pytest
import torch
from oracle import worst_difference
from packed import LENGTHS, clipped_sum, in_rows, one_row, some_users, texts_of
from private import Private
from ranks_main import gpt2, llama
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine, next_token_labels, pack_texts
from ghostshard.ghost.loss import PrivateCriterion

MODELS = {"gpt2": gpt2, "llama": llama}
CLIP = 0.5
TOLERANCE = 2e-5  # as in test_ghost_sums.py


def offsets(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def own_loss(private, batch):
    private.module(**batch).loss.backward()


def criterion_loss(private, batch):
    """Logits and shifted targets, flattened as people do."""
    batch = dict(batch)
    targets = next_token_labels(batch.pop("labels"), batch["segment_ids"])
    criterion = PrivateCriterion(private.engine, private.optimizer, nn.CrossEntropyLoss())
    criterion(private.module(**batch).logits.flatten(0, 1), targets.flatten()).backward()


def by_offsets(users):
    batch = one_row(users)
    del batch["segment_ids"]
    return batch | {"cu_seqlens": offsets([len(text) for text in texts_of(users)])}


def two_rows(users):
    """A row of padding alone comes first: it is the first text's."""
    return in_rows([[], users[:2], users[2:]], 16)


def positions_alone(users):
    """No mask: Transformers makes one if position ids start anew and there is no cache."""
    batch = one_row(users) | {"use_cache": False}
    del batch["attention_mask"]
    return batch


WAYS = {"segment_ids": one_row, "cu_seqlens": by_offsets, "rows_with_padding": two_rows, "positions_alone": positions_alone}


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_each_text_is_a_unit(build, way):
    torch.manual_seed(11)
    model, users = build(), some_users()
    expected = clipped_sum(model, users, CLIP)
    private = Private(model, CLIP)
    own_loss(private, way(users))
    assert worst_difference(private.released(), expected) < TOLERANCE


@pytest.mark.parametrize("way", [one_row, two_rows], ids=lambda way: way.__name__)
def test_losses_of_a_criterion(way):
    torch.manual_seed(11)
    model, users = gpt2(), some_users()
    expected = clipped_sum(model, users, CLIP)
    private = Private(model, CLIP)
    criterion_loss(private, way(users))
    assert worst_difference(private.released(), expected) < TOLERANCE


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
def test_each_user_is_a_unit(build, apart):
    torch.manual_seed(11)
    model, users = build(), some_users(2, 1, 3)
    expected = clipped_sum(model, users, CLIP)
    batch = pack_texts(users, users=True)
    assert batch["user_ids"].tolist() == [0, 0, 1, 2, 2, 2]
    if apart:  # users' texts in turn: a, c, b, a, c, c
        (a1, a2), (b1,), (c1, c2, c3) = users
        batch = pack_texts([a1, c1, b1, a2, c2, c3]) | {"user_ids": [7, -3, 5, 7, -3, -3]}
    private = Private(model, CLIP)
    own_loss(private, batch)
    assert private.engine.packing.units == 3
    assert worst_difference(private.released(), expected) < TOLERANCE


@pytest.mark.parametrize("memory", [0, 1 << 30], ids=["replayed", "held"])
def test_every_way_of_recording(memory):
    torch.manual_seed(11)
    model, users = gpt2(), some_users(1, 2, lengths=[3, 4, 5])
    expected = clipped_sum(model, users, 1e-2)
    (a,), (b1, b2) = users
    private = Private(model, 1e-2, memory_budget=memory)
    own_loss(private, pack_texts([b1, a, b2]) | {"user_ids": torch.tensor([1, 0, 1])})
    assert worst_difference(private.released(), expected) < TOLERANCE


def test_microbatches_and_empty_ones_add_up():
    torch.manual_seed(11)
    model, users = gpt2(), some_users()
    expected = clipped_sum(model, users, CLIP)
    private = Private(model, CLIP)
    for part in ([], users[:1], users[1:], []):
        own_loss(private, one_row(part))
    assert worst_difference(private.released(), expected) < TOLERANCE
    criterion_loss(private, one_row([]))
    assert all(not value.any() for value in private.released().values())


@pytest.mark.parametrize("mixed_up", [False, True], ids=["together", "apart"])
def test_one_user_moves_the_sum_by_at_most_the_clip_norm(mixed_up):
    torch.manual_seed(11)
    users, clip = some_users(2, 1, 3), 1e-3  # all are clipped
    private = Private(gpt2(), clip)
    texts = [(owner, text) for owner, user in enumerate(users) for text in user]
    if mixed_up:
        texts = [texts[i] for i in (0, 3, 2, 4, 1, 5)]

    def released(left_out):
        kept = [(owner, text) for owner, text in texts if owner != left_out]
        own_loss(private, pack_texts([text for _, text in kept]) | {"user_ids": [owner for owner, _ in kept]})
        return private.released()

    whole = released(None)
    for left_out in (0, 2):  # the user in between has one token and nothing to predict
        without = released(left_out)
        moved = torch.sqrt(sum((whole[name] - without[name]).double().square().sum() for name in whole))
        assert 0.99 * clip < moved <= clip * (1 + 1e-5)


class SeesItsPadding(nn.Module):
    """Each text's tokens also take from the place after the text: gradients that come to padding are that text's."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x, after):
        h = torch.tanh(self.inner(x))
        return self.out(h + h.gather(1, after[..., None].expand_as(h)))


def test_gradients_that_come_to_padding_count():
    """After texts, before the first text of a row, and a row of nothing else."""
    torch.manual_seed(11)
    segments = torch.tensor([[-1, 0, 0, -1, 1, 1], [-1] * 6])
    units = torch.tensor([[0, 0, 0, 0, 1, 1], [1] * 6])
    after = torch.tensor([[3, 0, 3, 0, 5, 4], [0] * 6])  # within a unit's rows
    model, x, y = SeesItsPadding(), torch.randn(2, 6, 6), torch.randint(0, 3, (2, 6))
    twin, total = copy.deepcopy(model).double(), {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for unit in (0, 1):
        twin.zero_grad()
        losses = functional.cross_entropy(twin(x.double(), after).transpose(1, 2), y, reduction="none")
        losses[(units == unit) & (segments >= 0)].mean().backward()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in twin.parameters()))
        for name, p in twin.named_parameters():
            total[name] = total[name] + p.grad * min(1.0, 0.1 / float(norm))
    private = Private(model, 0.1)
    criterion = PrivateCriterion(private.engine, private.optimizer, nn.CrossEntropyLoss())
    criterion(private.module(x, after, segment_ids=segments).transpose(1, 2), y).backward()
    assert worst_difference(private.released(), total) < TOLERANCE


@pytest.mark.parametrize("way", [one_row, two_rows], ids=lambda way: way.__name__)
def test_two_forwards_of_the_same_texts_are_one_microbatch(way):
    """Dropout-free twins: the second forward doubles every unit's loss."""
    torch.manual_seed(11)
    model, users = gpt2(), some_users()
    expected = clipped_sum(model, users, CLIP / 2)
    private = Private(model, CLIP)
    (private.module(**way(users)).loss + private.module(**way(users)).loss).backward()
    found = private.released()
    assert worst_difference(found, {name: 2 * value for name, value in expected.items()}) < TOLERANCE


def test_an_evaluation_between_forward_and_backward_changes_nothing():
    torch.manual_seed(11)
    model, users = gpt2(), some_users()
    expected = clipped_sum(model, users, CLIP)
    private = Private(model, CLIP)
    for part in (users, []):
        loss = private.module(**one_row(part)).loss
        with torch.no_grad():
            private.module(torch.randint(0, 50, (3, 5)))
        loss.backward()
    assert worst_difference(private.released(), expected) < TOLERANCE


def test_checkpointed_layers_know_their_texts():
    torch.manual_seed(11)
    model, users = gpt2(), some_users()
    expected = clipped_sum(model, users, CLIP)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    private = Private(model, CLIP)
    own_loss(private, one_row(users))
    assert worst_difference(private.released(), expected) < TOLERANCE


def test_a_model_whose_texts_see_each_other_is_refused():
    torch.manual_seed(11)
    for users in (some_users(), some_users(lengths=[4, 4])):
        model = gpt2()
        private = Private(model, CLIP)
        batch = one_row(users)
        del batch["attention_mask"]  # and with a cache Transformers makes none of its own
        with pytest.raises(RuntimeError, match="across packed texts"):
            own_loss(private, batch)
        assert all(p.grad is None for p in model.parameters())


def test_padded_and_packed_are_checked_each():
    model = gpt2()
    private = Private(model, CLIP)
    ids = torch.randint(0, 50, (3, 5))
    own_loss(private, {"input_ids": ids, "labels": ids})
    batch = one_row(some_users())
    del batch["attention_mask"]
    with pytest.raises(RuntimeError, match="across packed texts"):
        own_loss(private, batch)


class Pooled(nn.Module):
    """Tokens of each text added up, then a layer for each text; position ids [1,T] and heads of its own."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, 8), nn.Embedding(16, 8)
        self.inner, self.heads, self.out = nn.Linear(8, 8), nn.LayerNorm(4), nn.Linear(8, 3)

    def forward(self, ids, segment_ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1])[None])
        x = self.heads(self.inner(x).unflatten(-1, (2, 4))).flatten(-2)
        text = (segment_ids + 10 * torch.arange(len(ids))[:, None]).unique(return_inverse=True)[1].flatten()
        pooled = x.new_zeros(int(text.max()) + 1, 8).index_add(0, text, x.flatten(0, 1))
        return self.out(torch.tanh(pooled))


def test_layers_of_texts_and_of_heads_and_positions_for_all_rows():
    torch.manual_seed(11)
    model, ids = Pooled(), torch.randint(0, 50, (2, 6))
    segments, labels = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 2, 2]]), torch.tensor([0, 1, 2, 0, 1])
    twin, total = copy.deepcopy(model).double(), {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for unit in range(5):
        twin.zero_grad()
        logits = twin(ids, segments)
        functional.cross_entropy(logits[unit : unit + 1], labels[unit : unit + 1]).backward()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in twin.parameters()))
        for name, p in twin.named_parameters():
            total[name] = total[name] + p.grad * min(1.0, CLIP / float(norm))
    private = Private(model, CLIP)
    criterion = PrivateCriterion(private.engine, private.optimizer, nn.CrossEntropyLoss())
    criterion(private.module(ids, segment_ids=segments), labels).backward()
    assert worst_difference(private.released(), total) < TOLERANCE


def test_evaluation_predicts_within_texts_alone():
    torch.manual_seed(11)
    model, users = gpt2().eval(), some_users()
    private = Private(model, CLIP)
    with torch.no_grad():
        found = private.module(**one_row(users)).loss
        losses = [model(input_ids=torch.tensor([text]), labels=torch.tensor([text])).loss * (len(text) - 1)
                  for text in texts_of(users) if len(text) > 1]  # fmt: skip
    torch.testing.assert_close(found, sum(losses) / (sum(LENGTHS) - len(LENGTHS)))


def test_a_criterion_in_evaluation_takes_each_batch_as_it_comes():
    private = Private(gpt2(), CLIP)
    own_loss(private, one_row(some_users()))
    criterion = PrivateCriterion(private.engine, private.optimizer, nn.CrossEntropyLoss())
    ids = torch.randint(0, 50, (3, 5))
    with torch.no_grad():
        assert len(criterion(private.module(ids).logits.transpose(1, 2), ids).loss_per_sample) == 3
        batch = one_row(some_users())
        targets = next_token_labels(batch.pop("labels"), batch["segment_ids"])
        assert len(criterion(private.module(**batch).logits.transpose(1, 2), targets).loss_per_sample) == len(LENGTHS)


def test_the_loader_draws_units_and_packs_them(tmp_path):
    """Poisson batches of users, empty ones among them, from a data set of users."""
    torch.manual_seed(11)
    model, users = gpt2(), some_users(*[2] * 8, lengths=[2, 3] * 8)
    engine = PrivacyEngine(accountant="rdp")
    module, optimizer, _, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        data_loader=DataLoader(users, batch_size=1, collate_fn=functools.partial(pack_texts, users=True)),
        grad_sample_mode="ghost",
    )  # fmt: skip
    sizes = set()
    for _ in range(3):
        for batch in loader:
            optimizer.zero_grad()
            module(**batch).loss.backward()
            optimizer.step()
            sizes.add(module.engine.packing.units)
    assert 0 in sizes and len(sizes) > 1
    assert engine.accountant.history == [(1.0, 0.125, 24)]
