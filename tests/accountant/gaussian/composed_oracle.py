"""Writes composed_oracle_rows.h: delta of two sampled Gaussian releases together, in 40-digit arithmetic.

delta(eps) = E[delta_2(eps - L_1)], L_1 the loss of the first release and delta_2 the closed form of the second (the
larger of both directions). The integral is cut where the second release's loss begins or ends.

    python tests/accountant/gaussian/composed_oracle.py > tests/accountant/gaussian/composed_oracle_rows.h
"""

from mpmath import erfc, exp, log, mp, mpf, nstr, pi, quad, sqrt

mp.dps = 40


def tail(z):
    return erfc(z / sqrt(2)) / 2


def single(q, sigma, e, remove):
    a = (exp(e) if remove else exp(-e)) - 1 + q
    if a <= 0:
        return 1 - exp(e) if remove else mpf(0)
    t = sigma**2 * log(a / q) + mpf(1) / 2
    if remove:
        return q * tail((t - 1) / sigma) - (exp(e) - 1 + q) * tail(t / sigma)
    return tail(-t / sigma) - exp(e) * (q * tail((1 - t) / sigma) + (1 - q) * tail(-t / sigma))


def composed(first, second, eps, remove):
    (q, sigma), (q2, sigma2) = first, second

    def integrand(x):
        zero, one = (exp(-((x - m) ** 2) / (2 * sigma**2)) / (sigma * sqrt(2 * pi)) for m in (0, 1))
        loss = log(1 - q + q * exp((2 * x - 1) / (2 * sigma**2)))
        density = (1 - q) * zero + q * one if remove else zero
        return density * single(q2, sigma2, eps - loss if remove else eps + loss, remove)

    low, high = -14 * sigma, 14 * sigma + 1
    places = {low + (high - low) * k / 56 for k in range(57)}
    odds = ((exp(eps) if remove else exp(-eps)) / (1 - q2) - 1 + q) / q
    if odds > 0:
        kink = sigma**2 * log(odds) + mpf(1) / 2
        near = {kink + sigma**2 * d / 400 for d in (-100, -20, -5, -1, 0, 1, 5, 20, 100)}
        places |= {x for x in near if low < x < high}
    return quad(integrand, sorted(places), maxdegree=7)


def main():
    print("// Written by composed_oracle.py in 40-digit arithmetic.\n#pragma once\n\nnamespace ghostshard::accountant {\n")
    print("struct ComposedRow {\n  double q, sigma, other_q, other_sigma, epsilon;\n  long double delta;  // exact\n};\n")
    print("inline constexpr ComposedRow kComposedRows[] = {")
    for first, second, eps in (
        ((0.003125, 0.75), (0.003125, 0.75), 0.140625),
        ((0.25, 1), (0.25, 1), 0.5),
        ((0.25, 1), (0.25, 1), 4),
        ((0.75, 0.375), (0.75, 0.375), 0.0625),
        ((0.03125, 0.375), (0.03125, 0.375), 4.25),
        ((0.3125, 0.5), (0.3125, 0.5), 4.75),
        ((0.0625, 2), (0.5, 4), 0.25),
        ((0.001953125, 0.5), (0.125, 3), 1),
        ((0.5, 0.625), (0.0078125, 0.5), 8),
        ((0.9375, 1.5), (0.9375, 1.5), 2),
        ((0.0001220703125, 0.75), (0.0001220703125, 1), 0.015625),
        ((0.125, 8), (0.0625, 5), 0.03125),
    ):
        one, two = (tuple(map(mpf, release)) for release in (first, second))
        delta = max(composed(one, two, mpf(eps), remove) for remove in (True, False))
        numbers = ", ".join(repr(float(number)) for number in (*first, *second, eps))
        print(f"    {{{numbers}, {nstr(delta, 25)}L}},")
    print("};\n\n}  // namespace ghostshard::accountant")


if __name__ == "__main__":
    main()
