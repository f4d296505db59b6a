"""The old name of ghostshard.texts."""

from ghostshard.renamed import alias

alias(__name__, "ghostshard.texts", "packed", "split", "text", "vocabulary")
