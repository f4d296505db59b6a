"""Private steps on a PyTorch model with one backward: the modes `grad_sample_mode="ghost"` and `"ghost_fsdp"`.

layout       which parameters there are, and how they are sharded
ranks        between which ranks, and the process groups that reduce them
device       the device a model computes on
batch        the arguments of a model's forward: whose rows, how many units, labels apart
packing      texts laid end to end: which rows are whose
tensor_trees tensors in nested arguments and outputs
recording    the engine as rules, losses and hooks see it
rules/       layers whose trainable parameters are recorded instead of getting a gradient
checks/      checks that per-example norms may be trusted
loss         per-example losses and the object whose backward() runs a private step's backward
patching     rules, guard and hooks in a model, and out of it again
engine       a model under these: forward, backward, clipped and noised sum
optimizer    Opacus' optimizer over the engine
wrappers     Opacus' wrappers around the model
"""
