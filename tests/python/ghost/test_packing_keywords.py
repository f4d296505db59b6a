"""Which packings are accepted, what they mean, and which are refused."""

import pytest
import torch
from packed import one_row, some_users
from private import Private
from ranks_main import gpt2
from torch import nn

from ghostshard import pack_texts
from ghostshard.ghost import packing
from ghostshard.ghost.loss import PrivateCriterion

CLIP = 0.5

READ = {
    "ids_anew_in_each_row": ({"segment_ids": [[0, 0, 1, 1], [0, 0, 0, 1]]}, [0, 0, 1, 1, 2, 2, 2, 3], []),
    "one_id_in_two_rows_is_two_texts": ({"segment_ids": [[5, 5, 5, 5], [5, 5, 5, 5]]}, [0] * 4 + [1] * 4, []),
    "padding_goes_with_what_is_before": ({"segment_ids": [[0, -1, 0, 3], [-1, -1, 1, -9]]}, [0, 0, 0, 1, 2, 2, 2, 2], [1, 4, 5, 7]),
    "a_row_of_padding_goes_with_the_last": ({"segment_ids": [[0, 0, 1, 1], [-1, -1, -1, -1]]}, [0, 0, 1, 1, 1, 1, 1, 1], [4, 5, 6, 7]),
    "or_with_the_first": ({"segment_ids": [[-1] * 4, [0, 0, 1, 1]]}, [0, 0, 0, 0, 0, 0, 1, 1], [0, 1, 2, 3]),
    "offsets": ({"cu_seqlens": [0, 1, 6, 8]}, [0, 1, 1, 1, 1, 1, 2, 2], []),
    "users": ({"cu_seqlens": [0, 1, 6, 8], "user_ids": [9, 4, 9]}, [0, 1, 1, 1, 1, 1, 0, 0], []),
    "one_extent": ({"segment_ids": [0, 0, 2], "extents": (3,)}, [0, 0, 1], []),
}  # fmt: skip


@pytest.mark.parametrize("said, units, padding", READ.values(), ids=READ.keys())
def test_what_is_said_is_read(said, units, padding):
    extents = said.get("extents", (2, 4))
    said = {name: torch.tensor(value) for name, value in said.items() if name != "extents"}
    found = packing.read(said, torch.zeros(extents, dtype=torch.long))
    assert found.unit_of_row.tolist() == units
    assert found.padding.nonzero().flatten().tolist() == padding


@pytest.mark.parametrize("said", [{"segment_ids": torch.zeros(1, 0, dtype=torch.long)}, {"cu_seqlens": [0]},
                                  {"cu_seqlens": [0], "user_ids": []}], ids=["ids", "offsets", "users"])  # fmt: skip
def test_a_batch_of_nobody_is_read(said):
    found = packing.read(said, torch.zeros(1, 0, dtype=torch.long))
    assert (found.units, found.segments, found.rows) == (0, 0, 0)


BAD = {
    "ids_that_decrease": ({"segment_ids": [[0, 1, -1, 0], [0, 0, 0, 0]]}, r"must not decrease.*0 follows 1 at \[0, 3\]"),
    "ids_of_other_extents": ({"segment_ids": [[0, 1, 1]]}, r"extents of the tokens, \(2, 4\), got \(1, 3\)"),
    "ids_that_are_no_integers": ({"segment_ids": [[0.0] * 4] * 2}, "must be integers, got torch.float32"),
    "ids_that_are_a_mask": ({"segment_ids": [[True] * 4] * 2}, "must be integers, got torch.bool"),
    "padding_alone": ({"segment_ids": [[-1] * 4] * 2}, "8 rows must have a segment"),
    "both": ({"segment_ids": [[0] * 4] * 2, "cu_seqlens": [0, 8]}, "got both"),
    "offsets_that_begin_late": ({"cu_seqlens": [1, 8]}, "from 0 to the 8 rows of the batch, got 1 to 8"),
    "offsets_that_end_early": ({"cu_seqlens": [0, 3, 7]}, "from 0 to the 8 rows of the batch, got 0 to 7"),
    "offsets_that_stand_still": ({"cu_seqlens": [0, 3, 3, 8]}, "must increase.*3 follows 3"),
    "offsets_of_two_extents": ({"cu_seqlens": [[0, 8]]}, r"\[segments \+ 1\], got shape \(1, 2\)"),
    "no_offsets": ({"cu_seqlens": []}, r"got shape \(0,\)"),
    "users_alone": ({"user_ids": [1, 2]}, "give segment_ids or cu_seqlens"),
    "too_few_users": ({"cu_seqlens": [0, 3, 8], "user_ids": [1]}, r"each of the 2 segments, got shape \(1,\)"),
    "users_that_are_no_integers": ({"cu_seqlens": [0, 8], "user_ids": [0.5]}, "user_ids must be integers"),
}  # fmt: skip


