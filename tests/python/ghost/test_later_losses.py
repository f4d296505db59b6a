"""A loss that becomes another one after the batch in which it was compared: what trains is that of each batch."""

import copy
import functools

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private import Private
from test_own_loss import IDS, bert, llama, seven_times, with_loss_function

transformers = pytest.importorskip("transformers")


class TermForCausalLM(transformers.LlamaForCausalLM):
    """Its name is of a kind that has a form."""

    weight = 0.0

    def forward(self, input_ids=None, labels=None, **kwargs):
        output = super().forward(input_ids=input_ids, labels=labels, **kwargs)
        output["loss"] = output.loss + self.weight * output.logits.logsumexp(-1).square().mean()
        return output


class LaterForCausalLM(TermForCausalLM):
    """It forms the term only once it has a weight."""

    def forward(self, input_ids=None, labels=None, **kwargs):
        if self.weight > 0:
            return super().forward(input_ids=input_ids, labels=labels, **kwargs)
        return transformers.LlamaForCausalLM.forward(self, input_ids=input_ids, labels=labels, **kwargs)


class Around(torch.nn.Module):
    weight = 0.0

    def __init__(self):
        super().__init__()
        self.inner = llama()

    def forward(self, **batch):
        output = self.inner(**batch)
        if self.weight > 0:
            output["loss"] = output.loss + self.weight * output.logits.logsumexp(-1).square().mean()
        return output


class WrittenAround(Around):
    def forward(self, **batch):
        output = self.inner(**batch)
        output.loss += self.weight * output.logits.logsumexp(-1).square().mean()
        return output


def weighted(model):
    model.weight = 0.1


def loss_function_changed(model):
    with_loss_function(model, seven_times)


def router_losses(model):
    model.config.output_router_logits = True


def mixtral():
    config = transformers.MixtralConfig(
        vocab_size=29, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_key_value_heads=1,
        num_local_experts=2, router_aux_loss_coef=0.5,
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config).train()


CHANGES = {
    "a_weight_that_grows": (lambda: llama(TermForCausalLM), weighted),
    "a_term_that_begins": (lambda: llama(LaterForCausalLM), weighted),
    "a_term_that_begins_around": (Around, weighted),
    "a_weight_that_grows_of_what_is_written": (WrittenAround, weighted),
    "another_loss_function": (llama, loss_function_changed),
    "the_losses_of_a_router": (mixtral, router_losses),
}


def of_one(model, batch):
    return model(input_ids=batch[0], labels=batch[0]).loss


@pytest.mark.parametrize("build, change", CHANGES.values(), ids=CHANGES)
def test_a_loss_that_changes_is_that_of_each_batch(build, change):
    torch.manual_seed(3)
    model = build()
    private = Private(model, 0.5)
    for now in (lambda _: None, change, lambda _: None):
        now(model)
        twin = copy.deepcopy(model)
        expected = oracle.clipped_sum(twin, of_one, [(IDS,)], 0.5, wide=build is not mixtral)
        private.module(input_ids=IDS, labels=IDS).loss.backward()
        assert oracle.worst_difference(private.released(), expected) < SUM_TOLERANCE


def test_a_forward_in_the_place_of_the_classs_is_refused():
    """functools.wraps gives it the name of the other's module."""
    model = llama()
    plain = model.forward

    @functools.wraps(plain)
    def forward(*args, **kwargs):
        output = plain(*args, **kwargs)
        output["loss"] = 3 * output.loss
        return output

    model.forward = forward
    with pytest.raises(ValueError, match=r"in the place of its class's \(model.forward = ...\)"):
        Private(model, 0.5).module(input_ids=IDS, labels=IDS)


class Ignoring(Around):
    def forward(self, **batch):
        return self.inner(**batch, ignore_index=int(IDS[1, 2]))


@pytest.mark.parametrize("build, more", [(llama, {"ignore_index": int(IDS[1, 2])}), (Ignoring, {})], ids=["of_the_call", "around"])
def test_words_that_a_call_leaves_out_of_the_loss(build, more):
    """The first batch has none of them."""
    torch.manual_seed(3)
    model, others = build(), torch.where(IDS == IDS[1, 2], 5 + (IDS[1, 2] == 5), IDS)
    loss = lambda model, batch: model(input_ids=batch[0], labels=batch[0], **more).loss
    private = Private(model, 0.5)
    for ids in (others, IDS):
        expected = oracle.clipped_sum(copy.deepcopy(model), loss, [(ids,)], 0.5)
        loss(private.module, (ids,)).backward()
        assert oracle.worst_difference(private.released(), expected) < SUM_TOLERANCE


def test_two_losses_of_one_batch_and_an_evaluation_between():
    """Their calls differ, and so do the ways in which their losses are formed, when the batch is looked at again."""
    torch.manual_seed(3)
    model = mixtral()
    both = lambda model, batch: model(input_ids=batch[0], labels=batch[0]).loss + model(input_ids=batch[0], labels=batch[0], output_router_logits=True).loss
    expected = oracle.clipped_sum(copy.deepcopy(model), both, [(IDS,)], 0.5, wide=False)
    private = Private(model, 0.5)
    first, second = (private.module(input_ids=IDS, labels=IDS, **more).loss for more in ({}, {"output_router_logits": True}))
    with torch.no_grad():
        private.module(input_ids=IDS, labels=IDS, output_attentions=True)
    (first + second).backward()
    assert oracle.worst_difference(private.released(), expected) < SUM_TOLERANCE


def test_a_loss_that_stays_is_formed_beside_the_model():
    """Of a kind of call that was compared: the model's own forward gets no labels."""
    torch.manual_seed(3)
    model = bert()
    private, labels = Private(model, 0.5, attribution_check=False), []
    model.register_forward_pre_hook(lambda _, args, kwargs: labels.append("labels" in kwargs), with_kwargs=True)
    for more in ({}, {}, {"output_attentions": True}, {}, {"output_attentions": True}):
        private.module(input_ids=IDS, labels=torch.tensor([0, 1, 2, 0]), **more).loss.backward()
    assert labels == [True, False, True, False, False]
