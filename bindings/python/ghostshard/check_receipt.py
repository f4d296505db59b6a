"""ghostshard-check-receipt: does a receipt prove its epsilon for this ledger? Nothing is shared with the accountant.

docs/receipt.md has the inequality. Sums run in integers (fixed point, 2^-BITS), everything else in mpmath's intervals with
directed rounding. Trusted: Python's integers, mpmath.iv, SHA-256, and that the ledger lists all releases.
"""

import argparse
import hashlib
import json
import math
import os
import stat
import sys
from collections import Counter
from fractions import Fraction

from mpmath import iv, libmp

BITS = 256
DIGITS = 90  # each moment's quadrature errs by e^-DIGITS, divided by the count
MOST_WORK = 300_000_000  # products of one direction: some minutes; a receipt that asks for more is refused
LONGEST_LINE = 16 << 20
FARTHEST = 1 << 17  # powers of two beyond are no numbers of a receipt
iv.prec = BITS


class Refused(Exception):
    """The receipt does not prove what it states, or one of the two files is none."""


def require(holds, sentence: str) -> None:
    if not holds:
        raise Refused(sentence)


# -- Files
def without_doubles(pairs: list) -> dict:
    found = dict(pairs)
    require(len(found) == len(pairs), "an object of the JSON has a key twice")
    return found


def parse(text: str, what: str) -> dict:
    try:
        found = json.loads(text, object_pairs_hook=without_doubles)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{what} is no JSON: {error}") from None
    require(isinstance(found, dict), f"{what} must be a JSON object")
    return found


def number(holder: dict, key: str, least: float = 0, most: float = math.inf, above: bool = False) -> Fraction:
    """The exact value of a JSON number; it must lie in [least, most], or above least."""
    value = holder.get(key)
    require(isinstance(value, int | float) and not isinstance(value, bool), f"{key} must be a number, got {value!r}")
    require(abs(value) < 2**1023, f"{key} must be finite and below 2^1023")  # NaN too
    exact = Fraction(value)
    require(exact >= least and exact <= most and not (above and exact == least),
            f"{key} must lie {'above' if above else 'at or above'} {least} and at most at {most}, got {value}")  # fmt: skip
    return exact


def numbers(holder: dict, key: str, most: int, least: float) -> list[Fraction]:
    found = holder.get(key)
    require(isinstance(found, list), f"{key} must list numbers")
    require(len(found) <= most, f"{key} lists more than {most} numbers: the check would take minutes")
    return [number({key: value}, key, least) for value in found]


def whole(holder: dict, key: str, most: int = 2**62) -> int:
    value = holder.get(key)
    require(isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most,
            f"{key} must be a whole number from 0 to {most}, got {value!r}")  # fmt: skip
    return value


def read_text(path: str) -> str:
    try:
        # Neither the bytes of a pipe, which would be waited for, nor those of a device, which would never end.
        require(stat.S_ISREG(os.stat(path).st_mode), f"{path} must be a regular file")
        with open(path, "rb") as stream:
            return stream.read(os.fstat(stream.fileno()).st_size).decode("utf-8")
    except (OSError, UnicodeDecodeError, MemoryError) as error:
        raise Refused(f"{path} cannot be read: {str(error) or 'it does not fit in memory'}") from None


def read_ledger(path: str) -> tuple[dict, Counter, str]:
    """The header, how often each event was released (by its canonical JSON), and the hash of the last line."""
    lines = read_text(path).split("\n")
    rest = lines.pop()
    if rest and rest.count("{") == rest.count("}"):  # only its newline is missing: the release may have happened
        lines.append(rest)
    require(lines, "the ledger is empty")
    header, released, noise, key, previous = {}, Counter(), set(), "", "0" * 64
    for i, line in enumerate(lines):
        require(len(line) <= LONGEST_LINE, f"line {i + 1} of the ledger is too long")
        entry = parse(line, f"line {i + 1} of the ledger")
        require(entry.get("previous") == previous, f"the ledger's hash chain breaks at line {i + 1}")
        previous = hashlib.sha256(line.encode()).hexdigest()
        if i == 0:
            header = entry
            require(header.get("schema") == "ghostshard.ledger/1" and header.get("type") == "header", "no ledger's header")
        if i == 0 or entry.get("type") == "epoch":
            key = json.dumps([entry.get("run_id"), entry.get("key")], sort_keys=True)
        if i == 0:
            continue
        require(entry.get("sequence") == i, f"line {i + 1} of the ledger has another sequence number")
        require(entry.get("type") in ("release", "epoch"), f"line {i + 1} of the ledger is of no known type")
        if entry["type"] == "release":
            released[canonical(entry.get("event"))] += 1
            made_by = (key, str(entry["event"].get("type")), number(entry, "step"), number(entry, "attempt"))
            require(made_by not in noise, f"line {i + 1} of the ledger repeats an earlier one's key, step and attempt: their noise may cancel")
            noise.add(made_by)
    return header, released, previous


