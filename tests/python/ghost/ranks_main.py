"""Scenarios on several ranks: started by torchrun, writes a JSON list to the file named first. See test_ghost_ranks.py.

    torchrun --nproc_per_node 4 ranks_main.py results.json 2x2 [scenario …]
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import oracle
import packed
import torch
import torch.distributed as dist
from leaving import report_and_leave
from models import CASES, next_token_loss
from private import Private
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

from ghostshard import FSDP2Wrapper, pack_texts

ROWS = 9  # of the global first microbatch: no number of ranks divides it


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 24, "n_head": 2, "vocab_size": 50, "n_positions": 16}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, bos_token_id=0, eos_token_id=0))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=50, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForMaskedLM(config)


def gpt2_with_lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(gpt2(), LoraConfig(r=3, lora_dropout=0.0, target_modules=["c_attn", "c_fc"]))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.1)
    return model


def checkpointed_gpt2() -> nn.Module:
    model = gpt2()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def masked_loss(model, batch):
    """Every place counts, as in masked language modelling with all labels given."""
    logits = model(batch[0]).logits
    return functional.cross_entropy(logits.transpose(1, 2), batch[0], reduction="none").mean(1)


def class_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def tokens() -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randint(0, 50, (ROWS, 8)),), (torch.randint(0, 50, (3, 8)),)]


def wrapped(model: nn.Module, mesh) -> nn.Module:
    return FSDP2Wrapper(model, mesh=mesh)


def sharded_by_leaf(model: nn.Module, mesh) -> nn.Module:
    """As Opacus' own wrapper would: a unit for each layer."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.LayerNorm, nn.GRU)):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def sharded_whole(model: nn.Module, mesh) -> nn.Module:
    return fully_shard(model, mesh=mesh)


def by_name(name: str):
    return next(case for case in CASES if case.name == name)


def local(batches: list[tuple[torch.Tensor, ...]]) -> list[tuple[torch.Tensor, ...]]:
    """The first microbatch dealt out unevenly, the second to rank 0 alone: the others have an empty one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first, second = batches[0], batches[1] if len(batches) > 1 else batches[0]
    return [
        tuple(value[rank::ranks] for value in first),
        tuple(value if rank == 0 else value[:0] for value in second),
    ]


def sum_scenario(
    build: Callable[[], nn.Module], batches: Callable[[], list], loss, clip_norm: float, shard=wrapped, **options
) -> Callable:
    def run(mesh) -> float:
        torch.manual_seed(11)
        model, all_batches = build(), batches()
        twin = copy.deepcopy(model)
        expected = oracle.clipped_sum(
            twin, loss, [all_batches[0], all_batches[1] if len(all_batches) > 1 else all_batches[0]], clip_norm
        )
        private = Private(shard(model, mesh), clip_norm, **options)
        return oracle.worst_difference(private.step(loss, local(all_batches)), expected)

    return run


def packed_scenario(build: Callable[[], nn.Module], *texts_of_each: int) -> Callable:
    """Packed units, dealt out unevenly; the second microbatch is rank 0's alone, the other ranks' is empty."""

    def run(mesh) -> float:
        torch.manual_seed(11)
        model, users = build(), packed.some_users(*texts_of_each, lengths=[3, 7, 1, 5, 2, 6, 4, 3])
        expected = packed.clipped_sum(model, users + users[:2], 0.5)
        private = Private(wrapped(model, mesh), 0.5)
        for mine in (users[dist.get_rank() :: dist.get_world_size()], users[:2] if dist.get_rank() == 0 else []):
            private.module(**pack_texts(mine, users=True)).loss.backward()
        return oracle.worst_difference(private.released(), expected)

    return run


def recurrent(kind) -> nn.Module:
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.layers, self.out = nn.Embedding(50, 6), nn.ModuleList([kind(6, 4, batch_first=True)]), nn.Linear(4, 50)

        def forward(self, ids):
            return self.out(self.layers[0](self.tokens(ids))[0])

    return Reads()


class Vision(nn.Module):
    """Its class token, places and scale are the model's own, beside blocks that are sharded apart."""

    def __init__(self):
        super().__init__()
        self.patches, self.out = nn.Linear(6, 8), nn.Linear(8, 50)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 8) / 4), nn.Parameter(torch.randn(1, 5, 8) / 4)
        self.scale = nn.Parameter(torch.full((1,), 0.7))
        self.blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(2)])

    def forward(self, x):
        h = torch.cat([self.token.expand(len(x), -1, -1), self.patches(x)], 1) + self.places
        for block in self.blocks:
            h = h + self.scale * block(h)
        return self.out(h[:, 0])


