"""Exact deltas of releases beside the gradients, in 40-digit arithmetic: writes oracle_rows.h.

Nothing here is the library's: hockey-stick divergences from closed forms, sums over all outcomes, and quadrature.
    python tests/accountant/losses/oracle.py > tests/accountant/losses/oracle_rows.h
"""

import json
from math import comb

from mpmath import erfc, exp, expm1, log, mp, mpf, quad, sqrt

mp.dps = 40


def tail(z):
    return erfc(z / sqrt(2)) / 2


class Normal:
    """Mixtures of normal distributions P against Q, whose loss grows with the outcome."""

    def __init__(self, p, q, sigma):
        self.p, self.q, self.s = [(mpf(w), mpf(m)) for w, m in p], [(mpf(w), mpf(m)) for w, m in q], mpf(sigma)

    def density(self, mixture, x):
        return sum(w * exp(-((x - m) ** 2) / (2 * self.s**2)) for w, m in mixture) / (self.s * sqrt(2 * mp.pi))

    def above(self, mixture, x):
        return sum(w * tail((x - m) / self.s) for w, m in mixture)

    def loss(self, x):
        return log(self.density(self.p, x)) - log(self.density(self.q, x))

    def delta(self, e):
        if self.q == [(1, 0)] and [m for _, m in self.p] in ([0, 1], [1]):  # the threshold in closed form
            q = self.p[-1][0]
            if exp(e) <= 1 - q:
                return 1 - exp(e)
            x = self.s**2 * log((exp(e) - 1 + q) / q) + mpf(1) / 2
            return self.above(self.p, x) - exp(e) * self.above(self.q, x)
        low, high = -60 * self.s - 5, 60 * self.s + 10
        if self.loss(low) >= e:
            return 1 - exp(e)
        for _ in range(160):
            middle = (low + high) / 2
            low, high = (middle, high) if self.loss(middle) < e else (low, middle)
        return self.above(self.p, high) - exp(e) * self.above(self.q, high)


class Atoms:
    """Outcomes with probabilities under P and Q; `density` between two losses besides."""

    def __init__(self, outcomes, top=None, scale=0):
        self.outcomes, self.top, self.scale = [(mpf(p), mpf(q)) for p, q in outcomes], top, scale

    def delta(self, e):
        found = sum(max(mpf(0), p - exp(e) * q) for p, q in self.outcomes)
        if self.top is not None and e < self.top:  # P(loss > l) and Q(loss > l) of the density
            l = max(e, -self.top)
            found += self.scale * (1 - exp((l - self.top) / 2)) - exp(e) * self.scale * (
                exp(-(l + self.top) / 2) - exp(-self.top)
            )
        return found

    def mean(self, f, kinks=()):
        found = sum(p * f(log(p / q)) if q > 0 else p for p, q in self.outcomes if p > 0)  # all of an infinite loss counts
        if self.top is not None:
            at = [-self.top + self.top * i / 2 for i in range(5)]
            at = sorted(set(at + [k for k in kinks if -self.top < k < self.top]))
            found += quad(lambda l: self.scale / 2 * exp((l - self.top) / 2) * f(l), at)
        return found


class Sampled:
    def __init__(self, law, q):
        self.law, self.q = law, mpf(q)

    def delta(self, e):
        if exp(e) <= 1 - self.q:
            return 1 - exp(e)
        return self.q * self.law.delta(log((exp(e) - 1 + self.q) / self.q))


class Both:
    """Two releases: the mean of one's delta over the other's losses."""

    def __init__(self, a, b):
        self.a, self.b = a, b

    def delta(self, e):
        kinks = [e - self.b.top, e + self.b.top] if isinstance(self.b, Atoms) and self.b.top is not None else []
        return self.a.mean(lambda l: self.b.delta(e - l), kinks)


class WithoutReplacement:
    def __init__(self, rate, sigma):
        self.g, self.base = mpf(rate), Normal([(1, 2)], [(1, 0)], sigma)

    def delta(self, e):
        if e < 0:
            return 1 - exp(e) + exp(e) * self.delta(-e)
        return self.g * self.base.delta(log(1 + expm1(e) / self.g))


