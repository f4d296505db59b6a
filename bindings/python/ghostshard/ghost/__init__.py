"""Private steps on a PyTorch model with one backward: what `grad_sample_mode="ghost"` and `"ghost_fsdp"` run.

layout    which parameters there are, how they are sharded, which process groups reduce them
rules     layers whose trainable parameters are recorded instead of getting a gradient
engine    a model under these rules: forward, backward, clipped and noised sum
guard     stops a backward that would form a gradient past the rules
packing   texts laid end to end: which rows are whose
attribution whether an example's gradient reaches other examples' rows
repeat    whether its values reach their outputs
inputs    what a model's forward was called with
nested    tensors in what a model takes and gives
loss      per-example losses and the object whose backward() runs a private step's backward
optimizer Opacus' optimizer over the engine
"""
