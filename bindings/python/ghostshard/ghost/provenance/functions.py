"""What torch's functions do with rows, by name: operations.py follows them."""

from __future__ import annotations

from typing import Any

import torch

# Element by element, with broadcasting. Reversed operators, in-place ones and underscored names follow from these.
ELEMENTWISE = set(
    "to type cpu cuda float half double bfloat16 long int short char bool byte contiguous clone detach requires_grad pin_memory data "
    "alias positive add sub subtract mul multiply div divide true_divide truediv floordiv floor_divide mod remainder fmod pow neg negative "
    "abs absolute sign sgn exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos tan asin acos atan atan2 arctan2 "
    "sinh cosh tanh erf erfc erfinv sigmoid logit relu relu6 gelu silu mish elu selu celu leaky_relu hardtanh hardswish hardsigmoid softplus "
    "softsign tanhshrink softshrink hardshrink threshold clamp clamp_min clamp_max clip floor ceil round trunc fix frac nan_to_num lerp where "
    "masked_fill maximum minimum fmax fmin eq ne lt le gt ge equal_to not_equal greater greater_equal less less_equal isnan isinf isfinite "
    "isneginf isposinf logical_and logical_or logical_not logical_xor and or xor invert bitwise_and bitwise_or bitwise_xor bitwise_not lshift "
    "rshift bitwise_left_shift bitwise_right_shift addcmul addcdiv bernoulli dropout alpha_dropout feature_alpha_dropout heaviside hypot "
    "logaddexp xlogy float_power lgamma digamma sinc erfcx expit logsigmoid log_sigmoid prelu "
    "real imag conj resolve_conj resolve_neg angle deg2rad rad2deg copysign isclose rand_like randn_like randint_like zeros_like ones_like "
    "full_like empty_like zero normal uniform random exponential cauchy log_normal geometric poisson binomial standard_gamma rrelu fill copy "
    "i0 mvlgamma polygamma ldexp polar complex".split()
) | {f"special_{name}" for name in "entr erf erfc erfcx erfinv exp2 expit expm1 gammaln digamma psi polygamma multigammaln i0 i0e i1 i1e log1p log_ndtr logit ndtr ndtri sinc xlogy xlog1py zeta".split()}
NEW = {"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"}  # of values that the loop gives; an extent of the rows' is theirs
LIKE = {name for name in ELEMENTWISE if name.endswith("_like")}  # take no value from their argument

# Along some dimensions, by the argument `dim`: where it stands, and its default (None: all of them).
ALONG: dict[str, tuple[int, Any]] = {
    **dict.fromkeys("sum mean prod amax amin max min any all std var std_mean var_mean nansum nanmean logsumexp argmax argmin count_nonzero median nanmedian aminmax".split(), (1, None)),
    **dict.fromkeys("softmax log_softmax softmin cumsum cumprod cummax cummin logcumsumexp".split(), (1, None)),
    **dict.fromkeys("sort argsort mode glu".split(), (1, -1)),
    **dict.fromkeys("topk kthvalue fft ifft rfft irfft diff".split(), (2, -1)),
    **dict.fromkeys("quantile nanquantile".split(), (2, None)),
    "multinomial": (4, -1), "sample_dirichlet": (4, -1), "gumbel_softmax": (4, -1),  # the first two have no such argument: each row's own weights
    "norm": (2, None), "vector_norm": (2, None), "linalg_vector_norm": (2, None), "linalg_norm": (2, None), "normalize": (2, 1),
}  # fmt: skip

# With a batch in front: how many dimensions the input has with it (0: two or more). All but it is mixed; the rest are weights.
LAYERS = {
    "linear": 0, "embedding": 0, "one_hot": 0, "bucketize": 0, "layer_norm": 0, "rms_norm": 0, "group_norm": 0, "batch_norm": 0, "pad": 0,
    "scaled_dot_product_attention": 0, "matmul": 0, "bmm": 3, "interpolate": 0, "instance_norm": 0, "grid_sample": 4, "affine_grid": 3,
    "pixel_shuffle": 4, "pixel_unshuffle": 4, "triu": 3, "tril": 3, "stft": 2, "istft": 3, "cdist": 0, "local_response_norm": 0, "lp_pool1d": 3, "lp_pool2d": 4,
    **dict.fromkeys("inverse linalg_inv linalg_pinv det linalg_det logdet slogdet linalg_slogdet cholesky linalg_cholesky linalg_eigvalsh linalg_svdvals matrix_exp linalg_matrix_exp".split(), 3),
    **{f"{name}{n}d": n + 2 for n in (1, 2, 3) for name in (
        "conv", "conv_transpose", "avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool", "dropout")},
}  # fmt: skip
# Layers of which several inputs have rows; how many dimensions a tensor may have that all rows share. Of the others the first alone has.
OF_SEVERAL = {"matmul": 2, "cdist": 2, "bmm": 0, "scaled_dot_product_attention": 2, "grid_sample": 0, "affine_grid": 0}
EXPOSING = {"numpy", "array", "untyped_storage", "storage", "dlpack", "data_ptr", "cuda_array_interface"}  # memory, to be written to unseen
METADATA = set(
    "shape size dim ndim ndimension numel nelement dtype device layout requires_grad grad_fn stride storage_offset element_size len get_device "
    "names has_names itemsize nbytes output_nr retains_grad version register_hook register_post_accumulate_grad_hook retain_grad backward "
    "result_type dir sizeof hash type typename broadcast_shapes can_cast promote_types".split())  # tells nothing of values
COUNTS = set("nonzero argwhere masked_select unique unique_consecutive bincount".split())  # whose extents follow from values
EXTENTS = set("shape size len numel nelement".split())
HELD, ASIDE = {"_base", "_grad"}, {"requires_grad", "grad", "names"}  # by a tensor, not made of it; what may be set


def name_of(func: Any) -> tuple[str, bool]:
    """The function's name without underscores and without the r of reversed operators, and whether it writes to its first argument."""
    name = getattr(func, "__name__", str(func))
    if isinstance(func, torch._ops.OpOverloadPacket) and not func._qualified_op_name.startswith("aten::"):
        return func._qualified_op_name, False  # a user's operator may have the name of one that is known
    if name in ("__get__", "__set__"):
        return getattr(func.__self__, "__name__", name), name == "__set__"
    bare = name.strip("_")
    if name.startswith("__"):
        if bare == "setitem":
            return bare, True
        if bare[:1] in ("i", "r") and bare[1:] in ELEMENTWISE and bare not in ELEMENTWISE:
            return bare[1:], bare[0] == "i"
        return bare, False
    return bare.removesuffix("_with_indices"), name.endswith("_")


__all__ = ["ALONG", "ASIDE", "COUNTS", "ELEMENTWISE", "EXPOSING", "EXTENTS", "HELD", "LAYERS", "LIKE", "METADATA", "NEW", "OF_SEVERAL", "name_of"]
