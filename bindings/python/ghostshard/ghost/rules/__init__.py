"""Layers whose trainable parameters are recorded instead of getting a gradient.

layer            a layer as its rule sees it, and which rule a layer has
layers           linear layers, embeddings, norms
convolutions     convolutions, as linear layers on patches
graphs           layers of PyTorch Geometric, on graphs laid end to end
recurrent        RNN, LSTM and GRU, as linear layers of each step
any_layer        layers without a rule of their own, by torch.func: call (its arguments), folds (its outputs), skeleton (its forward), kept (what that sets), one_by_one
whole            modules that are one such layer with their children
beside_children  parameters that a module uses beside children that are sharded apart
scaled_tables    embeddings of other classes, whose forward is a lookup times one number
tables           embeddings whose weight a model reads as it is
ties             weights that layers with a rule share with layers that have none
tensor_parallel  layers whose weights are cut over ranks
"""

from . import convolutions, graphs, recurrent, whole  # noqa: F401 (they register themselves, as layers does)
from .any_layer import per_example
from .beside_children import beside_children
from .layer import Layer, Rule, register_rule, rule_for, same_output
from .layers import BY_ROWS as _BY_ROWS
from .layers import affine
from .scaled_tables import scaled_lookup, scaled_rule
from .skeleton import instantiable, refuse_computed_weights, sharded_apart, taken_whole
from .tables import look_up_tables
from .ties import of_one_kind

BY_ROWS = _BY_ROWS | {scaled_lookup}
WITH_CHILDREN = {per_example, recurrent.recurrent}  # rules that answer for the layers inside of theirs

__all__ = [
    "BY_ROWS", "WITH_CHILDREN", "Layer", "Rule", "affine", "beside_children", "instantiable", "look_up_tables", "of_one_kind", "per_example", "refuse_computed_weights", "register_rule", "rule_for", "same_output", "scaled_rule", "sharded_apart", "taken_whole",
]  # fmt: skip
