"""The old name of ghostshard.loaders."""

from ghostshard.renamed import alias

alias(__name__, "ghostshard.loaders", "batch_memory", "empty_batch", "loader", "poisson")
