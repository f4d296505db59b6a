"""Models that flatten what they are given, [units, n, ...] to [units·n, ...]: choices of a question, pictures of a film, sentences of
a text."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from models import class_loss
from private import Private
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, BertForMultipleChoice, RobertaConfig, RobertaForMultipleChoice

from ghostshard.ghost.rows import rows_in_arguments, rows_of_each


class Film(nn.Module):
    """[units, pictures, 3, 8, 8]"""

    def __init__(self, kernel=3, join=lambda x: x.flatten(0, 1), again=False):
        super().__init__()
        self.conv, self.norm, self.then = nn.Conv2d(3, 4, kernel), nn.GroupNorm(2, 4), nn.Conv2d(4, 6, 2, groups=2)
        self.wide, self.steps, self.out = nn.Linear(6, 5), nn.GRU(5, 4, batch_first=True), nn.Linear(4, 3)
        self.join, self.again = join, again

    def forward(self, films):
        def pictures(x):
            x = functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
            return self.wide(functional.adaptive_avg_pool2d(self.then(x), 1).squeeze(-1).squeeze(-1))

        x = self.join(films)
        x = checkpoint(pictures, x, use_reentrant=False) if self.again else pictures(x)
        return self.out(self.steps(x.view(*films.shape[:2], -1))[0][:, -1])


class Sentences(nn.Module):
    """[units, sentences, words]: an LSTM over each sentence's words, attention over its places, then over the sentences."""

    def __init__(self, again=False):
        super().__init__()
        self.words, self.places, self.read = nn.Embedding(11, 8), nn.Embedding(6, 8), nn.LSTM(8, 4, batch_first=True, bidirectional=True)
        self.keys, self.norm, self.out, self.again = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3), again

    def forward(self, ids):
        def sentence(flat):
            x = self.words(flat) + self.places(torch.arange(flat.shape[1]))
            x = self.read(x)[0]
            heads = self.keys(x).view(*x.shape[:2], 2, 4).transpose(1, 2)
            seen = functional.scaled_dot_product_attention(heads, heads, heads) + torch.softmax(heads @ heads.transpose(2, 3), -1) @ heads
            return self.norm(seen.transpose(1, 2).reshape(x.shape) + x).mean(1)

        flat = ids.view(-1, ids.shape[-1])
        x = checkpoint(sentence, flat, use_reentrant=False) if self.again else sentence(flat)
        return self.out(x.unflatten(0, ids.shape[:2]).mean(1))


def films(*units):
    return [(torch.randn(count, 4, 3, 8, 8), torch.randint(0, 3, (count,))) for count in units]


def texts(*units):
    return [(torch.randint(0, 11, (count, 3, 6)), torch.randint(0, 3, (count,))) for count in units]


MODELS = {
    "film": (Film, films), "film_of_wide_kernels": (lambda: Film(kernel=5), films), "film_by_view": (lambda: Film(join=lambda x: x.view(-1, 3, 8, 8)), films),
    "film_by_reshape": (lambda: Film(join=lambda x: x.reshape(-1, 3, 8, 8)), films), "film_again": (lambda: Film(again=True), films),
    "sentences": (Sentences, texts), "sentences_again": (lambda: Sentences(again=True), texts),
}  # fmt: skip


@pytest.mark.parametrize("make, batches", MODELS.values(), ids=MODELS)
def test_sums_are_those_of_each_example_alone(make, batches):
    torch.manual_seed(3)
    model, given = make(), batches(5, 1, 3)
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, given, 0.05)
    assert oracle.worst_difference(Private(model, 0.05).step(class_loss, given), expected) < SUM_TOLERANCE


SMALL = dict(vocab_size=11, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, hidden_dropout_prob=0.0,
             attention_probs_dropout_prob=0.0, max_position_embeddings=12)  # fmt: skip
CHOICES = {
    "bert": lambda: BertForMultipleChoice(BertConfig(**SMALL)), "eager": lambda: BertForMultipleChoice(BertConfig(**SMALL, attn_implementation="eager")),
    "roberta": lambda: RobertaForMultipleChoice(RobertaConfig(**SMALL, pad_token_id=0)),
}  # fmt: skip


@pytest.mark.parametrize("own_loss", [False, True], ids=["criterion", "labels"])
@pytest.mark.parametrize("make", CHOICES.values(), ids=CHOICES)
def test_choices(make, own_loss):
    torch.manual_seed(3)
    model = make()
    given = [(torch.randint(1, 11, (count, 3, 6)), (torch.rand(count, 3, 6) < 0.8).long(), torch.randint(0, 3, (count,))) for count in (4, 1, 2)]
    for _, mask, _ in given:
        mask[..., 0] = 1

    def loss(model, batch):
        ids, mask, labels = batch
        if own_loss:
            found = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            return getattr(found, "loss_per_sample", found)
        return functional.cross_entropy(model(input_ids=ids, attention_mask=mask).logits, labels, reduction="none")

    expected = oracle.clipped_sum(copy.deepcopy(model), loss, given, 0.05)
    assert oracle.worst_difference(Private(model, 0.05).step(loss, given), expected) < SUM_TOLERANCE


