"""Between a model and its criterion, outputs for texts laid end to end meet no values of other texts without a gradient."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine, next_token_labels, pack_texts

DRAWN = "what the loss is formed of is not known to be of the batch"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(29, 8), nn.Linear(8, 29)

    def forward(self, input_ids):
        return self.head(torch.tanh(self.table(input_ids)))


def steps(between):
    torch.manual_seed(0)
    model = Model()
    texts = [torch.randint(29, (3 + i % 5,)) for i in range(40)]
    module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(texts, batch_size=10, collate_fn=pack_texts),
        noise_multiplier=1.0, max_grad_norm=1.0, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost",
    )  # fmt: skip
    for batch in loader:
        optimizer.zero_grad()
        logits = module(input_ids=batch["input_ids"], segment_ids=batch["segment_ids"])
        targets = next_token_labels(batch["labels"], batch["segment_ids"])
        criterion(*between(logits, targets, batch["segment_ids"])).backward()
        optimizer.step()
        assert 0 <= (logits.argmax(-1) == batch["labels"]).float().mean().item() <= 1
    return len(loader)


MIXING = {
    "mean": lambda logits: logits + logits.detach().mean((0, 1)),
    "neighbour": lambda logits: logits + logits.detach().roll(7, 1),
    "spread": lambda logits: logits / logits.detach().std(),
}
HONEST = {
    "as they are": lambda logits, targets, _: (logits.transpose(1, 2), targets),
    "flattened": lambda logits, targets, _: (logits.reshape(-1, 29), targets.reshape(-1)),
    "scaled": lambda logits, targets, _: ((logits.float() / 2.0).transpose(1, 2), targets),
    "masked": lambda logits, targets, ids: ((logits * (ids >= 0).unsqueeze(-1).float()).transpose(1, 2), targets),
    "chosen": lambda logits, targets, ids: (torch.where((ids >= 0).unsqueeze(-1), logits, torch.zeros_like(logits)).transpose(1, 2), targets),
}


@pytest.mark.parametrize("mixing", MIXING.values(), ids=MIXING)
def test_values_of_other_texts_are_refused(mixing):
    with pytest.raises(ValueError, match=DRAWN):
        steps(lambda logits, targets, _: (mixing(logits).transpose(1, 2), targets))


@pytest.mark.parametrize("between", HONEST.values(), ids=HONEST)
def test_what_keeps_texts_apart_is_taken(between):
    assert steps(between) == 4
