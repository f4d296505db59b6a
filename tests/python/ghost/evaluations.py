"""Runs with evaluations in chosen places of the loop, on one rank or several."""

import torch
import transformers
from private_run import prescribe
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset

from ghostshard import FSDP2Wrapper, PrivacyEngine, next_token_labels, pack_texts

DRAWS, BATCH, CLIP, V = (4, 3, 0, 5, 1), 6, 0.05, 29


class Texts(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return torch.randint(3, V, (5,), generator=torch.Generator().manual_seed(i)), i % 3


def plain():
    model = nn.Sequential(nn.Embedding(V, 8), nn.Flatten(), nn.Linear(40, 6), nn.Dropout(0.2), nn.Tanh(), nn.Linear(6, 3))
    return model, None, lambda m, batch: m(batch[0]), lambda c, out, batch: c(out, batch[1])


def laid_end_to_end(items):
    return pack_texts([text.tolist() for text, _ in items], mask_dtype=torch.float32)


class Packed(nn.Module):
    """Its texts keep apart, as it has no attention."""

    def __init__(self):
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(V, 8), nn.Linear(8, 8), nn.Linear(8, V)

    def forward(self, ids):
        return self.head(self.inner(self.table(ids)).tanh())


def packed():
    criterion = lambda c, out, batch: c(out.transpose(1, 2), next_token_labels(batch["labels"], batch["segment_ids"]))
    return Packed(), laid_end_to_end, lambda m, batch: m(batch["input_ids"], segment_ids=batch["segment_ids"]), criterion


def by_users():
    """Two texts are one unit's."""
    call = lambda m, batch: m(batch["input_ids"], segment_ids=batch["segment_ids"], user_ids=batch["user_ids"])
    collate = lambda items: pack_texts([[text.tolist(), text.flip(0).tolist()] for text, _ in items], users=True, mask_dtype=torch.float32)
    return Packed(), collate, call, packed()[3]


def bert(**config):
    sizes = {"vocab_size": V, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0, **config))


def hugging_face():
    return bert(num_labels=3), None, lambda m, batch: m(input_ids=batch[0], labels=batch[1]), lambda c, out, batch: out.loss


def a_loss_of_its_own():
    """That the model's code forms, example by example."""
    return bert(num_labels=1), None, lambda m, batch: m(input_ids=batch[0], labels=batch[1].float()), lambda c, out, batch: out.loss


MODELS = (plain, packed, by_users, hugging_face, a_loss_of_its_own)
PLACES = ("before the forward", "before the criterion", "before the backward", "before the step", "after the step")


def trained(build, where=(), *, training=False, accumulation=1, draws=DRAWS, sharded=False):
    """The released gradients of each step, and what the evaluations gave. sharded: by FSDP2 over all ranks."""
    torch.manual_seed(3)
    model, collate, call, loss_of = build()
    model = FSDP2Wrapper(model) if sharded else model
    data = Texts()
    module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5), data_loader=DataLoader(data, batch_size=BATCH, collate_fn=collate), noise_multiplier=0.0,
        max_grad_norm=CLIP, grad_sample_mode="ghost_fsdp" if sharded else "ghost", criterion=nn.CrossEntropyLoss(ignore_index=-100), accumulation_steps=accumulation,
    )  # fmt: skip
    prescribe(loader, draws)
    held_out = next(iter(DataLoader(data, batch_size=7, collate_fn=collate)))
    released, scores, batches = [], [], 0

    def evaluate(place):
        if place not in where:
            return
        coins, was = torch.get_rng_state(), module.training
        module.train(training)
        with torch.no_grad():
            output = call(module, held_out)
        with torch.set_grad_enabled(training):  # a score may be formed after that
            scores.append(loss_of(criterion, output, held_out).item())
        module.train(was)
        torch.set_rng_state(coins)

    module.train()
    for batch in loader:
        torch.manual_seed(batches)
        evaluate("before the forward")
        output = call(module, batch)
        evaluate("before the criterion")
        loss = loss_of(criterion, output, batch)
        evaluate("before the backward")
        loss.backward()
        evaluate("before the step")
        batches += 1
        if batches % accumulation == 0:
            optimizer.step()
            released.append({name: whole(p.grad) for name, p in model.named_parameters()})
            optimizer.zero_grad()
            evaluate("after the step")
    assert len(released) == len(draws)
    return released, scores


def whole(gradient):
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()


def same(one, two):
    return all(torch.equal(a[name], b[name]) for a, b in zip(one, two, strict=True) for name in a)