class Bins:
    """Balls-in-bins sampling in t <= 3 steps: E (S - e^e)+ of S = (X_1 + … + X_t)/t, log-normal X with mean 1. The last one in
    closed form, the others by quadrature: to 20 digits, and some minutes for t = 3."""

    def __init__(self, t, sigma):
        self.t, self.s = t, 1 / mpf(sigma)

    def above(self, k):  # E (X - k)+
        if k <= 0:
            return 1 - k
        z = log(k) / self.s + self.s / 2
        return tail(z - self.s) - k * tail(z)

    def excess(self, left, k):  # E (X_1 + … + X_left - k)+
        if left == 1:
            return self.above(k)
        if k <= 0:
            return left - k
        kink = log(k) / self.s + self.s / 2  # where the others need nothing more
        ends = sorted({mpf(-11), mpf(-3), mpf(0), mpf(3), self.s + 6, self.s + 12, max(mpf(-11), min(self.s + 12, kink))})
        density = lambda z: exp(-(z**2) / 2) / sqrt(2 * mp.pi)
        return quad(lambda z: density(z) * self.excess(left - 1, k - exp(self.s * z - self.s**2 / 2)), ends)

    def delta(self, e):
        precision, mp.dps = mp.dps, 20
        found = self.excess(self.t, self.t * exp(mpf(e))) / self.t
        mp.dps = precision
        return found


def worst(law, e):
    """Both directions: delta of the pair exchanged is 1 - e^e + e^e·delta(-e)."""
    e = mpf(e)
    return max(law.delta(e), 1 - exp(e) + exp(e) * law.delta(-e))


def laplace(b):
    s = 1 / mpf(b)
    return Atoms([(mpf(1) / 2, exp(-s) / 2), (exp(-s) / 2, mpf(1) / 2)], s, mpf(1) / 2)


def bounded_range(e):
    return Atoms([], mpf(e), 1 / (1 - exp(-mpf(e))))


def discrete_laplace(a, k):
    a, c = mpf(a), (1 - exp(-mpf(a))) / (1 + exp(-mpf(a)))
    far = int(110 / a) + k
    return Atoms([(c * exp(-a * abs(x)), c * exp(-a * abs(x - k))) for x in range(-far, far + k)])


def discrete_gaussian(s, k):
    far = int(16 * s) + 2
    w = lambda x: exp(-mpf(x) ** 2 / (2 * mpf(s) ** 2))
    z = sum(w(x) for x in range(-far - k, far + k + 1))
    return Atoms([(w(x) / z, w(x - k) / z) for x in range(-far, far + k + 1)])


def group(k, q, s):
    q = mpf(q)
    return Normal([(comb(k, j) * q**j * (1 - q) ** (k - j), j) for j in range(k + 1)], [(1, 0)], s)


def response(e, d=0):
    e, d = mpf(e), mpf(d)
    large = (1 - d) / (1 + exp(-e))
    return Atoms([(large, large * exp(-e)), (large * exp(-e), large), (d, 0), (0, d)])


def event(kind, **numbers):
    return {"type": kind, **numbers}


G = lambda s: (event("gaussian", noise_multiplier=s), Normal([(1, 1)], [(1, 0)], s))
PG = lambda q, s: (
    event("poisson_gaussian", sampling_rate=q, noise_multiplier=s),
    Normal([(1 - mpf(q), 0), (mpf(q), 1)], [(1, 0)], s),
)
L = lambda b: (event("laplace", sampling_rate=1.0, noise_multiplier=b), laplace(b))
PL = lambda q, b: (event("laplace", sampling_rate=q, noise_multiplier=b), Sampled(laplace(b), q))
X = lambda e: (event("exponential_mechanism", epsilon=e), bounded_range(e))
DL = lambda a, k: (event("discrete_laplace", sampling_rate=1.0, noise_parameter=a, sensitivity=k), discrete_laplace(a, k))
DG = lambda s, k: (
    event("discrete_gaussian", sampling_rate=1.0, standard_deviation=s, sensitivity=k), discrete_gaussian(s, k))  # fmt: skip
PDG = lambda q, s, k: (
    event("discrete_gaussian", sampling_rate=q, standard_deviation=s, sensitivity=k), Sampled(discrete_gaussian(s, k), q))  # fmt: skip
