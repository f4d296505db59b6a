"""What trains is the loss that the model forms itself, of each example alone, or the model is refused: no default takes its place."""

import copy
import types

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


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=29, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
        decoder_ffn_dim=16, num_mel_bins=4, max_source_positions=6, max_target_positions=16, pad_token_id=0, decoder_start_token_id=1,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config).train()


def t5(**config):
    config = transformers.T5Config(
        vocab_size=29, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0, **config
    )
    return transformers.T5ForConditionalGeneration(config).train()


class Around(torch.nn.Module):
    """A module around a Transformers model forms the loss; its forward has no default for labels."""

    def __init__(self, hands_on=False, as_dict=True):
        super().__init__()
        self.inner, self.as_dict, self.hands_on = bert(), as_dict, hands_on
        self.criterion = torch.nn.CrossEntropyLoss()

    def forward(self, input_ids, labels):
        output = self.inner(input_ids=input_ids, labels=labels if self.hands_on else None)
        loss = self.loss(output.logits, labels, output.loss)
        if self.as_dict:
            return {"loss": loss, "logits": output.logits}
        output["loss"] = loss
        return output

    def loss(self, logits, labels, inner):
        return inner if self.hands_on else self.criterion(logits, labels)


class MarginAround(Around):
    def loss(self, logits, labels, inner):
        return 5 * functional.multi_margin_loss(logits, labels)


class TermAround(Around):
    def loss(self, logits, labels, inner):
        return inner + 0.1 * logits.square().mean()


class WrittenAround(Around):
    """A term that is added in place, to what the model inside gave."""

    def loss(self, logits, labels, inner):
        inner += 0.1 * logits.square().mean()
        return inner


class HeadAround(torch.nn.Module):
    """Only the body is a Transformers model."""

    def __init__(self):
        super().__init__()
        self.body, self.head = bert(transformers.BertModel), torch.nn.Linear(16, 3)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.body(input_ids=input_ids).pooler_output)
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return transformers.modeling_outputs.SequenceClassifierOutput(loss=loss, logits=logits)


class HeadNeverWithoutLabels(HeadAround):
    """It takes them whether or not there are some. Its loss is of the kind that the model inside would form."""

    def __init__(self):
        super().__init__()
        self.body = bert()

    def forward(self, input_ids, labels=None):
        logits = self.head(self.body(input_ids=input_ids, output_hidden_states=True).hidden_states[-1][:, 0])
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def term_around_lora():
    peft = pytest.importorskip("peft")
    model = TermAround(hands_on=True)
    model.inner = peft.get_peft_model(model.inner, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"], init_lora_weights=False))
    return model


def git():
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    return transformers.GitForCausalLM(transformers.GitConfig(vision_config=vision, **SIZES)).train()


SPECTRA = torch.randn(4, 4, 12, generator=torch.Generator().manual_seed(1))
OTHERS = {
    "subclass_with_class_weights": (lambda: bert(Weighted), {"labels": CLASSES}),
    "loss_function_replaced": (lambda: with_loss_function(llama(transformers.LlamaForSequenceClassification), smoothed), {"labels": CLASSES}),
    "loss_function_of_a_causal_model": (lambda: with_loss_function(llama(), seven_times), {"labels": IDS}),
    "regression": (lambda: bert(num_labels=1), {"labels": torch.linspace(-1, 1, 4)}),
    "several_labels": (lambda: bert(problem_type="multi_label_classification"), {"labels": torch.eye(4, 3)}),
    "router_loss": (mixtral, {"labels": IDS}),
    "spans": (lambda: bert(transformers.BertForQuestionAnswering, num_labels=2), {"start_positions": CLASSES, "end_positions": CLASSES + 2}),
    "translation": (t5, {"labels": IDS[:, :5].flip(0)}),
    "around": (Around, {"labels": CLASSES}),
    "around_which_hands_labels_on": (lambda: Around(hands_on=True), {"labels": CLASSES}),
    "around_gives_a_model_output": (lambda: Around(hands_on=True, as_dict=False), {"labels": CLASSES}),
    "another_loss_around": (MarginAround, {"labels": CLASSES}),
    "a_term_beside_the_loss": (lambda: TermAround(hands_on=True), {"labels": CLASSES}),
    "a_term_that_is_written_to_the_loss": (lambda: WrittenAround(hands_on=True), {"labels": CLASSES}),
    "a_term_beside_the_loss_of_lora": (term_around_lora, {"labels": CLASSES}),
    "a_head_of_its_own": (HeadAround, {"labels": CLASSES}),
    "a_head_that_is_never_without_labels": (HeadNeverWithoutLabels, {"labels": CLASSES}),
    "text_of_a_picture": (git, {"pixel_values": torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(2)), "labels": IDS}),
    "speech": (whisper, {"input_ids": None, "input_features": SPECTRA, "labels": IDS}),
}


def of_batch(given):
    batch = {name: value for name, value in ({"input_ids": IDS} | given).items() if value is not None}
    return list(batch), tuple(batch.values())


