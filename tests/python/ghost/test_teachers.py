"""A teacher's outputs are followed from the batch through Transformers' masks, whatever its examples' lengths."""

import copy

import oracle
import pytest
import torch
from launch import SUM_TOLERANCE
from private_run import prescribe
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from ghostshard import PrivacyEngine

transformers = pytest.importorskip("transformers")
CLIP, BATCH = 0.02, 6
DRAWN = "not known to be of the batch"


class Texts:
    """The first four are of one length, so that a draw of them alone needs no mask."""

    def __len__(self):
        return 24

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randint(3, 29, (4 if i < 4 else 3 + i % 5,), generator=g)


def padded(texts):
    ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def bert(attention):
    config = transformers.BertConfig(
        vocab_size=29, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=3, attn_implementation=attention,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def roberta(attention):
    """Its ids of types are looked up in a buffer, and its places counted from the mask."""
    config = transformers.RobertaConfig(
        vocab_size=29, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=18, num_labels=3, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, attn_implementation=attention,
    )  # fmt: skip
    return transformers.RobertaForSequenceClassification(config)


def gpt2(attention):
    config = transformers.GPT2Config(
        vocab_size=29, n_embd=16, n_layer=1, n_head=2, n_positions=16, num_labels=3, pad_token_id=0, bos_token_id=1, eos_token_id=2, attn_implementation=attention
    )
    return transformers.GPT2ForSequenceClassification(config)


def llama(attention):
    config = transformers.LlamaConfig(
        vocab_size=29, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        attn_implementation=attention,
    )  # fmt: skip
    return transformers.LlamaForSequenceClassification(config)


def distilled(logits, teachers):
    return functional.kl_div(logits.log_softmax(-1), teachers.softmax(-1), reduction="none").sum(-1)


def run_of(model, loss, draws, **options):
    module, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(Texts(), batch_size=BATCH, collate_fn=padded),
        noise_multiplier=0.0, max_grad_norm=CLIP, grad_sample_mode="ghost", criterion=distilled, **options,
    )  # fmt: skip
    prescribe(loader, draws)
    for i, batch in enumerate(loader, 1):
        loss(module, criterion, batch).backward()
        if i % options.get("accumulation_steps", 1) == 0:
            optimizer.step()
            yield
            optimizer.zero_grad()


