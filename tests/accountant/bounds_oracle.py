"""rho, tuning, the trade-off curve and reconstruction in 40-digit arithmetic: writes bounds_oracle_rows.h.

Nothing here is the library's: Rényi divergences by quadrature, the best of K runs by enumeration, and deltas in closed form.
    python tests/accountant/bounds_oracle.py > tests/accountant/bounds_oracle_rows.h
"""

import json

from mpmath import erfc, exp, findroot, log, mp, mpf, quad, sqrt

mp.dps = 40


def tail(z):
    return erfc(z / sqrt(2)) / 2


def event(kind, **numbers):
    return {"type": kind, **numbers}


# ----------------------------------------------------------------------------------------------------------------------
# zCDP: the least rho with D_alpha <= rho·alpha for all 1 < alpha < omega, D_alpha the larger of both directions


def divergence(q, s, alpha):
    """Of one sampled Gaussian with sensitivity 1."""
    q, s, alpha = mpf(q), mpf(s), mpf(alpha)
    if q == 1:
        return alpha / (2 * s**2)
    w = lambda x: 1 - q + q * exp((2 * x - 1) / (2 * s**2))
    ends = [-40 * s, -8 * s, 0, mpf(1) / 2, alpha, alpha + 8 * s, alpha + 40 * s]
    mean = lambda power: quad(lambda x: exp(-(x**2) / (2 * s**2)) * w(x) ** power, ends) / (s * sqrt(2 * mp.pi))
    return max(log(mean(alpha)), log(mean(1 - alpha))) / (alpha - 1)


def rho_below(run, omega):
    """D_alpha/alpha of the run on a mesh of orders; the largest is at omega if it rises."""
    orders = [1 + (mpf(omega) - 1) * i / 12 for i in range(1, 13)]
    found = [sum(n * divergence(q, s, alpha) for q, s, n in run) / alpha for alpha in orders]
    assert max(found) == found[-1]
    return found[-1]


RHO = []
for run in ([(1, 2.0, 10)], [(1, 0.3, 1)], [(1, 1e-3, 7)], [(1, 40.0, 10**6), (1, 3.5, 12)]):
    for adjacency, shift in (("zero-out", 1), ("replace-one", 4)):
        RHO.append((adjacency, run, 0, shift * sum(n / (2 * mpf(s) ** 2) for _, s, n in run)))
for run, omegas in (
    ([(0.01, 1.0, 100)], (1.5, 4, 12)),
    ([(0.1, 3.0, 1000)], (3, 16)),
    ([(0.5, 0.8, 3)], (2, 6)),
    ([(1e-4, 0.7, 10**5)], (2.5,)),
    ([(0.01, 1.0, 100), (0.2, 2.0, 30)], (2, 6)),
):
    RHO += [("zero-out", run, omega, rho_below(run, omega)) for omega in omegas]


# ----------------------------------------------------------------------------------------------------------------------
# Tuning: the best of K runs of randomized response on its worst score


def mean_power(kind, x):
    """E[x^K]."""
    if kind["type"] == "tuning_poisson":
        return exp(mpf(kind["mean"]) * (x - 1))
    shape, gamma = mpf(kind["shape"]), mpf(kind["gamma"])
    if shape == 0:
        return log(1 - (1 - gamma) * x) / log(gamma)
    return ((1 - (1 - gamma) * x) ** -shape - 1) / (gamma**-shape - 1)


def best_of(kind, probabilities):
    """Outcomes in the order of their scores, the worst first; for K = 0 something else."""
    found, below = [mean_power(kind, mpf(0))], mpf(0)
    for p in probabilities:
        found.append(mean_power(kind, below + p) - mean_power(kind, below))
        below += p
    return found


def hockey_stick(p, q, e):
    return sum(max(mpf(0), a - exp(e) * b) for a, b in zip(p, q))


def response(e):
    """Randomized response with a third outcome that says nothing."""
    e = mpf(e)
    large = mpf(3) / 4 / (1 + exp(-e))
    return [large, mpf(1) / 4, large * exp(-e)]


TUNING = []
for kind in (
    event("tuning_negative_binomial", shape=1.0, gamma=0.1),
    event("tuning_negative_binomial", shape=0.0, gamma=0.02),
    event("tuning_negative_binomial", shape=-0.5, gamma=0.5),
    event("tuning_poisson", mean=8.0),
    event("tuning_poisson", mean=0.5),
):
    for e in (0.25, 1.0, 3.0):
        p, q = response(e), response(e)[::-1]
        for target in (e / 2, e, 1.5 * e):
            deltas = [
                hockey_stick(best_of(kind, a), best_of(kind, b), mpf(target))
                for a, b in ((p, q), (q, p), (p[::-1], q[::-1]), (q[::-1], p[::-1]))
            ]
            run = [{"count": 1, "event": event("epsilon_delta", epsilon=e, delta=0.0)}]
            TUNING.append(({**kind, "run": run}, target, max(deltas)))


