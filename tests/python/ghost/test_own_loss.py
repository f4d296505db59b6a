"""What trains is the loss that the model forms itself, or the model is refused: no default takes its place."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private import Private
from torch.nn import functional

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 29, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
IDS = torch.randint(5, 29, (4, 6), generator=torch.Generator().manual_seed(0))
CLASSES = torch.tensor([0, 1, 2, 0])


def bert(kind=transformers.BertForSequenceClassification, **config):
    return kind(transformers.BertConfig(**SIZES | {"num_labels": 3} | config)).train()


def llama(kind=transformers.LlamaForCausalLM):
    config = transformers.LlamaConfig(
        vocab_size=29, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_key_value_heads=1,
        num_labels=3, pad_token_id=0,
    )  # fmt: skip
    return kind(config).train()


class Weighted(transformers.BertForSequenceClassification):
    def forward(self, input_ids=None, labels=None, **kwargs):
        output = super().forward(input_ids=input_ids, **kwargs)
        weights = torch.tensor([10.0, 1.0, 0.1]).to(output.logits.dtype)
        if labels is not None:
            output["loss"] = functional.cross_entropy(output.logits, labels, weight=weights)
        return output


def with_loss_function(model, function):
    model.loss_function = function
    return model


def smoothed(pooled_logits=None, labels=None, **_):
    return functional.cross_entropy(pooled_logits, labels, label_smoothing=0.5)


def seven_times(logits=None, labels=None, **_):
    return 7 * functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def mixtral():
    config = transformers.MixtralConfig(
        vocab_size=29, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_key_value_heads=1,
        num_local_experts=2, output_router_logits=True, router_aux_loss_coef=1.0,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config).train()
    for name, p in model.named_parameters():
        p.requires_grad_("self_attn" in name or "lm_head" in name)
    return model


OTHERS = {
    "subclass_with_class_weights": (lambda: bert(Weighted), CLASSES),
    "loss_function_replaced": (lambda: with_loss_function(llama(transformers.LlamaForSequenceClassification), smoothed), CLASSES),
    "loss_function_of_a_causal_model": (lambda: with_loss_function(llama(), seven_times), IDS),
    "one_label_of_integers_is_regression": (lambda: bert(num_labels=1), torch.zeros(4, dtype=torch.long)),
    "router_loss": (mixtral, IDS),
}


@pytest.mark.filterwarnings("ignore:no rule gives", "ignore:Using a target size")
@pytest.mark.parametrize("build, labels", OTHERS.values(), ids=OTHERS)
def test_a_loss_of_its_own_is_refused(build, labels):
    torch.manual_seed(3)
    model = build()
    private = Private(model, 1.0)
    with pytest.raises(ValueError, match="forms a loss of its own|has no per-example form"):
        private.module(input_ids=IDS, labels=labels).loss.backward()
    assert all(p.grad is None for p in model.parameters())


def of_one(model, batch):
    return model(input_ids=batch[0], labels=batch[1]).loss


PARTLY = IDS.clone()
PARTLY[0, 2:], PARTLY[1, 4:] = -100, -100
KNOWN = {
    "classes": (bert, CLASSES),
    "masked": (lambda: bert(transformers.BertForMaskedLM), PARTLY),
    "tokens": (lambda: bert(transformers.BertForTokenClassification, num_labels=29), PARTLY),
    "causal": (llama, PARTLY),
    "classes_by_loss_function": (lambda: llama(transformers.LlamaForSequenceClassification), CLASSES),
}


@pytest.mark.parametrize("build, labels", KNOWN.values(), ids=KNOWN)
def test_the_known_kinds_train_on_the_models_own_loss(build, labels):
    torch.manual_seed(3)
    model = build()
    expected = oracle.clipped_sum(copy.deepcopy(model), of_one, [(IDS, labels)], 0.5)
    private = Private(model, 0.5)
    private.module(input_ids=IDS, labels=labels).loss.backward()
    assert oracle.worst_difference(private.released(), expected) < SUM_TOLERANCE


def test_it_is_compared_once_with_the_same_coins():
    torch.manual_seed(3)
    model = bert(hidden_dropout_prob=0.5)
    private, forwards = Private(model, 0.5, attribution_check=False), []
    model.register_forward_hook(lambda *_: forwards.append(torch.is_grad_enabled()))
    for _ in range(3):
        private.module(input_ids=IDS, labels=CLASSES).loss.backward()
    assert forwards == [True, False, True, True]
