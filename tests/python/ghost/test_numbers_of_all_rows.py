"""Extents, windows, columns and pairs that follow from the values of all rows of a batch, and those that do not."""

import pytest
import torch
from short_loop import steps_of
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

N = 40


def data(*shape):
    torch.manual_seed(3)
    labels = torch.randint(0, 2, (N,))
    labels[-2:] = 2  # which many draws do not have
    return TensorDataset(1 + 0.3 * torch.randn(N, *shape), labels)


class OfSequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x).mean(1)


def own(logits, labels):
    return F.cross_entropy(logits, labels, reduction="none")


def less(score, logits, labels):
    return score - logits.gather(1, labels[:, None])[:, 0]


def of_classes(module, criterion, batch, chosen):
    logits = module(batch[0])
    return criterion(chosen(logits, batch[1]).logsumexp(1), logits, batch[1])


def of_classes_there(labels):
    return F.one_hot(labels, -1 if len(labels) else 3).float()  # a draw may hold no row, which names no class


def smoothed(module, criterion, batch):
    targets = of_classes_there(batch[1])
    classes = targets.shape[1]
    return criterion(module(batch[0])[:, :classes], 0.9 * targets + 0.1 / classes)


REFUSED = {
    "columns": (less, (6,), lambda m, c, b: of_classes(m, c, b, lambda out, y: out[:, y])),
    "columns_by_index_select": (less, (6,), lambda m, c, b: of_classes(m, c, b, lambda out, y: out.index_select(1, y))),
    "columns_of_inputs": (own, (6,), lambda m, c, b: c(m(b[0] + b[0][:, b[1]].mean(1, keepdim=True)), b[1])),
    "columns_of_a_table": (own, (6,), lambda m, c, b: c(m(b[0] + torch.eye(6)[:, b[1]].sum(1)), b[1])),
    "classes_that_are_there": (nn.CrossEntropyLoss(), (6,), smoothed),
    "mean_over_classes_that_are_there": (own, (6,), lambda m, c, b: c(m(b[0]), b[1]) * of_classes_there(b[1]).mean(1)),
    "window_by_a_label": (own, (1, 12), lambda m, c, b: c(m(F.avg_pool1d(b[0], (int(b[1].min()) if len(b[1]) else 1) * 2 + len(b[1].unique()), stride=1)[:, 0, :6]), b[1])),
    "size_by_a_label": (own, (1, 12), lambda m, c, b: c(m(F.interpolate(b[0], size=int(b[1].sum()) + 12, mode="linear")[:, 0, :6]), b[1])),
}
OF_SEQUENCES = {
    "pairs": (own, (4, 6), lambda m, c, b: c(m(b[0] + (b[0].unsqueeze(1) @ b[0].transpose(1, 2)).mean((1, 3))[:, :, None]), b[1])),
    "attention_to_all": (own, (4, 6), lambda m, c, b: c(m(F.scaled_dot_product_attention(b[0].unsqueeze(1), b[0], b[0]).mean(1)), b[1])),
}
HONEST = {
    "own_column": (less, (6,), lambda m, c, b: (lambda out: c(out[torch.arange(len(out)), b[1]], out, b[1]))(m(b[0]))),
    "own_columns": (less, (6,), lambda m, c, b: (lambda out: c(out.take_along_dim(b[1][:, None], 1)[:, 0], out, b[1]))(m(b[0]))),
    "own_row_of_a_table": (own, (6,), lambda m, c, b: c(m(b[0] + torch.eye(6)[b[1]]), b[1])),
    "weights_of_classes": (own, (6,), lambda m, c, b: c(m(b[0]), b[1]) * torch.tensor([1.0, 2.0, 3.0])[b[1]]),
    "all_classes": (nn.CrossEntropyLoss(), (6,), lambda m, c, b: c(m(b[0]), 0.9 * F.one_hot(b[1], 3).float() + 0.1 / 3)),
    "masked": (own, (6,), lambda m, c, b: c(m(b[0].masked_fill(b[0] > 1.5, 0.0)), b[1])),
    "window": (own, (1, 12), lambda m, c, b: (float(b[0].mean()), c(m(F.avg_pool1d(b[0], 3, stride=1)[:, 0, :6]), b[1]))[1]),
    "size_of_the_batch": (own, (1, 6), lambda m, c, b: (float(b[0].mean()), c(m(F.interpolate(b[0], size=b[0].shape[-1], mode="linear")[:, 0]), b[1]))[1]),
}
HONEST_SEQUENCES = {
    "own_pairs": (own, (4, 6), lambda m, c, b: c(m(b[0] + (b[0] @ b[0].transpose(1, 2)).mean(2)[:, :, None]), b[1])),
    "attention": (own, (4, 6), lambda m, c, b: c(m(F.scaled_dot_product_attention(b[0], b[0], b[0])), b[1])),
    "attention_of_heads": (own, (4, 6), lambda m, c, b: c(m(F.scaled_dot_product_attention(*3 * [b[0].unsqueeze(1)]).squeeze(1)), b[1])),
}


def trained(case, model, steps):
    criterion, shape, loss = case

    def per_example(module, criterion, batch):
        losses = loss(module, criterion, batch)
        return losses if losses.dim() == 0 else losses.mean()

    return steps_of(per_example, model, criterion, data(*shape), None, steps)


@pytest.mark.parametrize("case", [*REFUSED, *OF_SEQUENCES])
def test_what_follows_from_all_rows_is_refused(case):
    with pytest.raises(ValueError, match="not known to be of the batch"):
        for _ in range(12):  # what may differ between draws must do so within one run
            trained({**REFUSED, **OF_SEQUENCES}[case], OfSequences() if case in OF_SEQUENCES else nn.Linear(6, 3), 7)


@pytest.mark.parametrize("case", [*HONEST, *HONEST_SEQUENCES])
def test_what_is_each_rows_own_trains(case):
    model = OfSequences() if case in HONEST_SEQUENCES else nn.Linear(6, 3)
    assert trained({**HONEST, **HONEST_SEQUENCES}[case], model, 40) == 7