class Tagged(nn.Module):
    """An LSTM within a layer that is taken whole, for its parameter."""

    def __init__(self):
        super().__init__()
        self.scale, self.lstm, self.out = nn.Parameter(torch.randn(6) / 4), nn.LSTM(6, 6, batch_first=True), nn.Linear(6, 50)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1] * self.scale)


def pictures() -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randn(units, 4, 6), torch.randint(0, 50, (units,))) for units in (6, 4)]


def opacus_lstm() -> nn.Module:
    from opacus.layers import DPLSTM

    return recurrent(DPLSTM)


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=1, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0
    )
    return T5ForConditionalGeneration(config)


def bert_of_spans() -> nn.Module:
    from transformers import BertForQuestionAnswering

    return BertForQuestionAnswering(bert().config)


class HeadBesideBert(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = bert().bert, nn.Linear(24, 50)

    def forward(self, input_ids, labels):
        from transformers.modeling_outputs import TokenClassifierOutput

        logits = self.head(self.body(input_ids=input_ids).last_hidden_state)
        return TokenClassifierOutput(loss=functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits=logits)


def refused(scenario: Callable) -> Callable:
    """The sentence that it ends with, on all ranks."""

    def run(mesh) -> str:
        try:
            scenario(mesh)
        except RuntimeError as error:
            return str(error)
        return "nothing was said"

    return run


def own_loss_scenario(build: Callable[[], nn.Module], *names: str) -> Callable:
    """The model's own loss; the second microbatch is rank 0's alone, the other ranks' is empty."""

    def run(mesh) -> float:
        torch.manual_seed(11)
        model, batches = build(), []
        for (ids,) in tokens():
            given = {"input_ids": ids, "labels": ids.flip(1), "start_positions": ids[:, 0] % 4, "end_positions": 4 + ids[:, 1] % 4}
            batches.append(tuple(given[name] for name in names))
        loss = lambda model, batch: model(**dict(zip(names, batch, strict=True))).loss
        expected = oracle.clipped_sum(copy.deepcopy(model), loss, batches, 0.5)
        private = Private(wrapped(model, mesh), 0.5)
        for batch in local(batches):
            private.module(**{name: value.contiguous() for name, value in zip(names, batch, strict=True)}).loss.backward()
        return oracle.worst_difference(private.released(), expected)

    return run


def noise(mesh) -> list[float]:
    """The noise on one parameter, whole, from a generator that only rank 0's seed decides."""
    torch.manual_seed(11)
    model = by_name("language_tied").build()
    batches = local(by_name("language_tied").batches())
    generator = torch.Generator().manual_seed(5 + 100 * (dist.get_rank() if dist.is_initialized() else 0))
    sums = []
    for noise_multiplier in (2.0, 0.0):
        twin = wrapped(copy.deepcopy(model), mesh)
        private = Private(twin, 0.3, noise_multiplier=noise_multiplier, generator=generator)
        sums.append(private.step(next_token_loss, batches)["tokens.weight"])
    return (sums[0] - sums[1]).flatten().tolist()


def bfloat16(mesh) -> dict[str, float]:
    """Clipped norms under bf16 compute: one example at a time, all of them clipped."""
    torch.manual_seed(11)
    model = FSDP2Wrapper(gpt2(), mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    private = Private(model, 1e-2)
    batch = tokens()[0]
    norms = []
    for i in range(4):
        mine = tuple(value[i : i + 1] if dist.get_rank() == 0 else value[:0] for value in batch)
        found = private.step(next_token_loss, [mine])
        norms.append(float(torch.sqrt(sum(value.double().square().sum() for value in found.values()))) / 1e-2)
    return {"least": min(norms), "most": max(norms)}


def bytes_sent(mesh) -> dict[str, int]:
    """Gradient bytes of a step with two microbatches, reduced each, once, or as the engine decides, and the parameters' own size."""
    sent = {}
    for name, options in (("reduced_each", {"accumulate": False}), ("accumulated", {"accumulate": True}), ("by_itself", {"accumulate": None})):
        torch.manual_seed(11)
        model = wrapped(gpt2(), mesh)
        private = Private(model, 1.0, **options)
        private.step(next_token_loss, local(tokens()))
        sent[name] = private.engine.bytes_sent
        sent["parameters"] = 4 * sum(p.numel() for p in model.parameters())
    return sent


SCENARIOS: dict[str, Callable] = {
    **{
        case: sum_scenario(by_name(case).build, by_name(case).batches, by_name(case).loss, by_name(case).clip_norm)
        for case in ("mlp", "language_tied_and_embedded_twice", "frozen_parts", "conv2d", "conv2d_few_places", "layer_without_a_rule")
    },
    "gpt2_tied": sum_scenario(gpt2, tokens, next_token_loss, 0.5),
    "gpt2_accumulated": sum_scenario(gpt2, tokens, next_token_loss, 0.5, accumulate=True),
    "gpt2_checkpointed": sum_scenario(checkpointed_gpt2, tokens, next_token_loss, 0.5),
    "gpt2_two_passes": sum_scenario(gpt2, tokens, next_token_loss, 0.5, memory_budget=0),
    "gpt2_checkpointed_two_passes": sum_scenario(checkpointed_gpt2, tokens, next_token_loss, 0.5, memory_budget=0),
    "gpt2_with_lora": sum_scenario(gpt2_with_lora, tokens, next_token_loss, 0.05),
    "llama": sum_scenario(llama, tokens, next_token_loss, 0.5),
    "bert": sum_scenario(bert, tokens, masked_loss, 0.5),
    "language_sharded_by_leaf": sum_scenario(
        by_name("language_untied").build, by_name("language_untied").batches, next_token_loss, 0.3, sharded_by_leaf
    ),
    "lstm": sum_scenario(lambda: recurrent(nn.LSTM), tokens, next_token_loss, 0.3),
    "gru_sharded_as_a_leaf": sum_scenario(lambda: recurrent(nn.GRU), tokens, next_token_loss, 0.3, sharded_by_leaf),
    "opacus_lstm": sum_scenario(opacus_lstm, tokens, next_token_loss, 0.3),
    "opacus_lstm_by_fully_shard": refused(sum_scenario(opacus_lstm, tokens, next_token_loss, 0.3, sharded_whole)),
    "own_parameters_beside_blocks": sum_scenario(Vision, pictures, class_loss, 0.3),
    "own_parameters_beside_blocks_two_passes": sum_scenario(Vision, pictures, class_loss, 0.3, memory_budget=0),
    "own_parameter_beside_an_lstm": sum_scenario(Tagged, pictures, class_loss, 0.3),
    "t5_by_its_own_loss": own_loss_scenario(t5, "input_ids", "labels"),
    "bert_spans_by_its_own_loss": own_loss_scenario(bert_of_spans, "input_ids", "start_positions", "end_positions"),
    "own_head_by_its_own_loss": own_loss_scenario(HeadBesideBert, "input_ids", "labels"),
    "packed_texts": packed_scenario(checkpointed_gpt2, *[1] * 8),
    "packed_users": packed_scenario(llama, 2, 1, 1, 3, 1),
    "noise": noise,
    "bfloat16": bfloat16,
    "bytes": bytes_sent,
}


def main(scenarios: dict[str, Callable], axes: tuple[str, ...]) -> None:
    """axes: names of the mesh's, of which a shape with fewer extents has the last ones."""
    results, shape = sys.argv[1], [int(extent) for extent in sys.argv[2].split("x")]
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=axes[-len(shape) :])
    found = {}
    for name in sys.argv[3:] or scenarios:
        print(f"rank {dist.get_rank()}: {name}", file=sys.stderr, flush=True)  # an exception ends all ranks
        found[name] = scenarios[name](mesh)
    report_and_leave(results, found)


if __name__ == "__main__":
    main(SCENARIOS, ("replicate", "shard"))