def canonical(event) -> str:
    require(isinstance(event, dict), "an event must be an object")
    return json.dumps({key: str(number(event, key, -math.inf)) if isinstance(value, int | float) else value
                       for key, value in event.items()}, sort_keys=True)  # fmt: skip


def require_claim(header: dict, released: Counter) -> None:
    """What the accountant's report claims nothing of is not proven either."""
    for name in ("noise_bands", "noise_chain", "noise_blt"):
        require(not header.get(name), f"receipts do not cover runs with {name}")
    require(header.get("sampling_groups", 1) == 1, "receipts do not cover runs whose units are dealt to groups")
    facts = header.get("facts", {})
    require(isinstance(facts, dict), "the ledger's facts must be an object")
    executed = facts.get("sampler")
    executed = executed.get("executed") if isinstance(executed, dict) else executed
    sampled = any(json.loads(event).get("type") != "gaussian" for event in released)
    for sampler in (executed, header.get("sampler")):
        require(not (sampled and isinstance(sampler, str)) or sampler == "poisson",
                f"the sampler that ran is not the poisson sampler that was accounted, the ledger says {sampler!r}")  # fmt: skip


# -- Events
def pair_of(event: dict, adjacency: str) -> tuple[Fraction, Fraction]:
    """(q, sigma²) of the sampled Gaussian that dominates the event; sigma in units of what a unit moves the sum by."""
    kind, replace = event.get("type"), adjacency == "replace-one"
    variance = number(event, "noise_multiplier", above=True) ** 2
    if kind == "gaussian":
        require(set(event) == {"type", "noise_multiplier"}, f"an event has unknown fields: {event}")
        return Fraction(1), variance / 4 if replace else variance
    require(kind in ("poisson_gaussian", "poisson_adaptive_clipping"), f"receipts do not cover events of type {kind!r}")
    require(not replace, f"receipts do not cover {kind} under replace-one")
    rate = number(event, "sampling_rate", 0, 1, above=True)
    fields = {"type", "noise_multiplier", "sampling_rate"}
    if kind == "poisson_adaptive_clipping":
        variance = 1 / (1 / variance + 1 / (4 * number(event, "count_noise", above=True) ** 2))
        fields.add("count_noise")
    require(set(event) == fields, f"an event has unknown fields: {event}")
    return rate, variance


def phases_of(receipt: dict, released: Counter, adjacency: str) -> list[tuple[Fraction, Fraction, int]]:
    """(q, sigma², count) of each phase. Every release of the ledger is in one phase, at no larger q and no smaller
    sigma: post-processing turns the phase's pair into that of the release."""
    stated = Counter()
    for entry in objects(receipt, "events"):
        event = entry.get("event")
        require(canonical(event) not in stated, "an event is listed twice")
        stated[canonical(event)] = whole(entry, "count")
    require(stated == released, "the receipt's events are not those of the ledger")
    events, used, phases = receipt["events"], set(), []
    for phase in objects(receipt, "phases"):
        rate = number(phase, "sampling_rate", 0, 1, above=True)
        variance = number(phase, "noise_multiplier", above=True) ** 2
        members = phase.get("events")
        require(isinstance(members, list), "a phase must list its events")
        count = 0
        for i in members:
            require(isinstance(i, int) and 0 <= i < len(events) and i not in used, "each event must be in one phase")
            used.add(i)
            q, v = pair_of(events[i]["event"], adjacency)
            require(rate >= q and variance <= v, "a phase is more private than one of its events")
            count += events[i]["count"]
        require(whole(phase, "count") == count, "a phase's count is not that of its events")
        if count:
            phases.append((rate, variance, count))
    require(len(used) == len(events), "an event is in no phase")
    return phases


def objects(holder: dict, key: str) -> list[dict]:
    found = holder.get(key)
    require(isinstance(found, list) and all(isinstance(entry, dict) for entry in found), f"{key} must list objects")
    return found


# -- Intervals and fixed point
def exactly(x: Fraction | float | int):
    x = Fraction(x)
    return iv.mpf(x.numerator) / x.denominator


def upper(x) -> Fraction:
    """The upper end of a real interval."""
    sign, mantissa, exponent, length = x._mpi_[1]
    require((mantissa or not exponent) and exponent + length < FARTHEST, "a bound is not finite")
    return (-1) ** sign * mantissa * Fraction(2) ** exponent if exponent > -FARTHEST else Fraction(1, 2 ** (FARTHEST - BITS))


