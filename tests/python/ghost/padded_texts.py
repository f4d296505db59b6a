"""Texts of several lengths, ways to pad them, and what models and loops of the tests of padding share."""

import itertools

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
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


def mean_of_all(self, x, mask):
    return self.head(self.embedding(x).mean(1))


def seen_where_masked(self, x, mask):
    h = self.embedding(x)
    return self.head(self.attention(h, h, h, key_padding_mask=~mask)[0][:, 0])


def places(self, x, mask):
    return self.rows(self.embedding(x))


def logits(self, x, mask):
    return self.tokens(self.embedding(x))


def next_tokens(module, criterion, batch):
    out, y = module(batch["x"][:, :-1]), batch["x"][:, 1:]
    return criterion(out.transpose(1, 2), y)
