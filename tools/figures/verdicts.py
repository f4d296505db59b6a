"""What a short run says of printed ratios, and of the best that each was ever measured.

A ratio is of two engines that took turns in one run, so both met the same machine. Its noise is what the run's own
rounds show: the difference of the greatest and the least.
"""

import dataclasses
import statistics

from .documents import Figure

LEAST_NOISE = {"throughput": 0.01, "memory": 0.03}  # rounds may agree by chance, and have one peak together
MOST_NOISE = 0.10  # beyond it a run says nothing: the machine was not quiet
SLIP = 0.05  # of the best: a loss that is seen


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Of one engine to another in one run: of throughput (more is better) or of peak memory (less is better)."""

    bench: str  # "step": bench/step_peers.py; "python": bench/peers.py
    shape: str
    microbatches: int
    quantity: str  # "throughput", "memory"
    engine: str
    peer: str

    @property
    def ours(self) -> bool:
        """A peer may become slower: no loss of ours."""
        return self.engine == "private" or self.engine.startswith("ghostshard")

    @property
    def name(self) -> str:
        return f"{self.bench} {self.shape} x{self.microbatches} {self.engine}/{self.peer} {self.quantity}"


def ratio_of(figure: Figure) -> Ratio | None:
    """None for figures that are no ratio of a run's engines: seconds, MiB, MB."""
    run = figure.run
    bench = "python" if "engines" in run else "step"
    found = pair_of(figure.path)
    return None if found is None else Ratio(bench, run["shape"], run["microbatches"], *found)


def pair_of(path: str) -> tuple[str, str, str] | None:
    if path.startswith("private_over_") and path.endswith("_throughput"):
        return "throughput", "private", path.removeprefix("private_over_").removesuffix("_throughput")
    if path.startswith("memory_private_over_"):
        return "memory", "private", path.removeprefix("memory_private_over_")
    if path.startswith("engines.") and ".throughput_over_" in path:
        engine, peer = path.removeprefix("engines.").split(".throughput_over_")
        return "throughput", engine, peer
    if " / " in path and path.count("engines.") == 2 and path.count(".seconds") == 2:
        peer, engine = (side.removeprefix("engines.").removesuffix(".seconds") for side in path.split(" / "))
        return "throughput", engine, peer
    return None


def measured(ratio: Ratio, run: dict) -> list[float]:
    """The ratio in each round of a run. run["rounds"]: by engine, [seconds, processor seconds, peak MiB, ...] a round."""
    mine, other = run["rounds"][ratio.engine], run["rounds"][ratio.peer]
    if ratio.quantity == "throughput":
        return [theirs[0] / ours[0] for ours, theirs in zip(mine, other)]
    return [max(ours[2] for ours in mine) / max(theirs[2] for theirs in other)]  # a process' peak only rises


@dataclasses.dataclass
class Verdict:
    ratio: Ratio
    printed: str
    place: str
    now: float
    noise: float
    best: float | None
    faults: list[str]
    commit: str | None = None  # of the run, if it names one

    def line(self) -> str:
        best = "-" if self.best is None else f"{self.best:.3f}"
        said = "; ".join(self.faults) or "ok"
        return f"{self.ratio.name:58} {self.printed:>8} {self.now:8.3f} {self.noise:7.3f} {best:>7}  {said}"


HEADING = f"{'ratio':58} {'printed':>8} {'measured':>8} {'noise':>7} {'best':>7}"


def judge(figure: Figure, ratio: Ratio, run: dict, ratchet: dict) -> Verdict:
    rounds = measured(ratio, run)
    now, noise = statistics.median(rounds), max(LEAST_NOISE[ratio.quantity], max(rounds) - min(rounds))
    kept = ratchet.get(ratio.name)
    verdict = Verdict(ratio, figure.printed, figure.place, now, noise, kept and kept["ratio"], [], run.get("commit"))
    if noise > MOST_NOISE:
        verdict.faults.append("no verdict: the rounds differ too much, the machine is not quiet")
        return verdict
    if abs(now - float(figure.printed)) > noise + figure.half_a_digit:
        verdict.faults.append(f"the printed figure is off by {now - float(figure.printed):+.3f}")
    if kept and slipped(ratio, now, kept["ratio"]):
        verdict.faults.append(f"slipped from the best, {kept['ratio']:.3f} at {kept['commit']}")
    return verdict


def slipped(ratio: Ratio, now: float, best: float) -> bool:
    return now < (1 - SLIP) * best if ratio.quantity == "throughput" else now > (1 + SLIP) * best


def raised(ratchet: dict, verdicts: list[Verdict], commit: str) -> dict:
    """A device's ratchet with every ratio of ours that is new, or better than its best by more than the run's noise. commit: of runs that
    name none."""
    after = dict(ratchet)
    for verdict in verdicts:
        if verdict.noise > MOST_NOISE or not verdict.ratio.ours:
            continue
        sign = 1 if verdict.ratio.quantity == "throughput" else -1
        if verdict.best is None or sign * (verdict.now - verdict.best) > verdict.noise:
            after[verdict.ratio.name] = {"ratio": round(verdict.now, 4), "noise": round(verdict.noise, 4), "commit": verdict.commit or commit}
    return dict(sorted(after.items()))
