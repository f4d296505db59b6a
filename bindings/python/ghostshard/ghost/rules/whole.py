"""Modules that are computed as one layer with their children: they read a child's weight themselves, give children rows that they chose among those of all
examples, or hand on from child to child what has several rows of each example."""

from torch import nn

from .any_layer import per_example
from .layer import register_rule

_READ_WEIGHTS = (
    "BailingHybridDeltaAttention", "ConditionalDetrMHAttentionMap", "DabDetrMHAttentionMap", "DetrMHAttentionMap", "EdgeTamMaskDecoder", "Glm5NextTextLinearAttention",
    "InklingShortConvolution", "Inkling2ShortConvolution", "KimiLinearDeltaAttention", "Lfm2ShortConv", "Lfm2MoeShortConv", "Lfm3ShortConv", "LongcatFlashTopkRouter",
    "MaskFormerDetrMHAttentionMap", "MaskFormerTransformerModule", "RecurrentGemmaRecurrentBlock", "SamMaskDecoder", "SamHQMaskDecoder", "Sam2MaskDecoder",
    "SamPromptEncoder", "SamHQPromptEncoder", "Siglip2VisionEmbeddings", "TDNNLayer",
)  # fmt: skip
_TURN_ROWS = ("LEDEncoderSelfAttention", "LongformerSelfAttention")  # time first, for their own children
_CHOOSE_ROWS = ("InklingMoE", "JetMoeAttention", "Llama4TextMoe", "SwitchTransformersSparseMLP")
# Of PEFT: they form weights of their children's, or of what these give without an input.
_FORM_WEIGHTS = ("glora:GloraLinear", "lily:Linear", "lora.layer:ParamWrapper", "peanut:Linear")
_HAND_ON_ROWS = ("WavLMEncoder", "WavLMEncoderStableLayerNorm")  # biases of distances, for each head of each example

register_rule(*(f"peft.tuners.{name}" for name in _FORM_WEIGHTS))(per_example)
register_rule(nn.AdaptiveLogSoftmaxWithLoss, *(f"transformers:{name}" for name in (*_READ_WEIGHTS, *_TURN_ROWS, *_CHOOSE_ROWS, *_HAND_ON_ROWS)))(per_example)
