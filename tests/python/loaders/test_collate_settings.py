"""A collate_fn that begins to mix examples, because it is set so after it was looked at, is looked at anew."""

import functools

import pytest
from test_collate_check import Texts, mixup_with_the_next, stacked

from ghostshard.loaders.collate_check import CollateCheck

SHARE = 0.0


class Collate:
    def __init__(self):
        self.share, self.mode, self.calls, self.options = 0.0, "plain", 0, {"mixes": [False]}

    def __call__(self, examples):
        self.calls += 1
        return (mixup_with_the_next if self.share or self.mode == "mixup" or self.options["mixes"][0] else stacked)(examples)


class DataSet(Texts):
    share = 0

    def __init__(self):
        self.inner = Collate()

    def collate(self, examples):
        return self.inner(examples)


def by_a_global(examples):
    return (mixup_with_the_next if SHARE else stacked)(examples)


def in_a_closure():
    share = 0

    def collate(examples):
        return (mixup_with_the_next if share else stacked)(examples)

    def set_to(value):
        nonlocal share
        share = value

    return collate, lambda: set_to(0.3)


def with_keywords(examples, options):
    return (mixup_with_the_next if options["share"] else stacked)(examples)


def an_attribute(name, value):
    collate = Collate()
    return collate, lambda: setattr(collate, name, value)


def an_entry():
    collate = Collate()
    return collate, lambda: collate.options["mixes"].__setitem__(0, True)


def of_the_data_set():
    data = DataSet()
    return data.collate, lambda: setattr(data.inner, "share", 0.3)


def a_keyword():
    options = {"share": 0.0}
    return functools.partial(with_keywords, options=options), lambda: options.update(share=0.3)


CASES = {
    "a number": lambda: an_attribute("share", 0.3), "a word": lambda: an_attribute("mode", "mixup"), "an entry": an_entry, "of the data set": of_the_data_set,
    "a closure": in_a_closure, "a keyword": a_keyword, "a global": lambda: (by_a_global, lambda: globals().update(SHARE=0.3)),
}  # fmt: skip


@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_what_mixes_later_is_refused(build, monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 0.0)
    monkeypatch.setitem(globals(), "SHARE", 0.0)
    (collate, change), check, examples = build(), CollateCheck(), [Texts()[i] for i in range(8)]
    for _ in range(5):
        check(collate, examples)
    change()
    with pytest.raises(ValueError, match="mixes its examples"):
        check(collate, examples)


def test_a_counter_is_looked_at_three_times(monkeypatch):
    monkeypatch.setattr("ghostshard.loaders.collate_check._AGAIN", 0.0)
    collate, check, examples = Collate(), CollateCheck(), [Texts()[i] for i in range(8)]
    calls = []
    for _ in range(14):
        before = collate.calls
        check(collate, examples)
        collate(examples)
        calls.append(collate.calls - before)
    assert calls[0] > 20 and calls[-1] == 1 and sum(each > 20 for each in calls) <= 4