def to_fixed(x) -> tuple[int, int]:
    """(m, r): the interval lies within r·2^-BITS of m·2^-BITS."""
    require(all(end[2] + end[3] < FARTHEST for end in x._mpi_), "a bound is not finite")
    low, high = (libmp.to_fixed(end, BITS) for end in x._mpi_)
    return (low + high) // 2, (high - low) // 2 + 3


def from_fixed(middle: int, radius: int):
    return iv.mpf([middle - radius, middle + radius]) / 2**BITS


def power(z, n: int):
    """z^n for an interval without a branch cut."""
    result = iv.mpf(1)
    while n:
        if n & 1:
            result = result * z
        n, z = n >> 1, z * z if n > 1 else z
    return result


# -- Moments (docs/receipt.md, 2)
class Moment:
    """M(c + it)/e^scale of one release at t = 0, step, …, (n - 1)·step, and a bound on its modulus for t >= n·step."""

    def __init__(self, remove: bool, rate: Fraction, variance: Fraction, count: int, c: Fraction, shift: Fraction, step, n):
        self.remove, self.v, self.c, self.step, self.n = remove, exactly(variance), exactly(c), step, n
        self.p = 1 + self.c if remove else -self.c
        self.sampled = rate < 1
        q, y, sigma = exactly(rate), exactly(shift), iv.sqrt(self.v)
        self.scale = self.c * (self.c + 1) / (2 * self.v)
        if not self.sampled:
            return
        self.scale = self.p * iv.log(1 - q + q * iv.exp(self.c / (2 * self.v))) if remove else self.p * iv.log(1 - q)
        digits = DIGITS + math.log(count) + 0.7 * min(float(c), 80.0)
        h, strip = self.mesh(shift, float(variance), digits)
        require((y + strip) / self.v < iv.pi / 2, "a shift is too large")
        # What the trapezoid rule, and the nodes left out, miss; relative to e^scale.
        turned = max(Fraction(0), Fraction(strip) - shift) / variance
        bound = iv.exp((y + strip) ** 2 / (2 * self.v) + exactly(turned) * step * n) * self.narrowing(y + strip)
        missed = 2 * bound / (iv.exp(2 * iv.pi * strip / h) - 1)
        lifted = y * y / (2 * self.v) + iv.log(self.narrowing(y)) + (self.p if remove else 1) * iv.log(2)
        reach = math.sqrt(2 * (digits + float(upper(lifted))))
        missed += iv.exp(lifted - exactly(reach) ** 2 / 2)
        require(upper(exactly(h) / sigma) <= 1, "the mesh is too wide")
        ends = (0.0, float(1 + c) if remove else -float(c))
        reach = reach * float(upper(sigma)) * (1 + 1e-12) + 1e-12 * (1 + abs(ends[1]))
        first, last = math.floor((min(ends) - reach) / h), math.ceil((max(ends) + reach) / h)
        require((last - first) * (n + 600) <= MOST_WORK, "the check would take more than some minutes")
        self.take_nodes(q, y, sigma, h, range(first, last + 1), sum(to_fixed(missed)))

    def narrowing(self, y):
        """|w(x + iy)^p| is at most this times w(x)^p."""
        return iv.mpf(1) if self.remove else iv.exp(-self.c * iv.log(iv.cos(y / (2 * self.v))))

    def mesh(self, shift: Fraction, v: float, digits: float) -> tuple[float, float]:
        """(h, half width of the strip) with the largest h; any pair is valid, its error is bounded afterwards."""
        y, t, c = float(shift), float(upper(self.step)) * self.n, float(upper(self.c))
        best = (0.0, 0.0)
        for i in range(1, 60):
            strip = (0.495 * math.pi * v - y) * 0.88**i
            size = (y + strip) ** 2 / (2 * v) + t * max(0.0, strip - y) / v + 1
            size -= 0 if self.remove else c * math.log(math.cos((y + strip) / (2 * v)))
            best = max(best, (2 * math.pi * strip / (digits + size), strip))
        require(best[0] > 0, "a shift is too large")
        h = min(best[0], 0.5 * math.sqrt(v))
        return math.ldexp(math.floor(math.ldexp(math.frexp(h)[0], 24)), math.frexp(h)[1] - 24), best[1]

    def take_nodes(self, q, y, sigma, h, places, missed: int):
        angle = y / self.v
        across, up = iv.cos(angle), iv.sin(angle)
        front = h / (sigma * iv.sqrt(2 * iv.pi))
        self.z, self.turn, self.radius, self.growth = [], [], missed, 1
        for j in places:
            x = iv.mpf(j) * h
            odds = q * iv.exp((2 * x - 1) / (2 * self.v))
            loss = iv.log(iv.mpc(1 - q + odds * across, odds * up))
            gauss = iv.mpc((y * y - x * x) / (2 * self.v) - self.scale, -x * y / self.v)
            weight, turn = iv.exp(gauss + self.p * loss) * front, iv.exp(iv.mpc(0, 1) * self.step * loss)
            (a, ra), (b, rb) = to_fixed(weight.real), to_fixed(weight.imag)
            (u, ru), (v, rv) = to_fixed(turn.real), to_fixed(turn.imag)
            self.z.append((a, b))
            self.turn.append((u, v))
            self.radius += ra + rb
            # |turn| <= 1: each turn adds its own error times the node, the node's times a little more than 1, and 2.
            self.growth += 4 + 2 * (((abs(a) + abs(b) + ra + rb) * (ru + rv)) >> BITS)

    def values(self):
        """M(c + it_k)/e^scale as intervals, k = 0, …, n - 1; then, as the last one, a bound for all later t."""
        if not self.sampled:
            for k in range(self.n):
                t = self.step * k
                yield iv.exp(iv.mpc(-t * t, t * (2 * self.c + 1)) / (2 * self.v))
            yield iv.exp(-((self.step * self.n) ** 2) / (2 * self.v))
            return
        z, largest = self.z, iv.mpf(0)
        for k in range(self.n):
            radius = 2 * (self.radius + k * self.growth)
            re, im = sum(a for a, _ in z), sum(b for _, b in z)
            largest = largest if k else from_fixed(re, radius)
            yield iv.mpc(from_fixed(re, radius), from_fixed(im if self.remove else -im, radius))
            z = [((a * u - b * v) >> BITS, (a * v + b * u) >> BITS) for (a, b), (u, v) in zip(z, self.turn, strict=True)]
        radius = 2 * (self.radius + self.n * self.growth)
        moduli = from_fixed(sum(math.isqrt(a * a + b * b) + 1 for a, b in z), radius)
        yield min(moduli, largest, key=upper)  # M(c) itself bounds all