@pytest.mark.parametrize("said, message", BAD.values(), ids=BAD.keys())
def test_everything_else_is_refused_with_rule_and_value(said, message):
    private = Private(gpt2(), CLIP)
    said = {name: torch.tensor(value) for name, value in said.items()}
    with pytest.raises(ValueError, match=message):
        private.module(input_ids=torch.zeros(2, 4, dtype=torch.long), **said)


def test_losses_and_labels_that_lost_rows_are_refused():
    batch = one_row(some_users())
    private = Private(gpt2(), CLIP)
    criterion = PrivateCriterion(private.engine, private.optimizer, nn.CrossEntropyLoss())
    labels = batch.pop("labels")
    logits = private.module(**batch).logits
    with pytest.raises(ValueError, match=r"\(1, 24\) or \(24,\), or one for each unit, got \(23,\)"):
        criterion(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    with pytest.raises(ValueError, match=r"tokens' extents \(1, 24\), got \(1, 23\)"):
        private.module(**batch, labels=labels[:, 1:])


class Takes(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.got = layer, None

    def forward(self, x, user_ids=None):
        self.got = user_ids
        return self.layer(x)


def test_keywords_go_on_to_a_model_that_names_them():
    model = Takes(nn.Linear(6, 3))
    private = Private(model, CLIP)
    mine = torch.tensor([1, 1])
    private.module(torch.randn(2, 6), user_ids=mine)  # of users it knows by itself: nothing is packed
    assert private.engine.packing is None and torch.equal(model.got, mine)
    private.module(torch.randn(5, 6), cu_seqlens=[0, 2, 5], user_ids=mine)
    assert private.engine.packing.units == 1 and torch.equal(model.got, mine)


REFUSED = {
    "time_first": (lambda: Private(Takes(nn.Linear(6, 3)), CLIP, batch_first=False), "batch_first=True"),
    "layer_without_a_rule": (
        lambda: Private(Takes(nn.Sequential(nn.Linear(6, 6), nn.InstanceNorm1d(5, affine=True))), CLIP),
        r"layer\.1 \(InstanceNorm1d\).*this one is packed",
    ),
    "convolution": (
        lambda: Private(Takes(nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3))), CLIP),
        r"layer\.1 \(Conv1d\).*this one is packed",
    ),
    "group_norm": (lambda: Private(Takes(nn.GroupNorm(2, 6)), CLIP), r"layer \(GroupNorm\).*this one is packed"),
    "rows_moved": (
        lambda: Private(Takes(nn.Sequential(nn.Linear(6, 6), nn.Flatten(0), nn.Unflatten(0, (6, 5)), nn.Linear(5, 3))), CLIP),
        r"'?layer\.3\.weight'?: the first extents must be those of the packed batch's tokens, got \[6, 5\]",
    ),
}


@pytest.mark.parametrize("build, message", REFUSED.values(), ids=REFUSED.keys())
def test_layers_that_have_no_rule_for_packed_rows(build, message):
    with pytest.raises(ValueError, match=message):
        build().module(torch.randn(5, 6), cu_seqlens=[0, 2, 5])


@pytest.mark.parametrize("texts, users", [([[1], []], False), ([[[1]], []], True), ([[[1, 2]]], False)], ids=str)
def test_texts_that_cannot_be_packed(texts, users):
    with pytest.raises(ValueError, match="one token or more"):
        pack_texts(texts, users=users)


def test_a_mask_that_is_added_says_the_same():
    seen = pack_texts([[1, 2], [3]])["attention_mask"]
    added = pack_texts([[1, 2], [3]], mask_dtype=torch.float32)["attention_mask"]
    assert seen[0, 0].tolist() == [[True, False, False], [True, True, False], [False, False, True]]
    assert torch.equal(added == 0, seen) and (added[~seen] < -1e38).all()
