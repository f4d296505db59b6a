"""Preference pairs (DPO): chosen and rejected go through the model in one forward, and are one example's; the reference is the model without its adapters."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private_run import prescribe
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from ghostshard import PrivacyEngine

peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
CLIP, BATCH, DRAWS = 0.02, 6, (5, 1, 0, 7)
MIXED, DRAWN = "must not depend on other examples", "not known to be of the batch"


class Pairs(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {name: torch.randint(3, 29, (6,), generator=g) for name in ("chosen", "rejected")}


class Reward(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(29, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, ids):
        return self.head(torch.tanh(self.inner(self.table(ids))).mean(1)).squeeze(-1)


def private(model, criterion, draws=DRAWS):
    run = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1), noise_multiplier=0.0, max_grad_norm=CLIP,
        data_loader=DataLoader(Pairs(), batch_size=BATCH), grad_sample_mode="ghost", criterion=criterion,
    )  # fmt: skip
    prescribe(run[-1], draws)
    return run


def rows(batch):
    return torch.cat([batch["chosen"], batch["rejected"]])


def owners(batch):
    return torch.arange(len(batch["chosen"])).repeat(2)


def of_pairs(difference):
    return -functional.logsigmoid(difference)


def one_argument(module, criterion, batch, units=owners):
    return criterion(module(rows(batch), units=units(batch)))


def two_arguments(module, criterion, batch, units=owners):
    scores, n = module(rows(batch), units=units(batch)), len(batch["chosen"])
    return criterion(scores[:n], scores[n:])


def interleaved(module, criterion, batch):
    together = torch.stack([batch["chosen"], batch["rejected"]], 1).flatten(0, 1)
    return criterion(module(together, units=torch.arange(len(batch["chosen"])).repeat_interleave(2)))


def in_one(scores):
    chosen, rejected = scores.chunk(2)
    return of_pairs(chosen - rejected)


def in_turn(scores):
    return of_pairs(scores[0::2] - scores[1::2])


def in_two(chosen, rejected):
    return of_pairs(chosen - rejected)


FORMS = {
    "one argument": (one_argument, in_one), "two arguments": (two_arguments, in_two), "interleaved": (interleaved, in_turn),
    "a list of numbers": (lambda *run: one_argument(*run, units=lambda batch: owners(batch).tolist()), in_one),
    "a tensor in a list": (lambda *run: one_argument(*run, units=lambda batch: [owners(batch)]), in_one),
}  # fmt: skip


def steps(run, loss):
    module, optimizer, criterion, loader = run
    for batch in loader:
        optimizer.zero_grad()
        loss(module, criterion, batch).backward()
        optimizer.step()
        yield


def alone(model, batch):
    return of_pairs(model(batch[0]) - model(batch[1]))


def drawn(count):
    each = [Pairs()[i] for i in range(count)]
    return torch.stack([one["chosen"] for one in each]), torch.stack([one["rejected"] for one in each])


@pytest.mark.parametrize("loss, criterion", FORMS.values(), ids=FORMS)
def test_chosen_and_rejected_are_one_unit(loss, criterion):
    torch.manual_seed(1)
    model = Reward()
    before = copy.deepcopy(model)
    for count, _ in zip(DRAWS, steps(private(model, criterion), loss)):
        found = {name: p.grad * BATCH for name, p in model.named_parameters()}
        if count:
            assert oracle.worst_difference(found, oracle.clipped_sum(before, alone, [drawn(count)], CLIP)) < 2 * SUM_TOLERANCE
        before = copy.deepcopy(model)


def of_mean(scores):
    chosen, rejected = scores.chunk(2)
    return of_pairs(chosen - rejected - (chosen - rejected).detach().mean())


def by_count(scores):
    return in_one(scores) / len(scores)


def another(chosen, rejected):
    return of_pairs(chosen - rejected.detach().roll(1))


def of_means(chosen, rejected):
    return of_pairs(chosen - rejected - rejected.detach().mean())


class Carrying(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = 0.0

    def forward(self, scores):
        losses = in_one(scores - self.mean * torch.cat([torch.ones(len(scores) // 2), torch.zeros(len(scores) // 2)]))
        self.mean = 0.5 * self.mean + 0.5 * scores.detach().mean()
        return losses


MIXING = {"mean": (one_argument, of_mean), "count": (one_argument, by_count), "another": (two_arguments, another), "means": (two_arguments, of_means)}


@pytest.mark.parametrize("loss, criterion", MIXING.values(), ids=MIXING)
def test_a_criterion_that_mixes_pairs_is_refused(loss, criterion):
    torch.manual_seed(1)
    with pytest.raises(RuntimeError, match=MIXED):
        list(steps(private(Reward(), criterion, (6, 6)), loss))


def test_a_criterion_that_keeps_something_of_pairs_is_refused():
    torch.manual_seed(1)
    with pytest.raises(RuntimeError, match="criterion keeps"):
        list(steps(private(Reward(), Carrying(), (6, 6)), one_argument))


def test_losses_in_another_order_than_their_pairs_are_refused():
    torch.manual_seed(1)
    with pytest.raises(RuntimeError, match=MIXED):
        list(steps(private(Reward(), lambda scores: in_one(scores).roll(1), (6, 6)), one_argument))


IN_THE_LOOP = {
    "mean": lambda scores: scores + scores.detach().mean(0),
    "neighbour": lambda scores: scores + scores.detach().roll(1, 0),
    "spread": lambda scores: scores / scores.detach().std(),
}


@pytest.mark.parametrize("mixing", IN_THE_LOOP.values(), ids=IN_THE_LOOP)
def test_a_loop_that_mixes_joined_outputs_is_refused(mixing):
    torch.manual_seed(1)
    loss = lambda module, criterion, batch: criterion(mixing(module(rows(batch), units=owners(batch))))
    with pytest.raises(ValueError, match=DRAWN):
        list(steps(private(Reward(), in_one, (6, 6)), loss))


def test_others_for_the_rejected_are_refused():
    torch.manual_seed(1)

    def loss(module, criterion, batch):
        scores, n = module(rows(batch), units=owners(batch)), len(batch["chosen"])
        return criterion(scores[:n], scores[n:].detach().roll(1, 0))

    with pytest.raises(ValueError, match=DRAWN):
        list(steps(private(Reward(), in_two, (6, 6)), loss))


def test_without_units_the_sentence_says_how():
    with pytest.raises(ValueError, match=r"one loss for each of the 12 units.*units=torch.arange\(n\).repeat\(2\)"):
        list(steps(private(Reward(), in_one, (6, 6)), lambda module, criterion, batch: criterion(module(rows(batch)))))


class Within(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Reward()

    def forward(self, chosen, rejected):
        return self.inner(torch.cat([chosen, rejected]))


def test_pairs_that_the_model_joins_are_named():
    with pytest.raises(ValueError, match="model brings rows together itself"):
        list(steps(private(Within(), in_one, (6, 6)), lambda module, criterion, batch: criterion(module(batch["chosen"], batch["rejected"]))))


def test_units_of_another_kind_are_named():
    with pytest.raises(ValueError, match="units= must be a tensor"):
        list(steps(private(Reward(), in_one, (6, 6)), lambda *run: one_argument(*run, units=lambda batch: ["a"] * 12)))


def llama():
    config = transformers.LlamaConfig(vocab_size=29, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_key_value_heads=1)
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))


def likelihood(model, ids, **more):
    return model(input_ids=ids, **more).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(-1).sum(1)


def against_reference(chosen, rejected, chosen_before, rejected_before):
    return of_pairs(0.1 * ((chosen - chosen_before) - (rejected - rejected_before)))


@pytest.mark.parametrize("masked", [False, True])
def test_the_model_without_its_adapters_is_a_reference(masked):
    torch.manual_seed(1)
    model = llama()
    for name, p in model.named_parameters():
        p.data.add_(torch.randn_like(p) * 0.1 * ("lora_B" in name))  # else the reference is the model
    before = copy.deepcopy(model)
    more = lambda ids: {"attention_mask": torch.ones_like(ids)} if masked else {}

    def of(module, adapted, chosen, rejected):
        with torch.no_grad(), adapted.disable_adapter():
            references = [likelihood(module, ids, **more(ids)) for ids in (chosen, rejected)]
        return [likelihood(module, ids, **more(ids)) for ids in (chosen, rejected)] + references

    def loss(module, criterion, batch):
        return criterion(*of(module, model, batch["chosen"], batch["rejected"]))

    twin = lambda m, batch: against_reference(*of(m, m, *batch))
    counts = (5, 7, 1)
    for count, _ in zip(counts, steps(private(model, against_reference, counts), loss)):
        found = {name: p.grad * BATCH for name, p in model.named_parameters() if p.requires_grad}
        assert oracle.worst_difference(found, oracle.clipped_sum(before, twin, [drawn(count)], CLIP)) < 5 * SUM_TOLERANCE
        before = copy.deepcopy(model)


def test_a_reference_of_other_examples_is_refused():
    torch.manual_seed(1)
    model = llama()

    def loss(module, criterion, batch):
        with torch.no_grad(), model.disable_adapter():
            references = [likelihood(module, batch[name].flip(0)) for name in ("chosen", "rejected")]
        return criterion(*[likelihood(module, batch[name]) for name in ("chosen", "rejected")], *references)

    with pytest.raises(ValueError, match=DRAWN):
        list(steps(private(model, against_reference, (6, 6)), loss))
