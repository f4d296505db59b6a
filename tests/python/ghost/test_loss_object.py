"""The private loss is used as loops use a scalar tensor, and a model's output as Transformers' own."""

import copy
import functools
import math

import numpy as np
import pytest
import torch
from private import hand_out
from private_run import Run, prescribe
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ghostshard import PrivacyEngine


def private(model, data=None, **options):
    data = data or TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,)))
    return PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost", **options,
    )  # fmt: skip


def one_loss():
    module, optimizer, criterion, loader = private(nn.Linear(6, 3))
    hand_out(loader, 4)
    return criterion(module(torch.randn(4, 6)), torch.randint(0, 3, (4,))), optimizer


def test_it_reads_like_a_number():
    loss, _ = one_loss()
    value = loss.item()
    assert float(loss) == value and f"{loss:.4f}" == f"{value:.4f}" and f"{loss}" == str(loss)
    assert loss < value + 1 and loss <= value and loss > value - 1 and loss >= value
    assert loss < torch.tensor(value + 1) and not loss < loss
    assert not math.isnan(loss) and math.isfinite(loss)
    assert np.isscalar(loss) and float(np.array([loss]).squeeze()) == np.mean([loss, loss]) == loss.item()  # TensorBoard's add_scalar()
    assert loss.detach().item() == value


def test_backward_takes_what_has_no_effect_and_refuses_the_rest():
    loss, optimizer = one_loss()
    for wrong in ({"create_graph": True}, {"gradient": torch.ones(())}, {"inputs": [torch.ones(1)]}):
        with pytest.raises(ValueError, match="a private step has one backward"):
            loss.backward(**wrong)
    loss.backward(retain_graph=True)
    optimizer.step()


def test_a_scaler_is_refused_and_a_mean_of_it_is_itself():
    loss, optimizer = one_loss()
    with pytest.raises(ValueError, match="leave the scaler out"):
        torch.amp.GradScaler("cpu").scale(loss)
    loss.mean().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("attribution_check", [True, False])
def test_a_term_of_the_loss_is_of_each_example(attribution_check):
    """A second loss's mean over the batch would be in everybody's loss; the sentence says so, and its way out is right."""
    module, optimizer, criterion, loader = private(nn.Linear(6, 3), attribution_check=attribution_check)
    hand_out(loader, 4)
    out = module(torch.randn(4, 6))
    loss = criterion(out, torch.randint(0, 3, (4,)))
    for wrong in (out.pow(2).mean(), nn.functional.mse_loss(out, torch.zeros(4, 3)), next(module.parameters()).pow(2).sum()):
        for join in (lambda term: loss + term, lambda term: term + loss, lambda term: loss - 0.1 * term, lambda term: term * loss):
            with pytest.raises(ValueError, match="one number with a gradient for all 4 examples.*reduction='none'.*weight_decay.*criterion=lambda losses: losses"):
                join(wrong)
    (loss + nn.functional.mse_loss(out, torch.zeros(4, 3), reduction="none").mean(1)).backward()
    optimizer.step()


def test_a_batch_of_one_may_have_a_term_without_an_extent():
    module, optimizer, criterion, loader = private(nn.Linear(6, 3))
    hand_out(loader, 1)
    out = module(torch.randn(1, 6))
    (criterion(out, torch.randint(0, 3, (1,))) + out.pow(2).mean()).backward()
    optimizer.step()


def test_parts_of_a_wrapped_model_are_the_models():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    module, *_ = private(model)
    assert module[0] is model[0] and list(module) == list(model)


def test_a_handle_beside_the_model_says_that_it_is_none():
    """`model, optimizer, … = make_private(wrap_model=False)` puts it in the place of the model by name."""
    hooks, *_ = private(nn.Linear(6, 3), wrap_model=False)
    for use in (lambda: hooks(torch.randn(2, 6)), lambda: hooks.to("cpu"), lambda: hooks.state_dict(), lambda: hooks.train()):
        with pytest.raises((TypeError, AttributeError), match="a handle beside the model, which stays your own"):
            use()
    assert not hasattr(hooks, "nothing_like_it")


@pytest.mark.parametrize("wrap_model", [True, False])
def test_a_second_make_private_on_one_model_is_refused(wrap_model):
    model = nn.Linear(6, 3)
    private(model, wrap_model=wrap_model)
    with pytest.raises(ValueError, match="private already"):
        private(model)


def test_a_call_that_was_refused_can_be_repeated():
    model = nn.Linear(6, 3)
    for wrong, error in (({"unknown": 1}, TypeError), ({"accumulation_steps": 0}, ValueError)):
        with pytest.raises(error):
            private(model, **wrong)
    private(model)


def test_a_model_that_was_taken_back_is_made_private_again():
    model = nn.Linear(6, 3)
    hooks, *_ = private(model, wrap_model=False)
    hooks.cleanup()
    module, optimizer, criterion, loader = private(model)
    hand_out(loader, 4)
    criterion(module(torch.randn(4, 6)), torch.randint(0, 3, (4,))).backward()
    optimizer.step()


