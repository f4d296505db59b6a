"""The checks of examples and of a collate_fn are repeated at the batches that a test chooses, not by lot: one in hundreds makes a test fail that
counts what a step does. Ranks: rank_server.py."""

import pytest


@pytest.fixture(autouse=True)
def checked_once(monkeypatch):
    from ghostshard.ghost.checks.gradients import AttributionCheck

    monkeypatch.setattr(AttributionCheck, "again", 0)
    monkeypatch.setattr(AttributionCheck, "more_calls", 0)
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 0)
