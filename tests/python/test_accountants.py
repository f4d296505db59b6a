"""ghostshard.accountants: Opacus' interface, certified numbers."""

import copy
import math
import re

import opacus
import pytest
from opacus.accountants import RDPAccountant as OpacusRDP
from opacus.accountants import create_accountant

from ghostshard import accountants
from ghostshard.accountants import ContourAccountant, PRVAccountant, RDPAccountant, get_noise_multiplier, privacy_curve

CLASSES = [ContourAccountant, PRVAccountant, RDPAccountant]
MNIST = [(1.1, 256 / 60000, 14063)]
TRUTH = 2.381689726141649  # 40-digit contour integral, delta 1e-5


def charged(accountant, history=MNIST):
    made = accountant()
    made.history = list(history)
    return made


@pytest.mark.parametrize("accountant, above", [(ContourAccountant, 1e-9), (PRVAccountant, 0.01), (RDPAccountant, 0.22)])
def test_get_epsilon_is_an_upper_bound(accountant, above):
    made = charged(accountant)
    assert TRUTH - 1e-12 <= made.get_epsilon(delta=1e-5) <= TRUTH + above
    bound = made.epsilon_bound(1e-5)
    assert bound.lower <= TRUTH <= bound.upper == made.get_epsilon(1e-5)
    assert bound.accountant == made.mechanism()


@pytest.mark.parametrize("accountant", CLASSES)
def test_steps_are_run_lengths_as_in_opacus(accountant):
    made, theirs = accountant(), OpacusRDP()
    for sigma, q in [(1.0, 0.1), (1.0, 0.1), (2.0, 0.1), (1.0, 0.1)]:
        made.step(noise_multiplier=sigma, sample_rate=q)
        theirs.step(noise_multiplier=sigma, sample_rate=q)
    assert made.history == theirs.history == [(1.0, 0.1, 2), (2.0, 0.1, 1), (1.0, 0.1, 1)]
    assert len(made) == len(theirs) == 3


@pytest.mark.parametrize("accountant", CLASSES)
def test_state_goes_to_another_and_back(accountant):
    made, other = charged(accountant), accountant()
    state = copy.deepcopy(made.state_dict())
    other.load_state_dict(state)
    assert other.history == made.history and other.get_epsilon(1e-5) == made.get_epsilon(1e-5)
    for broken in ({}, None, {"history": []}, {**state, "mechanism": "gdp"}, {**state, "history": [(math.nan, 0.1, 1)]}):
        with pytest.raises(ValueError):
            other.load_state_dict(broken)
        assert other.history == made.history


def test_before_the_first_step_nothing_is_spent():
    assert [accountant().get_epsilon(1e-5) for accountant in CLASSES] == [0, 0, 0]


def test_a_step_without_noise_has_no_bound():
    made = charged(ContourAccountant)
    made.step(noise_multiplier=0, sample_rate=0.1)
    assert made.get_epsilon(1e-5) == math.inf


BAD_STEPS = {"nan": (math.nan, 0.1), "negative": (-1, 0.1), "infinite": (math.inf, 0.1), "rate_zero": (1, 0),
             "rate_nan": (1, math.nan), "rate_above_one": (1, 1.01)}  # fmt: skip


@pytest.mark.parametrize("sigma, q", BAD_STEPS.values(), ids=BAD_STEPS.keys())
def test_a_bad_step_is_refused_and_not_recorded(sigma, q):
    made = ContourAccountant()
    with pytest.raises(ValueError, match="must be"):
        made.step(noise_multiplier=sigma, sample_rate=q)
    assert made.history == []


@pytest.mark.parametrize("delta", [0, 1, -1, math.nan])
@pytest.mark.parametrize("accountant", CLASSES)
def test_a_bad_delta_is_a_value_error(accountant, delta):
    with pytest.raises(ValueError, match="delta must lie strictly between 0 and 1"):
        charged(accountant).get_epsilon(delta)


def test_rdp_at_opacus_orders_is_opacus():
    ours, theirs = charged(RDPAccountant, [(1.5, 0.04, 2250)]), OpacusRDP()
    theirs.history = list(ours.history)
    assert ours.get_epsilon(1e-5, alphas=RDPAccountant.DEFAULT_ALPHAS) == pytest.approx(theirs.get_epsilon(1e-5), abs=1e-8)
    assert ours.get_privacy_spent(delta=1e-5) == pytest.approx(theirs.get_privacy_spent(delta=1e-5), abs=1e-8)
    assert ours.get_epsilon(1e-5) <= theirs.get_epsilon(1e-5)


@pytest.mark.filterwarnings("ignore:Secure RNG")
def test_opacus_finds_contour_and_keeps_its_own():
    assert type(opacus.PrivacyEngine(accountant="contour").accountant) is ContourAccountant
    assert type(create_accountant("rdp")) is OpacusRDP
    accountants.register()  # again: no error