# -- The bound (docs/receipt.md, 1)
def check_line(line: dict, remove: bool, phases: list, epsilon: Fraction) -> Fraction:
    """An upper bound on delta(epsilon), from a certificate by contour: the sum of its terms and its rest."""
    c, period = number(line, "intercept", above=True), number(line, "period", above=True)
    smoothing = exactly(number(line, "smoothing"))
    shifts = numbers(line, "shifts", len(phases), 0)
    terms = numbers(line, "terms", MOST_WORK // 1000 // len(phases), -math.inf)
    n, step = len(terms), 2 * iv.pi / exactly(period)
    require(n and len(shifts) == len(phases), "there must be terms, and a shift for each phase")
    z0, log_front = exactly(c), -exactly(c) * exactly(epsilon)
    products = [iv.mpf(1) for _ in range(n + 1)]
    for (rate, variance, count), shift in zip(phases, shifts, strict=True):
        moment = Moment(remove, rate, variance, count, c, shift, step, n)
        for k, value in enumerate(moment.values()):
            products[k] = products[k] * power(value, count)
        log_front += count * moment.scale
    front = iv.exp(log_front) / exactly(period)
    for k, stated in enumerate(terms):
        t = step * k
        kernel = iv.exp(iv.mpc(((z0 + 1) ** 2 - t * t) / 2, (z0 + 1) * t) * smoothing**2 + iv.mpc(0, -t * exactly(epsilon)))
        z = iv.mpc(z0, t)
        share = (products[k] * kernel / (z * (z + 1))).real * front * (2 if k else 1)
        require(upper(share) <= stated, f"term {k} is smaller than it can be: {float(stated)!r}, not {float(share.b)!r}")
    t = step * n
    beyond = front * products[n] * iv.exp(smoothing**2 * ((z0 + 1) ** 2 - t * t) / 2)
    beyond = 2 * beyond * (exactly(period) / (2 * iv.pi)) ** 2 * (exactly(Fraction(1, n * n)) + exactly(Fraction(1, n)))
    rest = number(line, "rest")
    require(upper(beyond) <= rest, f"rest is smaller than it can be: {float(rest)!r}, not {float(beyond.b)!r}")
    return sum(terms) + rest


def check_chernoff(line: dict, remove: bool, phases: list, epsilon: Fraction) -> Fraction:
    """The same from Chernoff's bound at one c: c^c/(1+c)^(1+c)·M(c)·e^(-c·epsilon)."""
    c = number(line, "intercept", above=True)
    total = -exactly(c) * exactly(epsilon) - exactly(c) * iv.log(1 + 1 / exactly(c)) - iv.log(1 + exactly(c))
    for rate, variance, count in phases:
        moment = Moment(remove, rate, variance, count, c, Fraction(0), iv.mpf(0), 1)
        total += count * (moment.scale + iv.log(next(iter(moment.values())).real))
    bound = number(line, "bound")
    require(upper(iv.exp(total)) <= bound, f"bound is smaller than it can be: {float(bound)!r}, not {float(iv.exp(total).b)!r}")
    return bound


def check_largest_loss(line: dict, remove: bool, phases: list, epsilon: Fraction) -> Fraction:
    """Added to a data set, no unit can cause a loss above the sum of -log(1 - q)."""
    require(not remove and all(rate < 1 for rate, _, _ in phases), "only an added, sampled unit has a largest loss")
    total = iv.mpf(0)
    for rate, _, count in phases:
        total -= count * iv.log(1 - exactly(rate))
    require(upper(total) <= epsilon, "the largest loss is above epsilon")
    return Fraction(0)


METHODS = {"contour": check_line, "chernoff": check_chernoff, "largest-loss": check_largest_loss}


def check(receipt: dict, header: dict, released: Counter, head: str) -> dict:
    """What the receipt proves; Refused says why it proves nothing."""
    require(receipt.get("schema") == "ghostshard.receipt/1", "schema must be ghostshard.receipt/1")
    require(receipt.get("ledger_head") == head, "the receipt is for another ledger, or another length of it")
    adjacency = receipt.get("adjacency")
    require(adjacency in ("zero-out", "add-or-remove", "replace-one"), f"unknown adjacency {adjacency!r}")
    require(adjacency == header.get("adjacency"), "the adjacency is not that of the ledger")
    epsilon, delta = number(receipt, "epsilon"), number(receipt, "delta", 0, 1, above=True)
    require_claim(header, released)
    phases = phases_of(receipt, released, adjacency)
    for direction in ("remove", "add"):
        line = receipt.get(direction)
        require(isinstance(line, dict) and str(line.get("method")) in METHODS, f"{direction} must have a known method")
        if phases:  # nothing released costs nothing
            try:
                bound = METHODS[line["method"]](line, direction == "remove", phases, epsilon)
            except (ArithmeticError, ValueError) as error:  # numbers that no interval can hold
                raise Refused(f"{direction}: {error}") from None
            require(bound <= delta, f"{direction}: the terms add up to {float(bound)!r}, which is more than delta")
    releases = sum(released.values())
    return dict(epsilon=float(epsilon), delta=float(delta), adjacency=adjacency, ledger_head=head, releases=releases)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="ghostshard-check-receipt", description=__doc__.split("\n")[0],
                                     epilog="Exit status: 0 it is proven, 1 it is not, 2 wrong options.")  # fmt: skip
    parser.add_argument("--receipt", required=True, help="receipt.json, from `ghostshard account report --receipt`")
    parser.add_argument("--ledger", required=True, help="the run's ledger.jsonl")
    parser.add_argument("--report", help="privacy_report.json: must claim no less than the receipt proves")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        proven = check(parse(read_text(options.receipt), "the receipt"), *read_ledger(options.ledger))
        if options.report is not None:
            claim = parse(read_text(options.report), "the report").get("guarantee")
            require(isinstance(claim, dict) and isinstance(claim.get("epsilon"), dict), "the report claims nothing")
            require(number(claim["epsilon"], "upper") >= Fraction(proven["epsilon"]) and
                    number(claim, "delta", 0, 1) >= Fraction(proven["delta"]),
                    f"the report claims less than the receipt proves: epsilon {claim['epsilon']['upper']}, "
                    f"not {proven['epsilon']} at delta {proven['delta']}")  # fmt: skip
            require(claim.get("adjacency") == proven["adjacency"], "the report's adjacency is not the receipt's")
    except (Refused, RecursionError) as refused:  # what one reads at its depth, the next may not
        print(json.dumps({"proven": False, "why": str(refused)}) if options.json else f"NOT PROVEN: {refused}")
        return 1
    if options.json:
        print(json.dumps({"proven": True, **proven}))
    else:
        print(f"Proven: epsilon <= {proven['epsilon']!r} at delta = {proven['delta']!r}, {proven['adjacency']}, for the "
              f"{proven['releases']} releases up to head {proven['ledger_head']}.")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
