"""Two ranks: tied weights whose modules were sharded one by one are refused; ties that are kept, copies of a layer and frozen weights are not."""

import sys

import torch
import torch.distributed as dist
from models import Language
from opacus.utils.fsdp_utils import FSDP2Wrapper as OfOpacus
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from transformers import T5Config, T5ForConditionalGeneration

from ghostshard import FSDP2Wrapper, PrivacyEngine


def one_by_one(model):
    for part in (model.tokens, model.head):
        fully_shard(part)
    return fully_shard(model)


def at_once(model):
    fully_shard([model.tokens, model.head])
    return fully_shard(model)


def frozen(model):
    return one_by_one(model.requires_grad_(False)).requires_grad_(False)


def t5():
    return T5ForConditionalGeneration(T5Config(vocab_size=12, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0))


def copies():
    return nn.Sequential(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2, enable_nested_tensor=False))


class Mixed(nn.Module):
    """A vector beside each of two layers, of one shape and of one beginning, as RWKV has them: two parameters by rule."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale = nn.Linear(8, 8), nn.Parameter(torch.arange(8.0).clamp(min=3).view(1, 1, 8))

        def forward(self, x):
            return self.layer(x * self.scale)

    class ScaledToo(Scaled):
        pass

    def __init__(self):
        super().__init__()
        self.tokens, self.one, self.other, self.head = nn.Embedding(11, 8), Mixed.Scaled(), Mixed.ScaledToo(), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.other(self.one(self.tokens(x))).mean(1))


def refusal(model, shard) -> str:
    torch.manual_seed(3)
    sharded = shard(model())
    data = DataLoader(TensorDataset(torch.randint(0, 11, (16, 7))), batch_size=4)
    try:
        PrivacyEngine().make_private(
            module=sharded, optimizer=torch.optim.SGD(sharded.parameters(), lr=0.1), data_loader=data, noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost_fsdp",
        )  # fmt: skip
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    dist.init_process_group("gloo")
    tied, untied = (lambda: Language(tied=True)), (lambda: Language(tied=False))
    for shard in (one_by_one, OfOpacus):
        assert refusal(tied, shard).startswith("tokens.weight and head.weight have the same values and are two parameters"), refusal(tied, shard)
    assert refusal(t5, OfOpacus).startswith("shared.weight and ")  # three embeddings of one class
    kept = [(tied, FSDP2Wrapper), (tied, at_once), (tied, fully_shard), (untied, one_by_one), (t5, FSDP2Wrapper), (copies, OfOpacus), (copies, FSDP2Wrapper), (Mixed, OfOpacus)]
    said = [refusal(*each) for each in kept]
    assert not any(said), said
    assert "have the same values" not in refusal(tied, frozen)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    sys.exit(0)
