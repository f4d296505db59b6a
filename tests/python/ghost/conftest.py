"""For tests that count forwards and backwards: the check of examples is not repeated by lot."""

import pytest


@pytest.fixture
def checked_once(monkeypatch):
    from ghostshard.ghost.checks.gradients import AttributionCheck

    monkeypatch.setattr(AttributionCheck, "again", 0)