@pytest.mark.filterwarnings("ignore:no rule gives", "ignore:Using a target size")
@pytest.mark.parametrize("build, given", OTHERS.values(), ids=OTHERS)
def test_a_loss_of_its_own_trains_example_by_example(build, given):
    torch.manual_seed(3)
    model = build()
    names, values = of_batch(given)
    loss = lambda model, batch: model(**dict(zip(names, batch)))["loss"]
    expected = oracle.clipped_sum(copy.deepcopy(model), loss, [values, values], 0.5, wide="router" not in str(getattr(model, "config", "")))
    private = Private(model, 0.5)
    for _ in range(2):
        private.module(**dict(zip(names, values)))["loss"].backward()
    assert oracle.worst_difference(private.released(), expected) < 2 * SUM_TOLERANCE


class Contrastive(transformers.BertForSequenceClassification):
    """Each example beside all others of the batch."""

    def forward(self, input_ids=None, labels=None, **kwargs):
        output = super().forward(input_ids=input_ids, **kwargs)
        scores = output.logits @ output.logits.T
        output["loss"] = functional.cross_entropy(scores, torch.arange(len(scores)))
        return output


class ContrastiveAround(Around):
    def loss(self, logits, labels, inner):
        return functional.cross_entropy(logits @ logits.T, torch.arange(len(logits)))


class Turned(torch.nn.Module):
    def forward(self, x):
        return x.T


class TurnedAround(Around):
    """A layer gives the examples in the second extent."""

    def __init__(self):
        super().__init__()
        self.turned = Turned()

    def loss(self, logits, labels, inner):
        return functional.cross_entropy(logits.clone().add_(self.turned(logits).T), labels)


class AssertsAll(Around):
    """Without words, as of many assertions."""

    def loss(self, logits, labels, inner):
        if len(logits) != len(IDS):
            raise AssertionError
        return functional.cross_entropy(logits, labels)


class Denoising(AssertsAll):
    """As RT-DETR, whose queries are made of the boxes of all examples."""

    config = types.SimpleNamespace(num_denoising=100)


class ParameterBeside(Around):
    def __init__(self):
        super().__init__()
        self.temperature = torch.nn.Parameter(torch.ones(()))

    def loss(self, logits, labels, inner):
        return functional.cross_entropy(logits * self.temperature, labels)


JOINT = {
    "parameter_beside_layers": (ParameterBeside, "make each of these parameters one of a small nn.Module"),
    "contrastive": (lambda: bert(Contrastive), "no mean of its examples"),
    "an_output_that_is_turned": (TurnedAround, "of something that is not told apart example by example .output with shape"),
    "an_assertion_about_all": (AssertsAll, "of something that is not told apart example by example .AssertionError.. Leave labels out"),
    "denoising_queries": (Denoising, "config.num_denoising = 0 leaves them out"),
    "contrastive_around": (ContrastiveAround, "no mean of its examples"),
}  # fmt: skip


@pytest.mark.parametrize("build, message", JOINT.values(), ids=JOINT)
def test_a_loss_that_is_not_of_each_example_is_refused(build, message):
    torch.manual_seed(3)
    model = build()
    with pytest.raises(ValueError, match=message):
        Private(model, 1.0).module(input_ids=IDS, labels=CLASSES)["loss"].backward()
    assert all(p.grad is None for p in model.parameters())


def test_each_example_is_compared_with_itself_alone(monkeypatch):
    """A replay that takes the rows of another example is seen."""
    from ghostshard.ghost import own_loss

    torch.manual_seed(3)
    private, replayed = Private(bert(num_labels=1), 1.0, attribution_check=False), own_loss.Outputs.replayed
    of_another = lambda self, module, part: replayed(self, module, own_loss._Part((part.__self__._i + 1) % 4, 4, 0).of)
    monkeypatch.setattr(own_loss.Outputs, "replayed", of_another)
    with pytest.raises(ValueError, match="not told apart example by example"):
        private.module(input_ids=IDS, labels=torch.linspace(-1, 1, 4)).loss.backward()


def test_a_model_in_bfloat16_is_compared_within_its_rounding():
    torch.manual_seed(3)
    private = Private(bert(num_labels=1).to(torch.bfloat16), 0.5)
    private.module(input_ids=IDS, labels=torch.linspace(-1, 1, 4, dtype=torch.bfloat16)).loss.backward()
    private.released()


def test_coins_are_those_of_the_batchs_forward():
    """Dropout in layers: the losses are of the batch's forward, and no generator moves more than without privacy."""
    torch.manual_seed(3)
    model = bert(num_labels=1, hidden_dropout_prob=0.5)
    private = Private(model, 0.5)
    for _ in range(2):
        private.module(input_ids=IDS, labels=torch.linspace(-1, 1, 4)).loss.backward()
    private.released()


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


def test_it_is_compared_once_and_then_labels_are_left_out():
    torch.manual_seed(3)
    model = bert(hidden_dropout_prob=0.5)
    private, labels = Private(model, 0.5, attribution_check=False), []
    model.register_forward_pre_hook(lambda _, args, kwargs: labels.append("labels" in kwargs), with_kwargs=True)
    for _ in range(3):
        private.module(input_ids=IDS, labels=CLASSES).loss.backward()
    assert labels == [True, False, False]
    assert "forward" not in vars(model)
