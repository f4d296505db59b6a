"""What a step's draw costs: CPU seconds and memory of tossing all coins of n simulated units on one rank, and of cutting the draw to a
largest batch. Nothing but the units' number exists.

    python bench/sampling_cost.py [--units 10000000 100000000 1000000000] [--batch 4096] [--rounds 5]    # medians of the rounds

On one core of an AMD EPYC (family 25, model 17): 1.05 to 1.09 CPU seconds for 1,000,000,000 units, 0.11 for 100,000,000, with 0.9 MiB, cut or not.

A rank of the C++ program tosses n/W of them (dp/mechanism/sampler.h); from Python each tosses its own n/W, or all with max_batch_size.
"""

import argparse
import resource
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bindings" / "python"))
from ghostshard._native import load

KEY, RUN = bytes(range(32)), "00" * 16


def cpu_seconds(draw, rounds: int) -> tuple[float, int]:
    seconds = []
    for _ in range(rounds):
        begin = time.process_time()
        units = draw()
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds), len(units)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--units", type=int, nargs="+", default=[10**7, 10**8, 10**9])
    options.add_argument("--batch", type=int, default=4096)
    options.add_argument("--rounds", type=int, default=1)
    given = options.parse_args()
    engine = load("engine")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("| units | drawn | CPU s | cut to | CPU s | MiB more |\n|---|---|---|---|---|---|")
    for units in given.units:
        rate, cap = given.batch / units, given.batch - given.batch // 50
        tossed, drawn = cpu_seconds(lambda: engine.drawn_units(KEY, RUN, 0, units, rate), given.rounds)
        cut, kept = cpu_seconds(lambda: engine.kept_units(KEY, RUN, 0, units, rate, cap), given.rounds)
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"| {units:,} | {drawn} | {tossed:.3f} | {kept} | {cut:.3f} | {more:.1f} |")


if __name__ == "__main__":
    main()