ED = lambda e, d: (event("epsilon_delta", epsilon=e, delta=d), response(e, d))
GP = lambda k, q, s: (event("group_poisson_gaussian", group=k, sampling_rate=q, noise_multiplier=s), group(k, q, s))
RO = lambda q, s: (
    event("poisson_gaussian", sampling_rate=q, noise_multiplier=s),
    Normal([(1 - mpf(q), 0), (mpf(q), 1)], [(1 - mpf(q), 0), (mpf(q), -1)], s),
)
WR = lambda n, b, s: (event("fixed_size_gaussian", units=n, batch=b, noise_multiplier=s), WithoutReplacement(mpf(b) / n, s))
TREE = lambda t, s: (
    event("tree_aggregation", steps=t, noise_multiplier=s), Normal([(1, 1)], [(1, 0)], mpf(s) / sqrt(t.bit_length())))  # fmt: skip
MOG = lambda s, c, p: (
    event("mixture_of_gaussians", standard_deviation=s, sensitivities=c, probabilities=p),
    Normal(list(zip(p, c)), [(1, 0)], s),
)

BB = lambda t, s: (event("balls_in_bins_gaussian", steps=t, noise_multiplier=s), Bins(t, s))

Z, R = "zero-out", "replace-one"
ROWS = []


def row(adjacency, charged, *epsilons):
    law = charged[0][1] if len(charged) == 1 else Both(charged[0][1], charged[1][1])
    for e in epsilons:
        ROWS.append((adjacency, [one[0] for one in charged], e, worst(law, e)))


row(Z, [L(1.0)], 0.0, 0.5, 0.99)
row(Z, [L(0.25)], 1.0, 3.5)
row(Z, [PL(0.1, 1.0)], 0.05, 0.1)
row(Z, [PL(0.001, 0.5)], 0.001, 0.004)
row(Z, [X(0.5)], 0.0, 0.25, 0.45)
row(Z, [X(3.0)], 1.0, 2.5)
row(Z, [DL(0.5, 1)], 0.0, 0.4)
row(Z, [DL(0.2, 5)], 0.1, 0.5, 0.9)
row(Z, [DG(1.0, 1)], 0.5, 2.0, 5.0)
row(Z, [DG(3.0, 2)], 0.5, 1.5)
row(Z, [PDG(0.25, 1.0, 1)], 0.3, 1.0)
row(Z, [ED(1.0, 1e-6)], 0.5, 0.999)
row(Z, [GP(2, 0.01, 1.0)], 0.1, 1.0, 3.0)
row(Z, [GP(5, 0.1, 2.0)], 0.25, 1.0)
row(Z, [MOG(1.0, [0.0, 0.5, 2.0], [0.5, 0.25, 0.25])], 0.5, 2.0, 6.0)
row(Z, [TREE(8, 4.0)], 0.5, 2.0)
row(Z, [BB(2, 1.0)], 0.0, 0.5, 1.0, 3.0)
row(Z, [BB(3, 0.7)], 0.0, 1.0, 3.0)
row(Z, [TREE(7, 4.0)], 0.5)
row(R, [RO(0.01, 1.0)], 0.1, 1.0, 3.0)
row(R, [RO(0.2, 0.7)], 0.5, 2.0)
row(R, [WR(1000, 10, 2.0)], 0.05, 0.5)
row(R, [WR(100, 50, 1.0)], 0.5, 3.0)
row(R, [L(2.0)], 0.5)  # replaced below: twice the shift
ROWS[-1] = (R, ROWS[-1][1], 0.5, worst(laplace(1.0), 0.5))
row(Z, [L(1.0), L(2.0)], 0.5, 1.25)
row(Z, [L(1.0), G(1.0)], 0.5, 2.0, 4.0)
row(Z, [L(2.0), PG(0.1, 1.0)], 0.5, 1.5)
row(Z, [X(1.0), G(2.0)], 0.5, 1.5)
row(Z, [DG(1.0, 1), G(1.0)], 1.0, 4.0)
row(Z, [ED(1.0, 1e-6), PG(0.05, 0.8)], 0.9, 2.0)

print("// Written by oracle.py in 40-digit arithmetic.")
print("#pragma once\n")
print("namespace ghostshard::accountant {\n")
print("struct OracleRow {\n  const char *adjacency, *events;\n  double epsilon;\n  long double delta;  // exact\n};\n")
print("inline constexpr OracleRow kOracleRows[] = {")
for adjacency, events, e, delta in ROWS:
    print(f'    {{"{adjacency}", R"({json.dumps(events, separators=(",", ":"))})", {e!r}, {mp.nstr(delta, 25)}L}},')
print("};\n")
print("}  // namespace ghostshard::accountant")