OUT_OF_ORDER = {
    "pictures_first": lambda x: x.transpose(0, 1).reshape(-1, 3, 8, 8), "a_copy_in_another_order": lambda x: x.flatten(0, 1).flip(0),
    "a_copy": lambda x: x.flatten(0, 1) * 1.0,
}  # fmt: skip


@pytest.mark.parametrize("join", OUT_OF_ORDER.values(), ids=OUT_OF_ORDER)
def test_rows_of_an_order_that_is_not_certain_are_refused(join):
    torch.manual_seed(3)
    with pytest.raises(ValueError, match=r"input must be \[5 units of this batch.*each example's rows stand together"):
        Private(Film(join=join), 0.3, attribution_check=False).step(class_loss, films(5))


def test_a_recomputed_layer_is_as_sure_as_its_first_forward_was():
    """Of another forward's extents it is not."""
    torch.manual_seed(3)
    model = Film(again=True)
    private = Private(model, 0.05, attribution_check=False)
    private.step(class_loss, films(5))
    model.join = OUT_OF_ORDER["pictures_first"]
    with pytest.raises(ValueError, match=r"input must be \[5 units"):
        private.step(class_loss, films(5))


ARGUMENT = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
VIEWS = {
    "flattened": (ARGUMENT.view(6, 4, 5), 3), "further": (ARGUMENT.view(24, 5), 12), "a_copy": (ARGUMENT.view(6, 4, 5).clone(), None),
    "transposed": (ARGUMENT.transpose(0, 1).reshape(6, 4, 5), None), "cut_elsewhere": (ARGUMENT.view(4, 30), 2), "a_part": (ARGUMENT.view(6, 4, 5)[:4], None),
    "as_another_type": (ARGUMENT.view(6, 4, 5).view(torch.float64), None),
}  # fmt: skip


@pytest.mark.parametrize("x, rows", VIEWS.values(), ids=VIEWS)
def test_which_rows_are_an_arguments(x, rows):
    assert rows_in_arguments(x, 2, ((ARGUMENT,), {"mask": None})) == rows


def flat(x):
    return x.reshape(-1, *x.shape[2:])


# Of x [5, 6, 4, 8], five units: functions of 30 rows, and how many each unit has if that is certain.
FUNCTIONS = {
    "pooled": (lambda x: functional.max_pool2d(flat(x).unsqueeze(1), 2), 6), "transposed_within": (lambda x: flat(x).transpose(1, 2), 6),
    "permuted_within": (lambda x: flat(x).permute(0, 2, 1), 6), "means": (lambda x: flat(x).mean((1,)), 6), "largest": (lambda x: flat(x).amax(-1), 6),
    "first": (lambda x: flat(x)[:, 0], 6), "joined": (lambda x: torch.cat([flat(x), flat(x)], 1), 6), "halves": (lambda x: flat(x).view(60, 2, 8), 12),
    "heads": (lambda x: (flat(x).view(30, 4, 2, 4).transpose(1, 2) @ flat(x).view(30, 4, 2, 4).permute(0, 2, 3, 1)), 6),
    "transposed": (lambda x: flat(x).transpose(0, 1).reshape(30, 32), None), "permuted": (lambda x: flat(x).permute(1, 0, 2).reshape(30, 32), None),
    "negative": (lambda x: flat(x).transpose(-3, 1).reshape(30, 32), None), "joined_along_rows": (lambda x: torch.cat([flat(x), flat(x)], 0), None),
    "sums_along_rows": (lambda x: flat(x).cumsum(0), None), "sums_along_rows_backwards": (lambda x: flat(x).cumsum(-3), None),
    "turned": (lambda x: flat(x).flip(0), None), "indexed": (lambda x: flat(x)[torch.arange(30)], None), "softmax": (lambda x: flat(x).softmax(-3), None),
    "of_two_extents": (lambda x: flat(x).flatten(1).softmax(-2), None), "broadcast": (lambda x: flat(x)[:1].expand(30, 4, 8), None),
    "added_across": (lambda x: x[:, 0, :, :6].mT.reshape(30, 4)[:, :, None] + x.mean((1, 2)).new_zeros(4, 8).requires_grad_() * 1, None),
    "one_for_all": (lambda x: flat(x) + flat(x).mean(0, keepdim=True), None), "units_last": (lambda x: x.permute(1, 0, 2, 3).reshape(30, 32), None),
}  # fmt: skip


@pytest.mark.parametrize("make, rows", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_that_keep_rows(make, rows):
    assert rows_of_each(make(torch.randn(5, 6, 4, 8, requires_grad=True) * 1), 5) == rows


def test_as_many_places_as_units_are_no_units():
    x = torch.randn(5, 5, 8, requires_grad=True) * 1
    assert rows_of_each(x.reshape(25, 8), 5) == 5 and rows_of_each(x.transpose(0, 1).reshape(25, 8), 5) is None


BETWEEN = {"nothing": lambda y: y, "relu": torch.relu, "scaled": lambda y: 2 * y, "within": lambda y: y.flip(2), "joined": lambda y: torch.cat([y, -y], 2)[..., :6]}


class TimeFirst(nn.Module):
    """Rows of all examples at one time after another."""

    def __init__(self, between):
        super().__init__()
        self.before, self.rows, self.out, self.between = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3), between

    def forward(self, x):
        y = self.between(self.before(x).transpose(0, 1))
        return self.out(self.rows(y.reshape(-1, 6)).view(y.shape).mean(0))