def gpt2():
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 50, "n_positions": 16}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def with_lora(model):
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(model, lora)


@pytest.mark.parametrize("build", [gpt2, lambda: with_lora(gpt2())], ids=["whole", "lora"])
def test_the_first_output_is_the_loss_where_labels_are_given(build):
    ids = torch.randint(0, 50, (40, 6))
    module, optimizer, _, loader = private(build().train(), TensorDataset(ids))
    hand_out(loader, 4)
    outputs = module(input_ids=ids[:4], labels=ids[:4])
    assert outputs[0] is outputs.loss and outputs[1] is outputs.logits
    outputs[0].backward()
    optimizer.step()


@pytest.mark.parametrize("how", ["copied", "saved"])
def test_a_model_that_is_copied_or_saved_whole_is_a_plain_one(how, tmp_path):
    module, optimizer, criterion, loader = private(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)))
    hand_out(loader, 4)
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    criterion(module(x), y).backward()
    optimizer.step()
    if how == "saved":
        torch.save(module, tmp_path / "model.pt")
        other = torch.load(tmp_path / "model.pt", weights_only=False)
    else:
        other = copy.deepcopy(module)
    torch.testing.assert_close(other(x), module(x))
    inner = other._module
    inner.zero_grad()
    nn.functional.cross_entropy(inner(x), y).backward()  # plain autograd
    assert all(p.grad is not None and bool(p.grad.any()) for p in inner.parameters())
    for each in inner.modules():  # its charges are of other data here (test_lost_charges.py)
        vars(each).pop("ghostshard_charges", None)
    again, optimizer, criterion, loader = private(inner)
    hand_out(loader, 4)
    criterion(again(x), y).backward()
    optimizer.step()


def test_a_plain_loss_is_told_which_loss_to_take():
    module, optimizer, _, loader = private(nn.Linear(6, 3))
    hand_out(loader, 4)
    nn.functional.cross_entropy(module(torch.randn(4, 6)), torch.randint(0, 3, (4,))).backward()
    with pytest.raises(RuntimeError, match=r"of the loss that the criterion of make_private\(\) gives"):
        optimizer.step()


class Slots:
    __slots__ = ()

    def __call__(self, out, y):
        return nn.functional.cross_entropy(out, y, reduction="none")

    method = __call__


class FixedReduction(Slots):
    reduction = property(lambda self: "mean")


@pytest.mark.parametrize("criterion", [Slots(), Slots().method, FixedReduction()], ids=["slots", "method", "property"])
def test_criterions_that_take_no_attribute(criterion):
    module, optimizer, criterion, loader = private(nn.Linear(6, 3), criterion=criterion)
    hand_out(loader, 4)
    criterion(module(torch.randn(4, 6)), torch.randint(0, 3, (4,))).backward()
    optimizer.step()


@pytest.mark.parametrize("given", [None, (1, 2), {"loss": 1}], ids=["nothing", "tuple", "dict"])
def test_criterions_that_give_no_tensor_are_refused(given):
    module, optimizer, criterion, loader = private(nn.Linear(6, 3), criterion=lambda out, y: given)
    hand_out(loader, 4)
    with pytest.raises(ValueError, match="the criterion must give a tensor, one loss for each example"):
        criterion(module(torch.randn(4, 6)), torch.randint(0, 3, (4,)))


@pytest.mark.parametrize("criterion", [F.cross_entropy, functools.partial(F.cross_entropy, label_smoothing=0.1)], ids=["function", "partial"])
def test_functions_of_torch_that_average_are_told_how_not_to(criterion):
    run = Run(criterion=criterion)
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match=r"cross_entropy must give one loss per example.*functools\.partial\(F\.cross_entropy, reduction='none'\)"):
        run.criterion(run.module(x), y)


def test_torch_functions_of_it():
    loss, _ = one_loss()
    assert torch.isfinite(loss) and not torch.isnan(loss) and not torch.isinf(loss) and torch.isclose(loss, loss)
    assert loss.requires_grad and loss.shape == () and loss.dim() == 0 and loss.numel() == 1 and loss.dtype == torch.float32
    assert loss.ndim == 0 and loss.size() == () and not loss.is_cuda and loss.isfinite() and not loss.isnan() and not loss.isinf()
    assert loss.device.type == "cpu" and loss.data.item() == loss.item()
    for made in (torch.tensor(2.0) * loss, torch.mul(loss, 2.0), torch.add(loss, loss), torch.tensor(0.0) + loss + loss):
        assert abs(made.item() - 2 * loss.item()) < 1e-6
    assert abs((torch.tensor(1.0) - loss).item() - (1 - loss.item())) < 1e-6
    with pytest.raises(TypeError, match=r"of several, sum\(losses\) / len\(losses\)"):
        torch.stack([loss, loss])
    assert abs((sum([loss, loss]) / 2).item() - loss.item()) < 1e-6
    for refused in (lambda: torch.stack([loss]), lambda: torch.exp(loss), lambda: loss**2, lambda: 1 / loss, lambda: torch.tensor(1.0) / loss):
        with pytest.raises(TypeError, match="has no gradient of one example"):
            refused()


