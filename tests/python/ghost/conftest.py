"""The check of examples is repeated at the microbatches that a test chooses, not by lot: one in hundreds makes a test fail that counts what a
step does. Ranks: rank_server.py."""

import pytest


@pytest.fixture(autouse=True)
def checked_once(monkeypatch):
    from ghostshard.ghost.checks.gradients import AttributionCheck

    monkeypatch.setattr(AttributionCheck, "again", 0)
