"""How far a batch is padded follows from its longest example: models, loops and criterions that it moves are refused, those that mask are not."""

import copy
import itertools

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine

N, V, H = 32, 11, 6
REFUSED = "how far a batch is padded follows from its longest example"


class Texts:
    """Tokens from 1 to V - 1, of lengths from 3 to 9, and a class."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randint(1, V, (3 + i % 7,), generator=g), i % 3


class Varied(Texts):
    """Lengths up to 16, the longest of two examples alone."""

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randint(1, V, (3 + i % 14,), generator=g), i % 3


def right(examples):
    x = pad_sequence([x for x, _ in examples], batch_first=True)
    return {"x": x, "mask": x != 0, "y": torch.tensor([y for _, y in examples])}


def left(examples):
    x = pad_sequence([x.flip(0) for x, _ in examples], batch_first=True).flip(1)
    return {"x": x, "mask": x != 0, "y": torch.tensor([y for _, y in examples])}


def sorted_by_length(examples):
    return right(sorted(examples, key=lambda each: -len(each[0])))


def time_first(examples):
    batch = right(examples)
    return {"x": batch["x"].T.contiguous(), "mask": batch["mask"].T.contiguous(), "y": batch["y"]}


def to_nine(examples):
    batch = right(examples)
    return batch | {name: F.pad(batch[name], (0, 9 - batch[name].shape[1])) for name in ("x", "mask")}


def in_columns(examples):
    return tuple(right(examples).values())


class Model(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.embedding, self.rows, self.head = nn.Embedding(V, H), nn.Linear(H, H), nn.Linear(H, 3)
        self.recurrent, self.attention = nn.GRU(H, H, batch_first=True), nn.MultiheadAttention(H, 2, batch_first=True)
        self.convolution, self.tokens = nn.Conv1d(H, H, 3, padding=1), nn.Linear(H, V)
        self.of = forward
        for name, part in list(self.named_children()):
            if name not in forward.__code__.co_names:
                part.requires_grad_(False)

    def forward(self, x, mask=None):
        return self.of(self, x, mask)


def run_of(model, collate, criterion=None, workers=0, data=None, **options):
    torch.manual_seed(0)
    engine = PrivacyEngine(accountant="rdp")
    private = engine.make_private(
        module=model, optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
        data_loader=DataLoader(data or Texts(), batch_size=12, collate_fn=collate, num_workers=workers), noise_multiplier=1.0, max_grad_norm=1.0,
        grad_sample_mode="ghost", criterion=criterion or nn.CrossEntropyLoss(), **options,
    )  # fmt: skip
    return private[0], private[1], private[2], private[3]


def steps(loss, run, count=8):
    """Two extents may be alike by chance, and then a batch shows nothing."""
    module, optimizer, criterion, loader = run
    taken = 0
    while taken < count:
        for batch in itertools.islice(loader, count - taken):
            taken += 1
            optimizer.zero_grad()
            loss(module, criterion, batch).backward()
            optimizer.step()


def classes(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"]), batch["y"])


# Within the model -------------------------------------------------------------------------------------------------------


def mean_of_all(self, x, mask):
    return self.head(self.embedding(x).mean(1))


def mean_of_its_own(self, x, mask):
    return self.head((self.embedding(x) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def masked_sum_over_all(self, x, mask):
    return self.head((self.embedding(x) * mask[..., None]).sum(1) / x.shape[1])


def last_place(self, x, mask):
    return self.head(self.recurrent(self.embedding(x))[0][:, -1])


def last_of_its_own(self, x, mask):
    states = self.recurrent(self.embedding(x))[0]
    return self.head(states[torch.arange(len(x)), mask.sum(1) - 1])


def seen_by_all(self, x, mask):
    h = self.embedding(x)
    return self.head(self.attention(h, h, h)[0][:, 0])


def seen_where_masked(self, x, mask):
    h = self.embedding(x)
    return self.head(self.attention(h, h, h, key_padding_mask=~mask)[0][:, 0])


def largest_of_all(self, x, mask):
    return self.head(F.relu(self.convolution(self.embedding(x).transpose(1, 2))).amax(2))


def largest_of_its_own(self, x, mask):
    h = self.convolution((self.embedding(x) * mask[..., None]).transpose(1, 2))
    return self.head(h.masked_fill(~mask[:, None], -1e9).amax(2))


@pytest.mark.parametrize("forward", [mean_of_all, masked_sum_over_all, last_place, seen_by_all, largest_of_all], ids=lambda each: each.__name__)
@pytest.mark.parametrize("collate", [right, sorted_by_length], ids=lambda each: each.__name__)
def test_a_model_that_padding_moves_is_refused(forward, collate):
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(classes, run_of(Model(forward), collate))


@pytest.mark.parametrize("forward", [mean_of_its_own, last_of_its_own, seen_where_masked, largest_of_its_own], ids=lambda each: each.__name__)
@pytest.mark.parametrize("collate", [right, sorted_by_length], ids=lambda each: each.__name__)
def test_a_model_that_masks_is_taken(forward, collate, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    steps(classes, run_of(Model(forward), collate), 6)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_tell_it_too(workers):
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(classes, run_of(Model(mean_of_all), right, workers=workers))
    steps(classes, run_of(Model(mean_of_its_own), right, workers=workers))


def test_padding_on_the_left():
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(classes, run_of(Model(mean_of_all), left))
    steps(classes, run_of(Model(mean_of_its_own), left))
    steps(classes, run_of(Model(lambda self, x, mask: self.head(self.embedding(x)[:, -1])), left))


def test_one_length_for_all_may_be_averaged_over(monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    steps(classes, run_of(Model(mean_of_all), to_nine), 4)


def test_in_pieces_of_a_draw():
    module, optimizer, criterion, loader = run_of(Model(mean_of_all), right, accumulation_steps=2)
    with pytest.raises(RuntimeError, match=REFUSED):
        for taken, batch in enumerate(itertools.chain(loader, loader, loader)):
            classes(module, criterion, batch).backward()
            if taken % 2:
                optimizer.step()
                optimizer.zero_grad()


def test_columns_without_names_and_moved_rows():
    def loss(module, criterion, batch, moved=False):
        x, mask, y = batch
        order = torch.randperm(len(x)) if moved else torch.arange(len(x))
        return criterion(module(x[order], mask[order]), y[order])

    for moved in (False, True):
        steps(lambda *given: loss(*given, moved=moved), run_of(Model(mean_of_its_own), in_columns))
        with pytest.raises(RuntimeError, match=REFUSED):
            steps(lambda *given: loss(*given, moved=moved), run_of(Model(mean_of_all), in_columns))


def test_the_loaders_collate_fn_serves_an_evaluation():
    """What it tells the engine is not part of a batch."""
    *_, loader = run_of(Model(mean_of_its_own), in_columns)
    for x, mask, y in itertools.chain(loader, DataLoader(Texts(), batch_size=8, collate_fn=loader.collate_fn), [loader.collate_fn([Texts()[i] for i in range(5)])]):
        assert x.shape == mask.shape and len(y) == len(x)


def test_a_collate_fn_that_takes_no_example_alone_is_taken():
    def of_several(examples):
        assert len(examples) > 1
        return right(examples)

    steps(classes, run_of(Model(mean_of_its_own), of_several), 4)


def test_time_first():
    forward = lambda self, x, mask: self.head(self.embedding(x).mean(0, keepdim=True))[0]
    masked = lambda self, x, mask: self.head((self.embedding(x) * mask[..., None]).sum(0, keepdim=True) / mask.sum(0)[:, None])[0]
    steps(classes, run_of(Model(masked), time_first, batch_first=False))
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(classes, run_of(Model(forward), time_first, batch_first=False))


def test_a_packed_recurrent_layer_is_taken():
    def forward(self, x, mask):
        packed = pack_padded_sequence(self.embedding(x), mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        return self.head(pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)[0].sum(1))

    steps(classes, run_of(Model(forward), right))


@pytest.mark.parametrize("by", ["mask", "examples"])
def test_a_packed_layer_that_is_as_long_as_its_longest_example(by):
    """No batch without that one fits its mask."""

    def forward(self, x, mask):
        mask = x != 0 if by == "examples" else mask
        packed = pack_padded_sequence(self.embedding(x), mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        states = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)[0]
        return self.head((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))

    steps(classes, run_of(Model(forward), right), 6)


def test_it_is_looked_at_when_lengths_first_differ():
    """In a batch whose examples are all of one length, nothing shows."""

    class Growing(Texts):
        late = False

        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return (x if Growing.late else x[:3]), y

    model = Model(mean_of_all)
    engine = PrivacyEngine(accountant="rdp")
    *run, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1), noise_multiplier=1.0,
        data_loader=DataLoader(Growing(), batch_size=12, collate_fn=right), max_grad_norm=1.0, grad_sample_mode="ghost",
        criterion=nn.CrossEntropyLoss(),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=REFUSED):
        for taken, batch in enumerate(itertools.chain(loader, loader, loader)):
            Growing.late = taken >= 1
            steps(classes, (*run, [batch]), 1)


# Between model and criterion, and in it ---------------------------------------------------------------------------------


def places(self, x, mask):
    return self.rows(self.embedding(x))


def logits(self, x, mask):
    return self.tokens(self.embedding(x))


def pooled(module, criterion, batch):
    return criterion(module(batch["x"])[..., :3].mean(1), batch["y"])


def pooled_where_masked(module, criterion, batch):
    mask = batch["mask"][..., None]
    return criterion((module(batch["x"])[..., :3] * mask).sum(1) / mask.sum(1), batch["y"])


def of_the_last(module, criterion, batch):
    return criterion(module(batch["x"])[:, -1, :3], batch["y"])


def all_tokens(module, criterion, batch):
    out = module(batch["x"])
    return criterion(out.reshape(-1, V), batch["x"].reshape(-1), shape=out.shape)


def next_tokens(module, criterion, batch):
    out, y = module(batch["x"][:, :-1]), batch["x"][:, 1:]
    return criterion(out.transpose(1, 2), y)


def series(module, criterion, batch):
    return criterion(module(batch["x"]), batch["x"].float()[..., None].expand(-1, -1, H))


def masked_series(module, criterion, batch):
    return criterion(module(batch["x"]) * batch["mask"][..., None], (batch["x"] * batch["mask"]).float()[..., None].expand(-1, -1, H))


def masked_mean_over_all(module, criterion, batch):
    return criterion((module(batch["x"])[..., :3] * batch["mask"][..., None]).mean(1), batch["y"])


class OverAllPlaces(nn.Module):
    def forward(self, out, y):
        return F.cross_entropy(out, y, ignore_index=0, reduction="none").sum(1) / y.shape[1]


REFUSED_LOOPS = {
    "mean in the loop": (places, pooled, None), "last place in the loop": (places, of_the_last, None),
    "padding is a target": (logits, all_tokens, None), "padding is the next token": (logits, next_tokens, None),
    "series": (places, series, nn.MSELoss()), "masked series over all places": (places, masked_series, nn.MSELoss()),
    "mean of what a mask made zeros": (places, masked_mean_over_all, None),
    "of its own, over all places": (logits, next_tokens, OverAllPlaces()),
}  # fmt: skip


@pytest.mark.parametrize("forward, loss, criterion", REFUSED_LOOPS.values(), ids=REFUSED_LOOPS)
def test_a_loop_that_padding_moves_is_refused(forward, loss, criterion, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    with pytest.raises((RuntimeError, ValueError), match=REFUSED):
        steps(loss, run_of(Model(forward), right, criterion, data=Varied()), 24)


TAKEN_LOOPS = {
    "masked mean in the loop": (places, pooled_where_masked, None),
    "padding is ignored": (logits, all_tokens, nn.CrossEntropyLoss(ignore_index=0)),
    "padding is ignored as a next token": (logits, next_tokens, nn.CrossEntropyLoss(ignore_index=0)),
    "sum of masked series": (places, masked_series, nn.MSELoss(reduction="sum")),
}


@pytest.mark.parametrize("forward, loss, criterion", TAKEN_LOOPS.values(), ids=TAKEN_LOOPS)
def test_a_loop_that_masks_is_taken(forward, loss, criterion, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    reduction = {"loss_reduction": "sum"} if getattr(criterion, "reduction", "") == "sum" else {}
    steps(loss, run_of(Model(forward), right, criterion, **reduction), 6)


def test_a_number_of_places_is_no_constant():
    """In the third batch at the latest, as one may go with it by chance."""

    def divided(module, criterion, batch):
        out = (module(batch["x"])[..., :3] * batch["mask"][..., None]).sum(1) / batch["x"].shape[1]
        return criterion(out, batch["y"])

    def by_a_tensor(module, criterion, batch):
        out = (module(batch["x"])[..., :3] * batch["mask"][..., None]).sum(1) / torch.tensor(batch["x"].shape[1])
        return criterion(out, batch["y"])

    def by_a_product(module, criterion, batch):
        out = (module(batch["x"])[..., :3] * batch["mask"][..., None]).transpose(1, 2)
        return criterion(out @ torch.full((batch["x"].shape[1],), 1 / batch["x"].shape[1]), batch["y"])

    def loss_divided(module, criterion, batch):
        return pooled_where_masked(module, criterion, batch) / batch["x"].shape[1]

    class Lengths(Texts):
        longest = 9

        def __getitem__(self, i):
            return torch.full((self.longest - i % 2,), 1 + i % 5), i % 3

    for loss in (divided, by_a_tensor, by_a_product, loss_divided):
        *run, loader = run_of(Model(places), right, data=(data := Lengths()))
        batches = iter(loader)
        with pytest.raises((RuntimeError, ValueError), match="goes with how far the batch is padded"):
            for data.longest in (9, 7, 5, 8, 6):
                steps(loss, (*run, [next(batches)]), 1)
        assert data.longest == 5


# Hugging Face -----------------------------------------------------------------------------------------------------------


def gpt2():
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=V, n_positions=16, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.1, pad_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def bert():
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=V, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, max_position_embeddings=16, num_labels=3, initializer_range=0.5
    )
    return transformers.BertForSequenceClassification(config)


def t5():
    torch.manual_seed(1)
    config = transformers.T5Config(vocab_size=V, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


def with_labels(collate, ignored):
    def collated(examples):
        batch = collate(examples)
        labels = batch["x"].masked_fill(~batch["mask"], -100) if ignored else batch["x"].clone()
        return {"input_ids": batch["x"], "attention_mask": batch["mask"].long(), "labels": labels}

    return collated


def with_classes(*, masked):
    def collated(examples):
        batch = right(examples)
        mask = {"attention_mask": batch["mask"].long()} if masked else {}
        return {"input_ids": batch["x"], "labels": batch["y"], **mask}

    return collated


def in_pairs(examples):
    """Sources and targets have lengths of their own."""
    batch = with_labels(right, True)(examples)
    targets = pad_sequence([x.flip(0)[: 2 + int(x.sum()) % 5] for x, _ in examples], batch_first=True)
    return batch | {"labels": targets.masked_fill(targets == 0, -100)}


TRANSFORMERS_REFUSED = {
    "gpt2, padding is a target": (gpt2, with_labels(right, False)), "gpt2, on the left without positions": (gpt2, with_labels(left, True)),
    "bert without a mask": (bert, with_classes(masked=False)),
}  # fmt: skip
TRANSFORMERS_TAKEN = {
    "gpt2": (gpt2, with_labels(right, True)), "bert": (bert, with_classes(masked=True)), "t5": (t5, with_labels(right, True)), "t5 in pairs": (t5, in_pairs),
}  # fmt: skip


def of_the_model(module, criterion, batch):
    return module(**batch).loss


@pytest.mark.parametrize("model, collate", TRANSFORMERS_REFUSED.values(), ids=TRANSFORMERS_REFUSED)
def test_a_transformer_that_padding_moves_is_refused(model, collate):
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(of_the_model, run_of(model(), collate))


@pytest.mark.parametrize("model, collate", TRANSFORMERS_TAKEN.values(), ids=TRANSFORMERS_TAKEN)
def test_a_transformer_that_masks_is_taken(model, collate, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    steps(of_the_model, run_of(model(), collate), 4)


@pytest.mark.parametrize("model", [bert, gpt2], ids=lambda each: each.__name__)
def test_outputs_that_nobody_takes_may_have_gradients(model, monkeypatch):
    """Attention at padded places goes into what is masked later."""
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    made = model()
    made.config._attn_implementation, made.config.output_attentions, made.config.output_hidden_states = "eager", True, True
    steps(of_the_model, run_of(made, with_classes(masked=True) if model is bert else with_labels(right, True)), 4)


# What looks like padding and is none, and what does not look like it and is ----------------------------------------------


class Modes(nn.Module):
    """Gives something else while it trains."""

    def __init__(self, training, evaluating):
        super().__init__()
        self.embedding, self.head, self.of = nn.Embedding(V, H), nn.Linear(H, 3), (evaluating, training)

    def forward(self, x, mask):
        h = self.head(self.embedding(x))
        pooled = (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return {"pooled": pooled, "places": h, "both": (pooled, h), "turned": (h, pooled), "losses": pooled.sum(1)}[self.of[self.training]]


def of_modes(module, criterion, batch):
    out = module(batch["x"], batch["mask"])
    out = out[0] if isinstance(out, tuple) else out
    return criterion(out if out.dim() > 1 else out[:, None].expand(-1, 3), batch["y"])


def forgotten_dropout(self, x, mask):
    return self.head(F.dropout((self.embedding(x) * mask[..., None]), 0.1).sum(1) / mask.sum(1, keepdim=True))


def noisy(self, x, mask):
    h = self.embedding(x) + 0.1 * torch.randn(len(x), x.shape[1], H)
    return self.head((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def masked_places(self, x, mask):
    return self.head(self.embedding(x)) * mask[..., None]


def nine(self, x, mask):
    return self.tokens((self.embedding(x) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))[:, :9]


def centred(module, criterion, batch):
    out = module(batch["x"], batch["mask"])
    return criterion(out - out.mean(-1, keepdim=True), batch["y"])


def summed(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"]).sum(1) / batch["mask"].sum(1, keepdim=True), batch["y"])


class Rough(Model):
    """Attends in bfloat16."""

    def __init__(self):
        super().__init__(seen_where_masked)

    def forward(self, x, mask):
        with torch.autocast("cpu", torch.bfloat16):
            h = self.embedding(x)
            for _ in range(4):
                h = h + self.attention(h, h, h, key_padding_mask=~mask)[0]
        return self.head(h[:, 0].float())


class DropsTokens(nn.Module):
    def forward(self, out, y):
        return F.cross_entropy(out, y, ignore_index=0, reduction="none") * (torch.rand(y.shape) > 0.1)


APART = {
    "losses in training": (Modes("losses", "places"), of_modes, None), "pooled in training": (Modes("pooled", "places"), of_modes, None),
    "in another order": (Modes("both", "turned"), of_modes, None), "dropout that is always on": (forgotten_dropout, classes, None), "noise for each place": (noisy, classes, None),
    "masked by the model": (masked_places, summed, None), "in bfloat16": (Rough(), classes, None), "as many classes as places": (nine, centred, None),
    "tokens are dropped": (logits, next_tokens, DropsTokens(), {"loss_reduction": "sum"}),
}  # fmt: skip


@pytest.mark.parametrize("case", APART.values(), ids=APART)
def test_what_only_looks_like_padding_is_taken(case, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)
    forward, loss, criterion, *options = case
    for _ in range(2):
        model = forward if isinstance(forward, nn.Module) else Model(forward)
        steps(loss, run_of(copy.deepcopy(model), right, criterion, **(options[0] if options else {})), 5)


def strided(self, x, mask):
    return F.conv1d(self.embedding(x).transpose(1, 2), torch.eye(H)[..., None].expand(-1, -1, 3) / 3, stride=2, padding=1).transpose(1, 2)


def in_pairs_of_places(self, x, mask):
    h = self.embedding(F.pad(x, (0, x.shape[1] % 2)))
    return h.unflatten(1, (-1, 2)).flatten(2)[..., :H]


def with_prompts(self, x, mask):
    h = self.embedding(x)
    return self.rows(torch.cat([torch.ones(len(x), 4, H), h], 1))


def masked_and_flat(self, x, mask):
    return (self.rows(self.embedding(x)) * mask[..., None]).flatten(1)


def encoded(self, x, mask):
    return self.encoder(self.embedding(x), src_key_padding_mask=~mask)


class Encoder(Model):
    def __init__(self):
        super().__init__(encoded)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(H, 2, 8, batch_first=True), 2)


class GraphMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(H, 3)

    def forward(self, x, mask):
        near = (x[:, :, None] + x[:, None]).float().clamp(max=1)  # [units, T, T]
        return self.layer((near @ F.one_hot(x, V).float()[..., :H]).mean(1))


def adjacent(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"]), batch["y"])


def mean_over(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"])[..., :3].mean(1), batch["y"])


def last_of(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"])[:, -1, :3], batch["y"])


def sum_by_own(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"])[..., :3].sum(1) / batch["mask"].sum(1, keepdim=True), batch["y"])


def flat_mean(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"]).mean(1, keepdim=True) * torch.ones(3), batch["y"])


def flat_series(module, criterion, batch):
    out = module(batch["x"], batch["mask"])
    return criterion(out, (batch["x"] * batch["mask"]).float()[..., None].expand(-1, -1, H).flatten(1))


def less_one(module, criterion, batch):
    out = module(batch["x"], batch["mask"])[..., :3] * batch["mask"][..., None]
    return criterion(out.sum(1) / (batch["x"].shape[1] - 1), batch["y"])


def average_pool(module, criterion, batch):
    out = (module(batch["x"], batch["mask"]) * batch["mask"][..., None]).transpose(1, 2)
    return criterion(F.adaptive_avg_pool1d(out, 1)[:, :3, 0], batch["y"])


MOVED = {
    "last of strided": (strided, last_of, None), "mean of strided": (strided, mean_over, None), "mean of pairs": (in_pairs_of_places, mean_over, None),
    "mean with prompts": (with_prompts, mean_over, None), "mean of flat ones": (masked_and_flat, flat_mean, None), "flat series": (masked_and_flat, flat_series, nn.MSELoss()),
    "by one place less": (places, less_one, None), "pooled on average": (places, average_pool, None), "sum of an encoder's": (Encoder(), sum_by_own, None),
    "nodes of a graph": (GraphMean(), adjacent, None),
}  # fmt: skip


@pytest.mark.parametrize("forward, loss, criterion", MOVED.values(), ids=MOVED)
def test_what_does_not_look_like_padding_is_refused(forward, loss, criterion, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    model = copy.deepcopy(forward) if isinstance(forward, nn.Module) else Model(forward)
    with pytest.raises((RuntimeError, ValueError), match=f"{REFUSED}|goes with how far the batch is padded"):
        steps(loss, run_of(model, right, criterion, data=Varied()), 24)


def test_the_row_of_padding_has_no_noise():
    """So that a sum over padded places stays each example's own, as without privacy."""

    class Padded(Model):
        def __init__(self, idx):
            super().__init__(lambda self, x, mask: self.head(self.embedding(x).sum(1) / mask.sum(1, keepdim=True)))
            self.embedding = nn.Embedding(V, H, padding_idx=idx)
            self.head.requires_grad_(True)

    model = Padded(0)
    before = model.embedding.weight.detach().clone()
    steps(classes, run_of(model, right), 8)
    assert not model.embedding.weight[0].any() and bool((model.embedding.weight[1:] != before[1:]).all())


def test_a_head_of_zeros_tells_nothing(monkeypatch):
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 10**9)  # not by lot

    class Zeros(Model):
        def __init__(self):
            super().__init__(mean_of_all)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    for _ in range(3):  # a first batch that shows nothing is followed by one whose head is not zero any more
        with pytest.raises(RuntimeError, match=REFUSED):
            steps(classes, run_of(Zeros(), right), 8)


def test_criterions_and_generators_stay_what_they_were():
    class Counts(nn.Module):
        calls = 0

        def forward(self, out, y):
            self.calls += 1
            return F.cross_entropy(out, y, ignore_index=0, reduction="none").sum(1)

    module, _, criterion, loader = run_of(Model(logits), right, Counts(), loss_reduction="sum")
    loss = next_tokens(module, criterion, next(iter(loader)))
    before = torch.get_rng_state()
    loss.backward()
    assert criterion.criterion.calls == 1 and torch.equal(torch.get_rng_state(), before)