@pytest.mark.parametrize("form", [lambda loss: loss * loss, lambda loss: loss / loss, lambda loss: loss**2], ids=["product", "quotient", "power"])
def test_a_function_of_the_whole_batchs_loss_is_refused(form):
    loss, _ = one_loss()
    with pytest.raises(TypeError, match="is a function of the whole batch's loss"):
        form(loss)


@pytest.mark.parametrize("name", ["exp", "abs", "clamp", "sqrt", "unsqueeze", "add_", "pow"])
def test_methods_of_a_tensor_that_it_does_not_have_say_why(name):
    loss, _ = one_loss()
    with pytest.raises(AttributeError, match=rf"{name}\(\) of a private loss is a function of the whole batch's loss"):
        getattr(loss, name)
    assert not hasattr(loss, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing_of_the_kind'"):
        loss.nothing_of_the_kind


def test_moved_or_cast_it_is_the_same_loss():
    loss, optimizer = one_loss()
    loss.to("cpu").float().clone().cpu().double().to(torch.float64).backward()
    optimizer.step()


@pytest.mark.parametrize("by_name", [True, False])
def test_a_mean_of_ctc_divides_each_loss_by_its_own_targets(by_name):
    """As torch's criterion does for one example alone."""
    inputs, targets = torch.randn(40, 10, 6), torch.randint(1, 5, (40, 4))
    lengths, of_targets = torch.randint(8, 11, (40,)), torch.randint(2, 5, (40,))
    model = nn.Sequential(nn.Linear(6, 5), nn.LogSoftmax(-1))
    plain = copy.deepcopy(model)
    module, optimizer, criterion, loader = private(model, TensorDataset(inputs, targets, lengths, of_targets), criterion=nn.CTCLoss())
    x, y, own, each = next(iter(loader))
    given = {"input_lengths": own, "target_lengths": each}
    outputs = module(x).transpose(0, 1)
    loss = criterion(outputs, y, **given) if by_name else criterion(outputs, y, own, each)
    alone = [nn.functional.ctc_loss(plain(x[u : u + 1]).transpose(0, 1), y[u : u + 1], own[u : u + 1], each[u : u + 1]) for u in range(len(x))]
    torch.testing.assert_close(torch.as_tensor(loss.loss_per_sample.detach()), torch.stack(alone).detach(), check_stride=False)
    loss.backward()
    optimizer.step()


def test_distillation_by_batchmean_is_the_sum_of_each_rows_terms():
    """KLDivLoss' own reduction: a row's sum, averaged over the rows; of texts that were flattened, over each one's own."""
    soft = torch.randn(40, 5, 3).softmax(-1)
    module, optimizer, criterion, loader = private(nn.Linear(6, 3), TensorDataset(torch.randn(40, 5, 6), soft), criterion=nn.KLDivLoss(reduction="batchmean"))
    prescribe(loader, (8, 7))
    for flatten in (False, True):
        x, y = next(iter(loader))
        out = module(x).log_softmax(-1)
        loss = criterion(*((each.reshape(-1, 3) for each in (out, y)) if flatten else (out, y)), **({"shape": out.shape} if flatten else {}))
        expected = nn.functional.kl_div(out, y, reduction="none").sum((1, 2)) / (5 if flatten else 1)
        assert torch.allclose(loss.loss_per_sample, expected)
        loss.backward()
        optimizer.step()
    with pytest.raises(ValueError, match="the criterion's reduction must be loss_reduction"):
        private(nn.Linear(6, 3), criterion=nn.KLDivLoss(reduction="batchmean"), loss_reduction="sum")


class Holds(nn.Module):
    def __init__(self, net, criterion):
        super().__init__()
        self.net, self.criterion = net, criterion

    def forward(self, x):
        return self.net(x)


def test_a_model_that_holds_its_criterion_is_averaged_and_its_copy_makes_no_private_step():
    module, optimizer, criterion, loader = private(nn.Linear(6, 3))
    held = Holds(module, criterion)
    average = torch.optim.swa_utils.AveragedModel(held)
    batches = iter(loader)
    for _ in range(2):
        x, y = next(batches)
        held.criterion(held(x), y).backward()
        optimizer.step()
        average.update_parameters(held)
    assert type(average.module.criterion) is nn.CrossEntropyLoss
    x, y = next(batches)
    average.module.criterion(average.module(x), y).backward()
    with pytest.raises(RuntimeError, match="needs a backward.. since the last step"):
        optimizer.step()
