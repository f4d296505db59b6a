"""Modules of Transformers that are computed as one layer with their children: they read a child's weight themselves, or give children rows that they
chose among those of all examples."""

from .any_layer import per_example
from .layer import register_rule

_READ_WEIGHTS = (
    "BailingHybridDeltaAttention", "ConditionalDetrMHAttentionMap", "DabDetrMHAttentionMap", "DetrMHAttentionMap", "EdgeTamMaskDecoder", "Glm5NextTextLinearAttention",
    "InklingShortConvolution", "Inkling2ShortConvolution", "KimiLinearDeltaAttention", "Lfm2ShortConv", "Lfm2MoeShortConv", "Lfm3ShortConv", "LongcatFlashTopkRouter",
    "MaskFormerDetrMHAttentionMap", "RecurrentGemmaRecurrentBlock", "SamMaskDecoder", "SamHQMaskDecoder", "Sam2MaskDecoder", "Siglip2VisionEmbeddings", "TDNNLayer",
)  # fmt: skip
_CHOOSE_ROWS = ("Llama4TextMoe", "SwitchTransformersSparseMLP")

register_rule(*(f"transformers:{name}" for name in (*_READ_WEIGHTS, *_CHOOSE_ROWS)))(per_example)
