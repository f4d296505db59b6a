"""Are the figures in README and docs still true? `make check-figures`, on a quiet machine.

First without measuring: every figure of a table, and every number with a unit in prose, has an entry in
bench/results/figures.json; it is what its run gave, and the run names its commit, command and plan. Then the short form
of each bench: engines take turns for a few rounds, and a printed ratio may differ from the measured one by no more than
the rounds differ among themselves. A ratio 5 % below the best that was ever measured on this processor
(bench/results/ratchet.json) is reported too.

    tools/check_figures.py                            # the headline ratios, about a quarter of an hour
    tools/check_figures.py --documents                # only the part without measuring, within a second
    tools/check_figures.py --write                    # the same, after the tables took what the latest runs gave
    tools/check_figures.py --all --raise-ratchet      # every ratio; keeps those that are the best so far
    tools/check_figures.py --only 28.9M_T100 --memory-budget 1.05x     # what a budget costs

The exit code is 1 if a figure is wrong, has slipped, or could not be judged.
"""

import argparse
import collections
import functools
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "bench")]

import step_peers
from figures import documents, verdicts, written

RANKS = 2


def chosen(figures, entries, args):
    """(figure, ratio) pairs to measure, each ratio once."""
    headline = [tuple(run) for run in entries["headline"]]
    found = {}
    for figure in figures:
        ratio = verdicts.ratio_of(figure)
        if ratio is None or ratio in found:
            continue
        if args.only and not any(word in ratio.name for word in args.only):
            continue
        if args.all or args.only or (ratio.bench, ratio.shape, ratio.microbatches) in headline:
            found[ratio] = figure
    return [(figure, ratio) for ratio, figure in found.items()]


def runs_of(pairs):
    """The runs that give all ratios: by bench, shape and microbatches, the engines that take turns."""
    runs = collections.defaultdict(dict)
    for _, ratio in pairs:
        for engine in (ratio.engine, ratio.peer):
            runs[ratio.bench, ratio.shape, ratio.microbatches][engine] = None
    return {key: list(engines) for key, engines in runs.items()}


def measure(key, engines, args):
    bench, shape, microbatches = key
    if bench == "step":
        return step_peers.compare(shape, step_peers.SHAPES[shape], microbatches, RANKS, args.rounds, args.binary, engines,
                                  args.memory_budget)
    import peers

    return peers.compare(shape, peers.SHAPES[shape], microbatches, RANKS, args.rounds, engines, "cpu")


def found_in(report, key):
    """The run of a report that was measured before; None if it has none with rounds."""
    _, shape, microbatches = key
    return next((run for run in report["runs"] if (run["shape"], run["microbatches"]) == (shape, microbatches) and "rounds" in run),
                None)  # fmt: skip


def judge_all(pairs, ratchet, run_by_key):
    judged = []
    for figure, ratio in pairs:
        run = run_by_key((ratio.bench, ratio.shape, ratio.microbatches))
        if run is None or not {ratio.engine, ratio.peer} <= run["rounds"].keys():
            continue
        judged.append(verdicts.judge(figure, ratio, run, ratchet))
        print(judged[-1].line(), flush=True)
    return judged


def devices_of(root, entries):
    """What the runs of the tables name as their devices."""
    files = {name for table in entries["tables"] for name in table.get("results", ())}
    reports = (json.loads((root / "bench/results" / name).read_text()) for name in sorted(files))
    return sorted({report["device"] for report in reports if "device" in report})


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="measure nothing; write the latest runs' figures into the tables")
    parser.add_argument("--all", action="store_true", help="every ratio in place of the headline's")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="ratios whose name has one of the words")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measured", type=pathlib.Path, help="a report of bench/step_peers.py or peers.py: judge that")
    parser.add_argument("--memory-budget", help="for the private steps: MiB, or 1.05x")
    parser.add_argument("--raise-ratchet", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the tree whose documents are read")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/bin/step_compare")
    return parser.parse_args(words)


def main(words=None):
    args = parse(words)
    entries = json.loads((args.root / "bench/results/figures.json").read_text())
    ratchet_file = args.root / "bench/results/ratchet.json"
    ratchet = json.loads(ratchet_file.read_text())
    if args.write:
        for name in entries["documents"]:
            document = args.root / name
            mine = [entry for entry in entries["tables"] if entry["file"] == name]
            document.write_text(written.written(document.read_text(), mine, documents.Results(args.root / "bench/results")))
    figures, wrong = documents.read(args.root, entries)
    for line in wrong:
        print(line)
    print(f"{len(figures)} figures stand beside their runs in {', '.join(entries['documents'])}: {len(wrong)} faults")
    if args.documents or args.write:
        return 1 if wrong else 0
    pairs = chosen(figures, entries, args)
    if not pairs:
        print("no ratio is chosen")
        return 1
    report = json.loads(args.measured.read_text()) if args.measured else step_peers.new_report()
    device = report.get("device", "no device that it names")
    best = ratchet.get(device, {})
    print(f"measured on: {device}; printed from: {'; '.join(devices_of(args.root, entries))}")
    print("(Ratios move with the processor: on another one judge a change by its own runs before and after.)")
    print(verdicts.HEADING)
    if args.measured:
        judged = judge_all(pairs, best, lambda key: found_in(report, key))
    else:
        runs = runs_of(pairs)
        judged = judge_all(pairs, best, functools.cache(lambda key: measure(key, runs[key], args)))
    faults = sum(bool(verdict.faults) for verdict in judged)
    print(f"{len(judged)} ratios measured, {faults} faults" + ("" if judged else ": none of the chosen ones is in the report"))
    if args.raise_ratchet and not args.memory_budget:
        ratchet_file.write_text(json.dumps(ratchet | {device: verdicts.raised(best, judged, report["commit"])}, indent=1) + "\n")
    return 1 if wrong or faults or not judged else 0


if __name__ == "__main__":
    sys.exit(main())
