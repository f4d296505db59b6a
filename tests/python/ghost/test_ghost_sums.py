"""Without noise a step releases the sum that a loop over examples in float64 gives."""

import copy

import oracle
import pytest
import torch
from models import CASES, Case, next_token_loss
from private import Private

# A few hundred float32 operations between an input and a sum, each within 2^-24 of its terms.
TOLERANCE = 2e-5


def expected_and_found(case: Case, **options) -> tuple[dict, dict]:
    torch.manual_seed(7)
    model, batches = case.build(), case.batches()
    expected = oracle.clipped_sum(copy.deepcopy(model), case.loss, batches, case.clip_norm)
    return expected, Private(model, case.clip_norm, **options).step(case.loss, batches)


@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate": True}, {"memory_budget": 0}, {"memory_budget": 0, "accumulate": True}],
    ids=["reduced_each", "accumulated", "two_passes", "two_passes_accumulated"],
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_released_sum_is_the_oracles(case, options):
    expected, found = expected_and_found(case, **options)
    assert oracle.worst_difference(found, expected) < TOLERANCE


@pytest.mark.parametrize("family", ["Gemma", "Gemma2", "Gemma3"])
def test_gemma_whole_with_its_tied_and_scaled_embedding(family):
    import transformers

    torch.manual_seed(7)
    config = getattr(transformers, "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config")(
        vocab_size=50, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, max_position_embeddings=16, bos_token_id=0, eos_token_id=1,
        attn_implementation="eager",
    )  # fmt: skip
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.uniform_(-0.5, 0.5)  # of 1 + p
    batches = [(torch.randint(0, 50, (5, 8)),)]
    expected = oracle.clipped_sum(copy.deepcopy(model), next_token_loss, batches, 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(next_token_loss, batches), expected) < TOLERANCE


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_outputs_and_input_gradients_are_the_models_own(case):
    torch.manual_seed(7)
    model, batch = case.build(), case.batches()[0]
    twin = copy.deepcopy(model)
    private = Private(model, 1.0)

    def through(module):
        inputs = batch[0].clone()
        if inputs.is_floating_point():
            inputs.requires_grad_()
        losses = case.loss(module, (inputs, *batch[1:]))
        losses.sum().backward()
        return losses, inputs.grad

    (expected, of_input), (found, grad) = through(twin), through(private.module)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    if of_input is not None:
        torch.testing.assert_close(grad, of_input, rtol=1e-4, atol=1e-6)


def test_one_example_moves_the_sum_by_at_most_the_clip_norm():
    case = next(case for case in CASES if case.name == "language_tied")
    torch.manual_seed(7)
    model = case.build()
    ids = case.batches()[0][0]
    private = Private(model, 1e-3)  # all are clipped
    whole = private.step(case.loss, [(ids,)])
    for left_out in range(len(ids)):
        kept = torch.cat([ids[:left_out], ids[left_out + 1 :]])
        without = private.step(case.loss, [(kept,)])
        moved = torch.sqrt(sum((whole[name] - without[name]).double().square().sum() for name in whole))
        assert 0.99e-3 < moved <= 1e-3 * (1 + 1e-5)  # 5 additions of float32 round anew


def test_an_empty_batch_releases_zeros():
    case = next(case for case in CASES if case.name == "language_tied")
    private = Private(case.build(), 1.0)
    found = private.step(case.loss, [(torch.zeros(0, 7, dtype=torch.long),)])
    assert all(not value.any() for value in found.values())


def test_an_empty_batch_with_labels_is_a_step():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 8}
    private = Private(GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)), 1.0)
    none = torch.zeros(0, 7, dtype=torch.long)
    private.module(input_ids=none, labels=none).loss.backward()
    assert all(not value.any() for value in private.released().values())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_example_that_is_not_finite_counts_for_nothing(bad):
    case = next(case for case in CASES if case.name == "mlp")
    torch.manual_seed(7)
    model = case.build()
    x, y = case.batches()[0]
    private = Private(model, 0.5)
    good = private.step(case.loss, [(x[1:], y[1:])])
    x[0, 0] = bad
    with_bad = private.step(case.loss, [(x, y)])
    for name in good:
        torch.testing.assert_close(with_bad[name], good[name], rtol=1e-5, atol=1e-6)


def test_parameters_may_be_frozen_and_thawed_between_steps():
    case = next(case for case in CASES if case.name == "mlp")
    torch.manual_seed(7)
    model, batches = case.build(), case.batches()
    private = Private(model, case.clip_norm)
    for trainable in (True, False, True):
        model[0].requires_grad_(trainable)
        expected = oracle.clipped_sum(copy.deepcopy(model), case.loss, batches, case.clip_norm)
        model.zero_grad(set_to_none=True)
        assert oracle.worst_difference(private.step(case.loss, batches), expected) < TOLERANCE
    model[0].requires_grad_(False)
    private.backward(case.loss, batches[0])
    model[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match="between steps"):
        private.backward(case.loss, batches[0])


def test_cleanup_gives_the_model_back():
    case = next(case for case in CASES if case.name == "language_tied")
    torch.manual_seed(7)
    model, (batch, _) = case.build(), case.batches()
    keys = list(model.state_dict())
    private = Private(model, 1.0)
    assert list(private.module.state_dict()) == [f"_module.{key}" for key in keys]
    private.step(case.loss, [batch])
    assert private.module.to_standard_module() is model
    assert list(model.state_dict()) == keys
    assert "forward" not in model.head.__dict__
    model.zero_grad(set_to_none=True)
    case.loss(model, batch).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_copy_of_a_private_model_is_plain_and_its_own():
    case = next(case for case in CASES if case.name == "language_tied")
    torch.manual_seed(7)
    model, (batch, _) = case.build(), case.batches()
    private = Private(model, 1.0)
    private.step(case.loss, [batch])
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for p in copied.parameters():
            p.zero_()
        assert not copied(batch[0]).any()
        assert model(batch[0]).any()
    copied.zero_grad(set_to_none=True)
    case.loss(copied, batch).sum().backward()
    assert all(p.grad is not None for p in copied.parameters())


class Gain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.calls = []

    def forward(self, x):
        return x * self.weight


def test_a_rule_of_the_users_own():
    import ghostshard
    from ghostshard.ghost.rules import affine

    @ghostshard.register_rule(Gain)
    def gain(layer, x):
        layer.module.calls.append(layer.engine.units_of(x))
        return affine(layer, x)

    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), Gain(), torch.nn.Linear(6, 3))
    case = next(case for case in CASES if case.name == "mlp")
    batches = case.batches()
    expected = oracle.clipped_sum(copy.deepcopy(model), case.loss, batches, 0.5)
    assert oracle.worst_difference(Private(model, 0.5).step(case.loss, batches), expected) < TOLERANCE
    assert model[1].calls == [5, 5]