# ----------------------------------------------------------------------------------------------------------------------
# The trade-off curve: the least of e^eps·x + delta and 1 - e^-eps·(1 - x - delta) over eps >= 0


def gaussian_delta(mu, e):
    return tail(e / mu - mu / 2) - exp(e) * tail(e / mu + mu / 2)


def sampled_delta(q, s, e):
    """The larger of both directions."""
    q, s = mpf(q), mpf(s)
    x = s**2 * log((exp(e) - 1 + q) / q) + mpf(1) / 2
    remove = (1 - q) * tail(x / s) + q * tail((x - 1) / s) - exp(e) * tail(x / s)
    if exp(-e) <= 1 - q:
        return remove
    x = s**2 * log((exp(-e) - 1 + q) / q) + mpf(1) / 2
    mixed = (1 - q) * tail(-x / s) + q * tail((1 - x) / s)
    return max(remove, tail(-x / s) - exp(e) * mixed)


def power(delta, rate):
    rate = mpf(rate)
    larger = lambda e: exp(e) * rate + delta(e)
    smaller = lambda e: 1 - exp(-e) * (1 - rate - delta(e))
    best = mpf(1)
    for bound in (larger, smaller):
        low, high = mpf(0), mpf(60)
        steps = [low + (high - low) * i / 600 for i in range(601)]
        at = min(range(601), key=lambda i: bound(steps[i]))
        low, high = steps[max(at - 1, 0)], steps[min(at + 1, 600)]
        for _ in range(140):
            third = (high - low) / 3
            low, high = (low, high - third) if bound(low + third) < bound(high - third) else (low + third, high)
        best = min(best, bound((low + high) / 2))
    return best


G = lambda s, n: [(event("gaussian", noise_multiplier=s), n)]
PG = lambda q, s: [(event("poisson_gaussian", sampling_rate=q, noise_multiplier=s), 1)]
TRADEOFF = []
for sigma, n in ((1.0, 1), (4.0, 9), (0.3, 1), (50.0, 100)):
    mu = sqrt(mpf(n)) / mpf(sigma)
    for rate in (1e-6, 0.001, 0.1, 0.5, 0.9):
        TRADEOFF.append((G(sigma, n), rate, power(lambda e: gaussian_delta(mu, e), rate)))
for q, sigma in ((0.2, 0.7), (0.01, 1.0), (0.9, 2.0)):
    for rate in (1e-5, 0.01, 0.3):
        TRADEOFF.append((PG(q, sigma), rate, power(lambda e: sampled_delta(q, sigma, e), rate)))
# One Gaussian's curve has a closed form: the Neyman-Pearson test's.
for charged, rate, found in TRADEOFF[:20]:
    mu = sqrt(mpf(charged[0][1])) / mpf(charged[0][0]["noise_multiplier"])
    z = findroot(lambda z: log(tail(z)) - log(mpf(rate)), 1)
    assert abs(found - tail(z - mu)) < mpf(10) ** -15 * found, (charged, rate)

dump = lambda value: json.dumps(value, separators=(",", ":"))
print("// Written by bounds_oracle.py in 40-digit arithmetic.")
print("#pragma once\n")
print("namespace ghostshard::accountant {\n")
print("struct RhoRow {\n  const char *adjacency, *run;  // events and counts")
print("  double omega;  // 0: all orders\n  long double rho;\n};")
print("inline constexpr RhoRow kRhoRows[] = {")
for adjacency, run, omega, rho in RHO:
    kinds = [event("poisson_gaussian", sampling_rate=q, noise_multiplier=s) for q, s, _ in run]
    kinds = [k if k["sampling_rate"] != 1 else event("gaussian", noise_multiplier=k["noise_multiplier"]) for k in kinds]
    print(f'    {{"{adjacency}", R"({dump([[k, n] for k, (_, _, n) in zip(kinds, run)])})", {omega}, {mp.nstr(rho, 25)}L}},')
print("};\n")
print("struct TuningRow {\n  const char* event;")
print("  double epsilon;\n  long double delta;  // of one mechanism that is tuned so\n};")
print("inline constexpr TuningRow kTuningRows[] = {")
for charged, e, delta in TUNING:
    print(f'    {{R"({dump(charged)})", {e!r}, {mp.nstr(delta, 25)}L}},')
print("};\n")
print("struct TradeoffRow {\n  const char* run;  // events and counts\n  double rate;\n  long double power;  // exact\n};")
print("inline constexpr TradeoffRow kTradeoffRows[] = {")
for charged, rate, found in TRADEOFF:
    print(f'    {{R"({dump(charged)})", {rate!r}, {mp.nstr(found, 25)}L}},')
print("};\n")
print("}  // namespace ghostshard::accountant")