@pytest.mark.parametrize("times", [5, 10])
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_as_many_times_as_units_do_not_pass_for_them(between, times):
    """Without the check of gradients, which a later batch does not have."""
    torch.manual_seed(3)
    with pytest.raises(ValueError, match="rows.weight: the first extent must be that of the 5 units"):
        Private(TimeFirst(between), 0.3, attribution_check=False).step(class_loss, [(torch.randn(5, times, 6), torch.randint(0, 3, (5,)))])


class TurnedBack(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.rows, self.out = nn.LSTM(6, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        y = torch.tanh(self.read(x.transpose(0, 1))[0]).transpose(0, 1)
        return self.out(self.rows(y.reshape(-1, 4)).view(y.shape).mean(1))


def test_rows_that_were_turned_back_are_known_by_other_batches():
    torch.manual_seed(3)
    model, given = TurnedBack(), [(torch.randn(count, 5, 6), torch.randint(0, 3, (count,))) for count in (4, 5, 1)]
    expected = oracle.clipped_sum(copy.deepcopy(model), class_loss, given, 0.05)
    assert oracle.worst_difference(Private(model, 0.05).step(class_loss, given), expected) < SUM_TOLERANCE


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Conv1d(3, 4, 3), nn.Conv1d(3, 4, 2), nn.Linear(4, 3)

    def forward(self, x, first):
        tower = self.one if first else self.two
        y = checkpoint(lambda flat: torch.relu(tower(flat)).mean(2), x.flatten(0, 1), use_reentrant=False)
        return self.out(y.view(*x.shape[:2], 4).mean(1))


@pytest.mark.parametrize("second", [False, True], ids=["two_towers", "one_tower"])
def test_checkpoints_of_an_earlier_forward_under_the_loss(second):
    torch.manual_seed(3)
    model = Towers()
    given = [(torch.randn(count, 3, 3, 8), torch.randn(count, 5, 3, 8), torch.randint(0, 3, (count,))) for count in (4, 1, 3)]

    def loss(model, batch):
        return sum(functional.cross_entropy(model(batch[i], i == 0 or second), batch[2], reduction="none") for i in range(2))

    expected = oracle.clipped_sum(copy.deepcopy(model), loss, given, 0.05)
    assert oracle.worst_difference(Private(model, 0.05).step(loss, given), expected) < SUM_TOLERANCE


class Points(nn.Module):
    """Places along a ray, as a radiance field codes them: waves of each, flattened."""

    def __init__(self, before):
        super().__init__()
        self.before, self.layer = nn.Linear(3, 3) if before else nn.Identity(), nn.Linear(12, 3)

    def forward(self, rays):
        places = (self.before(rays)[:, None] * torch.linspace(0.1, 1, 5)[:, None]).reshape(-1, 3)
        waves = torch.cat([wave(places * 2**k) for k in range(2) for wave in (torch.sin, torch.cos)], -1)
        return self.layer(waves).view(len(rays), 5, 3).mean(1)


@pytest.mark.parametrize("before", [True, False], ids=["after a layer", "of the input"])
def test_waves_of_flattened_places_are_in_their_order(before):
    torch.manual_seed(2)
    model, rays, classes = Points(before), torch.randn(4, 3), torch.randint(0, 3, (4,))
    loss = lambda module, given: nn.functional.cross_entropy(module(given[0]), given[1], reduction="none")
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, [(rays, classes)], 0.5)
    if not before:
        with pytest.raises(ValueError, match=r"x\.requires_grad_\(\)"):
            Private(copy.deepcopy(model), 0.5).step(loss, [(rays, classes)])
        rays.requires_grad_()
    assert oracle.worst_difference(Private(model, 0.5).step(loss, [(rays, classes)]), expected) < SUM_TOLERANCE


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(6, 2), nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

    def forward(self, x):
        flat = x.reshape(-1, 6)
        chosen, found = self.router(flat).argmax(-1), flat.new_zeros(len(flat), 3)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero()[:, 0]
            found.index_add_(0, places, expert(flat[places]))
        return found.view(len(x), -1, 3).mean(1)


def test_rows_that_a_module_chooses_name_the_way_out():
    torch.manual_seed(2)
    batch = (torch.randn(4, 5, 6), torch.randint(0, 3, (4,)))
    loss = lambda module, given: nn.functional.cross_entropy(module(given[0]), given[1], reduction="none")
    with pytest.raises((RuntimeError, ValueError), match=r"register_rule\(TheModule\)\(ghostshard.per_example\)"):
        Private(Experts(), 0.5).step(loss, [batch])
