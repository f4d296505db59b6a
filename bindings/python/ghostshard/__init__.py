"""GhostShard: differentially private training at almost the speed of non-private fully sharded training."""

__version__ = "0.1.0"
