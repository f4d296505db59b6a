"""What a padded place does near an example's end may not move with how many follow: a batch's shortest examples are looked at when nothing pads them."""

import pytest
import torch
import transformers
from padded_texts import REFUSED, H, V, classes, right, run_of, steps
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

BLOCK = 4


class OfLengths:
    """Twelve texts, as many as a batch has, so that each draw has them all. The longest of the shorter half fills its blocks."""

    def __init__(self, *lengths):
        self.lengths = (lengths or (20, 14, 20, 16)) * (12 // len(lengths or range(4)))

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return torch.randint(1, V, (self.lengths[i],), generator=torch.Generator().manual_seed(i)), i % 3


ONE_SHORTEST = OfLengths(20, 14, 20, 16, 20, 16, 20, 16, 20, 16, 20, 16)
BESIDE_ONE_WORD = OfLengths(20, 1, 14, 16, 20, 14, 16, 20, 16, 16, 20, 16)


class Sounds(OfLengths):
    """Frames, and four words."""

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(self.lengths[i], 8, generator=g), torch.randint(3, V, (4,), generator=g)


class FourTexts(OfLengths):
    """Each three times. The one of 16 words has attention that passes over its end."""

    def __getitem__(self, i):
        return torch.randint(1, V, (self.lengths[i],), generator=torch.Generator().manual_seed(200 + i % 4)), i % 3


def sounds(examples):
    frames, words = zip(*examples)
    mask = pad_sequence([torch.ones(len(x), dtype=torch.long) for x in frames], batch_first=True)
    return {"input_features": pad_sequence(frames, batch_first=True), "attention_mask": mask, "labels": torch.stack(words)}


def with_classes(examples):
    batch = right(examples)
    return {"input_ids": batch["x"], "attention_mask": batch["mask"].long(), "labels": batch["y"]}


def speech2text():
    """Its second convolution sees what the first one makes of padding, of which a sound of 19 frames beside one of 20 has none: strides are of two."""
    torch.manual_seed(1)
    config = transformers.Speech2TextConfig(
        vocab_size=V, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        input_feat_per_channel=8, conv_channels=16, max_source_positions=64, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=2, init_std=0.1,
    )  # fmt: skip
    return transformers.Speech2TextForConditionalGeneration(config)


def convbert():
    """Its convolution over spans sees padded places."""
    torch.manual_seed(3)
    config = transformers.ConvBertConfig(
        vocab_size=V, hidden_size=16, embedding_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, head_ratio=1, conv_kernel_size=3,
        max_position_embeddings=32, num_labels=3, initializer_range=0.7, pad_token_id=0,
    )  # fmt: skip
    return transformers.ConvBertForSequenceClassification(config)


def of_the_model(module, criterion, batch):
    return module(**batch).loss


class Texts(nn.Module):
    def __init__(self, layer, masks):
        super().__init__()
        self.embedding, self.layer, self.head, self.masks = nn.Embedding(V, H), layer, nn.Linear(H, 3), masks

    def embedded(self, x, mask):
        return self.embedding(x) * mask[..., None] if self.masks else self.embedding(x)


def in_blocks(value, extent):
    """The last one is filled up with zeros."""
    return F.pad(value, (0, 0) * (value.dim() - 2) + (0, -value.shape[1] % extent)).unflatten(1, (-1, extent))


def mean_of_own(h, mask, extent=1):
    own = in_blocks(mask, extent).any(2)
    return (h * own[..., None]).sum(1) / own.sum(1, keepdim=True)


class Blocks(Texts):
    def __init__(self, masks):
        super().__init__(nn.Linear(H, H), masks)

    def forward(self, x, mask):
        h = torch.tanh(self.layer(in_blocks(self.embedded(x, mask), BLOCK).sum(2)))
        return self.head(mean_of_own(h, mask, BLOCK))


class Squeezed(Blocks):
    """A number for each, without the dimension of the batch if that is one."""

    def forward(self, x, mask):
        return super().forward(x, mask).sum(1, keepdim=True).squeeze()


class Strides(Texts):
    def __init__(self, masks):
        super().__init__(nn.Conv1d(H, H, 3, stride=2, padding=1), masks)

    def forward(self, x, mask):
        return self.head(self.layer(self.embedded(x, mask).transpose(1, 2)).transpose(1, 2))


class Convolution(Texts):
    def __init__(self, masks):
        super().__init__(nn.Conv1d(H, H, 3, padding=1), masks)

    def forward(self, x, mask):
        return self.head(mean_of_own(torch.tanh(self.layer(self.embedded(x, mask).transpose(1, 2)).transpose(1, 2)), mask))


class Sink(Texts):
    """Every sixteenth place is seen, whosever it is."""

    def __init__(self, masks):
        super().__init__(nn.MultiheadAttention(H, 2, batch_first=True), masks)

    def forward(self, x, mask):
        h = self.embedding(x)
        sinks = (torch.arange(x.shape[1]) % 16 == 15) & (not self.masks)
        return self.head(self.layer(h, h, h, key_padding_mask=~(mask | sinks))[0][:, 0])


class Packed(Texts):
    def __init__(self):
        super().__init__(nn.LSTM(H, H, batch_first=True), True)

    def forward(self, x, mask):
        states = self.layer(pack_padded_sequence(self.embedding(x), mask.sum(1).cpu(), batch_first=True, enforce_sorted=False))[0]
        return self.head(mean_of_own(pad_packed_sequence(states, batch_first=True)[0], mask))


class Encoded(Texts):
    def __init__(self):
        super().__init__(nn.TransformerEncoder(nn.TransformerEncoderLayer(H, 2, 8, batch_first=True), 1, enable_nested_tensor=False), True)

    def forward(self, x, mask):
        return self.head(mean_of_own(self.layer(self.embedding(x), src_key_padding_mask=~mask), mask))


class NotOfFew(Blocks):
    """Takes no batch of fewer places, which it divides by."""

    def __init__(self, masks, least):
        super().__init__(masks)
        self.least = least

    def forward(self, x, mask):
        return super().forward(x, mask) * (x.shape[1] // max(x.shape[1] + 1 - self.least, 0) > 0)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(V, H), nn.Linear(H, V)

    def forward(self, x, mask):
        return self.head(self.embedding(x))


class OfBlocks(nn.Module):
    """A mean over the words of a text, or over all places of the blocks in which it has words."""

    def __init__(self, masks):
        super().__init__()
        self.masks = masks

    def forward(self, out, y):
        there = y > 0
        counted = there if self.masks else torch.ones_like(there)
        places = (in_blocks(counted, BLOCK).sum(2) * in_blocks(there, BLOCK).any(2)).sum(1)
        return (F.cross_entropy(out, y, reduction="none") * there).sum(1) / places


def of_strides(module, criterion, batch):
    return criterion(mean_of_own(module(batch["x"], batch["mask"]), batch["mask"], 2), batch["y"])


def of_numbers(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"])[:, None].expand(-1, 3), batch["y"])


def of_words(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"]).transpose(1, 2), batch["x"])


def of_next_words(module, criterion, batch):
    return criterion(module(batch["x"], batch["mask"])[:, :-1].transpose(1, 2), batch["x"][:, 1:])


EITHER = {
    "blocks": (Blocks, classes, right, OfLengths()),
    "blocks, one shortest": (Blocks, classes, right, ONE_SHORTEST), "squeezed, one shortest": (Squeezed, of_numbers, right, ONE_SHORTEST),
    "strides": (Strides, of_strides, right, OfLengths(20, 15, 20, 17)),
    "beside a text of one word": (lambda masks: NotOfFew(masks, 3), classes, right, BESIDE_ONE_WORD), "sink": (Sink, classes, right, OfLengths()),
    "convolution": (Convolution, classes, right, OfLengths()), "convolution, two lengths": (Convolution, classes, right, OfLengths(20, 14)),
}  # fmt: skip
MODELS = {"speech2text": (speech2text, sounds, Sounds(20, 14, 20, 19)), "convbert": (convbert, with_classes, FourTexts())}
TAKEN = {
    "packed": (Packed, OfLengths()), "encoder": (Encoded, OfLengths()), "texts of a word or two": (lambda: Blocks(True), OfLengths(20, 1, 2, 9)),
    "no batch of few places": (lambda: NotOfFew(True, 16), OfLengths()),
}  # fmt: skip


@pytest.fixture(autouse=True)
def looked_at_each_time(monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 1)
    monkeypatch.setattr("ghostshard.ghost.checks.gradients._PADDED_AGAIN", 1)


@pytest.mark.parametrize("model, loss, collate, data", EITHER.values(), ids=EITHER)
def test_the_last_places_see_no_padding(model, loss, collate, data):
    torch.manual_seed(0)
    steps(loss, run_of(model(True), collate, data=data), 2)
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(loss, run_of(model(False), collate, data=data), 1)


@pytest.mark.parametrize("model, collate, data", MODELS.values(), ids=MODELS)
def test_transformers_whose_last_places_do_are_refused(model, collate, data):
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(of_the_model, run_of(model(), collate, data=data), 1)


@pytest.mark.parametrize("model, data", TAKEN.values(), ids=TAKEN)
def test_others_are_taken(model, data):
    torch.manual_seed(0)
    steps(classes, run_of(model(), right, data=data), 2)


def test_the_next_word_of_texts_that_have_none():
    """One word has no next one, and of two the first alone has."""
    steps(of_next_words, run_of(Words(), right, nn.CrossEntropyLoss(ignore_index=0), data=OfLengths(20, 1, 2, 9, 12, 20)), 2)


def test_a_criterion_does_not_count_padding_near_an_end():
    steps(of_words, run_of(Words(), right, OfBlocks(True), data=OfLengths(), loss_reduction="sum"), 2)
    with pytest.raises(RuntimeError, match=REFUSED):
        steps(of_words, run_of(Words(), right, OfBlocks(False), data=OfLengths(), loss_reduction="sum"), 1)