def test_register_with_replace_puts_ours_in_place(monkeypatch):
    registry = opacus.accountants.registry
    monkeypatch.setattr(registry, "_ACCOUNTANTS", dict(registry._ACCOUNTANTS))
    accountants.register(replace=True)
    assert [type(create_accountant(name)) for name in ("contour", "prv", "rdp")] == CLASSES


SIGMAS = {
    "e2e": (dict(target_epsilon=3, target_delta=8e-6, sample_rate=1024 / 42061, steps=411), 1.0269848448),
    "opacus_90_epochs": (dict(target_epsilon=8, target_delta=1e-5, sample_rate=0.04, epochs=90), 1.3458983294),
    "tiny": (dict(target_epsilon=0.1, target_delta=1e-5, sample_rate=0.01, steps=1000), 9.7967910805),
}


@pytest.mark.parametrize("budget, sigma", SIGMAS.values(), ids=SIGMAS.keys())
def test_noise_multiplier_is_the_least_on_the_private_side(budget, sigma):
    found = get_noise_multiplier(**budget)
    assert 0 <= found - sigma <= 1e-6 * max(1, sigma)


@pytest.mark.parametrize("change, message", [
    ({"epochs": 1}, "exactly one"), ({"steps": None}, "exactly one"), ({"steps": 1.5}, "whole number"),
    ({"sample_rate": 2}, "sample_rate"), ({"accountant": "gdp"}, "must be one of"), ({"target_epsilon": math.nan}, "epsilon"),
])  # fmt: skip
def test_noise_multiplier_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        get_noise_multiplier(**{**SIGMAS["e2e"][0], **change})


def test_the_optimizer_hook_counts_a_step():
    class Optimizer:
        noise_multiplier, accumulated_iterations = 1.5, 2

    made = ContourAccountant()
    made.get_optimizer_hook_fn(sample_rate=0.1)(Optimizer())
    assert made.history == [(1.5, 0.2, 1)]


def test_privacy_curve_of_an_accountant_a_history_and_opacus_own():
    ours, theirs = charged(ContourAccountant), OpacusRDP()
    theirs.history = list(MNIST)
    curve = privacy_curve(ours, deltas=[1e-5, 1e-9])
    assert curve == privacy_curve(MNIST, deltas=[1e-5, 1e-9]) == privacy_curve(theirs, deltas=[1e-5, 1e-9])
    assert curve[0].delta == 1e-5 and curve[0].upper == ours.get_epsilon(1e-5) < curve[1].upper
    assert ours.get_delta(curve[0].upper) == pytest.approx(1e-5, rel=1e-6)
    assert privacy_curve(MNIST, deltas=[1e-5], adjacency="replace-one")[0].upper > curve[0].upper
    with pytest.raises(ValueError, match="adjacency must be one of"):
        privacy_curve(MNIST, adjacency="replace-two")


MISSPELT = {
    "noise_of_truncated": (lambda: get_noise_multiplier(**SIGMAS["e2e"][0], truncaton=(1000, 101)), "truncaton; did you mean truncation?"),
    "noise_of_bins": (lambda: get_noise_multiplier(**SIGMAS["e2e"][0], bin=411), "bin; did you mean bins?"),
    "noise_at_delta": (lambda: get_noise_multiplier(**SIGMAS["e2e"][0], delta=1), "delta"),
    "rdp": (lambda: charged(RDPAccountant).get_epsilon(1e-5, [2.0, 3.0], alpha=[2.0]), "alpha; did you mean alphas?"),
    "prv": (lambda: charged(PRVAccountant).get_epsilon(1e-5, eps_eror=0.1), "eps_eror; did you mean eps_error?"),
    "contour": (lambda: charged(ContourAccountant).get_epsilon(1e-5, poisson=False), "poisson"),
}


@pytest.mark.parametrize("call, named", MISSPELT.values(), ids=MISSPELT.keys())
def test_an_unknown_keyword_is_refused_by_name(call, named):
    with pytest.raises(TypeError, match="unknown keyword " + re.escape(named)):
        call()


def test_opacus_keywords_of_precision_change_nothing():
    theirs = {"alphas": [2.0], "eps_error": 0.5, "delta_error": 1e-7}
    assert get_noise_multiplier(**SIGMAS["e2e"][0], epsilon_tolerance=0.5, **theirs) == get_noise_multiplier(**SIGMAS["e2e"][0])
    for accountant in (ContourAccountant, PRVAccountant):
        assert charged(accountant).get_epsilon(1e-5, **theirs) == charged(accountant).get_epsilon(1e-5)
    del theirs["alphas"]  # RDP's are heard
    assert charged(RDPAccountant).get_epsilon(1e-5, **theirs) == charged(RDPAccountant).get_epsilon(1e-5)