@pytest.mark.parametrize("draws", [(9, 3, 4, 12), (9, 1, 5, 1, 3), (1, 4, 1)], ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("build", [bert, roberta, gpt2, llama])
def test_a_teacher_with_a_mask_is_followed(build, attention, draws):
    """In draws of one example, too: a table of places is cut to that one's length."""
    torch.manual_seed(1)
    model, teacher = bert(attention), build(attention).eval().requires_grad_(False)
    before, wide = copy.deepcopy(model), copy.deepcopy(teacher).double()

    def loss(module, criterion, batch):
        with torch.no_grad():
            of_teacher = teacher(**batch).logits
        return criterion(module(**batch).logits, of_teacher)

    def alone(m, batch):
        length = int((batch[0] != 0).sum())
        given = {"input_ids": batch[0][:, :length]}
        return distilled(m(**given).logits, wide(**given).logits)

    for count, _ in zip(draws, run_of(model, loss, draws)):
        found = {name: p.grad * BATCH for name, p in model.named_parameters()}
        ids = padded([Texts()[i] for i in range(count)])["input_ids"]
        assert oracle.worst_difference(found, oracle.clipped_sum(before, alone, [(ids,)], CLIP)) < 2 * SUM_TOLERANCE
        before = copy.deepcopy(model)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("build", [bert, gpt2, llama])
def test_a_teacher_is_followed_in_batches_of_one(build, attention):
    """Each draw comes in batches of one example, of which none is of several: tables and masks of places go on where those of shorter texts ended."""
    torch.manual_seed(1)
    teacher = build(attention).eval().requires_grad_(False)

    def loss(module, criterion, batch):
        with torch.no_grad():
            of_teacher = teacher(**batch).logits
        return criterion(module(**batch).logits, of_teacher)

    assert len(list(run_of(bert(attention), loss, (6, 6), accumulation_steps=6))) == 2


def of_another(value):
    """What nobody handed out, of the example after this one, cut and filled to its extents."""

    def loss(module, criterion, batch):
        ids = batch["input_ids"]
        other = value(Texts()[5 + loss.turn % 7].float())
        loss.turn += 1
        other = functional.pad(other, (0, max(0, ids.shape[1] - len(other))))[: ids.shape[1]][None]
        targets = module(**batch).logits.detach()
        return criterion(module(**batch).logits, targets + ((ids * other).sum(1, keepdim=True) if len(ids) == 1 else 0 * ids.sum(1, keepdim=True)))

    loss.turn = 0
    return loss


OTHERS = {"values": lambda x: x, "places": lambda x: torch.arange(len(x)).flip(0) / 10, "a mask": lambda x: (x > 10).long(), "ids": lambda x: x.long()}


@pytest.mark.parametrize("value", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("draws, options", [((9, 1, 5, 1, 3, 1), {}), ((6, 6), {"accumulation_steps": 6})], ids=["draws of one", "batches of one"])
def test_values_of_others_in_batches_of_one_are_refused(value, draws, options):
    """Of other lengths than those before, as a table of places is."""
    torch.manual_seed(1)
    with pytest.raises(ValueError, match="nothing tells it from a row of another example here"):
        list(run_of(bert("sdpa"), of_another(value), draws, **options))


def rows_chosen_by(index):
    def loss(module, criterion, batch):
        mask = batch["attention_mask"]
        chosen = mask[index(len(mask))[:, None, None], torch.arange(mask.shape[1])[None, None, :]]
        return criterion(module(**batch).logits, module(**batch).logits.detach() * 0 + chosen.float().sum((1, 2))[:, None])

    return loss


def test_places_that_count_up_choose_each_row_for_itself():
    torch.manual_seed(1)
    assert len(list(run_of(bert("sdpa"), rows_chosen_by(torch.arange), (6, 6)))) == 2


ORDERS = {"turned": lambda n: torch.arange(n).flip(0), "shifted": lambda n: torch.arange(n).roll(1), "one": lambda n: torch.tensor([*range(n - 1), 0])}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_places_in_another_order_are_refused(order):
    torch.manual_seed(1)
    with pytest.raises(ValueError, match=DRAWN):
        list(run_of(bert("sdpa"), rows_chosen_by(order), (6, 6)))


def test_places_that_follow_from_others_are_refused():
    torch.manual_seed(1)

    def loss(module, criterion, batch):
        mask = batch["attention_mask"]
        of_others = torch.from_numpy(mask.sum(1).numpy().copy()).roll(1) - 1  # the last place of the example before
        chosen = mask[torch.arange(len(mask))[:, None], of_others[:, None]]
        return criterion(module(**batch).logits, module(**batch).logits.detach() * 0 + chosen.float())

    with pytest.raises(ValueError, match="chose its elements by a tensor that the loader did not hand out"):
        list(run_of(bert("sdpa"), loss, (6, 6)))


def test_a_branch_of_the_loops_own_by_such_a_mask_is_refused():
    """What Transformers asks of a mask is let pass where it asks, nowhere else."""
    torch.manual_seed(1)

    def loss(module, criterion, batch):
        targets = module(**batch).logits.detach()
        if batch["attention_mask"].all():
            targets = targets * 2
        return criterion(module(**batch).logits, targets)

    with pytest.raises(ValueError, match="another way than in an earlier draw|not what it was|did not have"):
        list(run_of(bert("sdpa"), loss, (9, 3)))


def whisper(**config):
    config = transformers.WhisperConfig(
        vocab_size=29, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        num_mel_bins=4, max_source_positions=6, max_target_positions=16, pad_token_id=0, decoder_start_token_id=1, mask_time_prob=0.2, mask_time_length=2, **config,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config).train()


def test_masks_that_a_speech_model_tosses_are_named():
    from private import Private

    given = {"input_features": torch.randn(4, 4, 12), "labels": torch.randint(3, 29, (4, 5))}
    with pytest.raises(ValueError, match="apply_spec_augment = False"):
        Private(whisper(apply_spec_augment=True), 1.0).module(**given)
    Private(whisper(apply_spec_augment=False), 1.0).module(**given)
