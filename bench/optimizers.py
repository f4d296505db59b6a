"""Training steps of optimizers in turn, from Python over FSDP2's shards, each kept ready in its own processes, as in bench/peers.py:
without privacy (fsdp2) and private (ghostshard, ghost_fsdp), with torch's AdamW, torch's Muon on gathered matrices or on shards, and
those of ghostshard.optim. Prints a table and writes JSON: seconds of a step and of the optimizer in it, peak memory, bytes of state on
rank 0, and the MB that rank 0 has to send in the optimizer's step by kind of collective, counted once in the warm-up. "/adamw" is the
time beside torch's AdamW on the same engine: medians over rounds. With --device cuda every rank has a GPU of its own.

    .venv/bin/python bench/optimizers.py --output bench/results/optimizers.json
    .venv/bin/python bench/optimizers.py --shapes 124M_T100 --repeats 1 --engines fsdp2/torch_adamw ghostshard/adamw8bit
    .venv/bin/python bench/optimizers.py --short        # a tiny model and one round: that it runs, no figures
"""

import argparse
import json
import os
import pathlib
import statistics
import sys

from peers import name_of_cuda_device
from step_peers import ROOT, SHAPES, Engine, in_turns, new_report

SHORT = {"layers": 2, "width": 32, "heads": 2, "vocab": 97, "length": 8, "texts": 2, "untied": True}
ENGINES = ["fsdp2/torch_adamw", "fsdp2/torch_muon_gathered", "ghostshard/torch_adamw", "ghostshard/adamw8bit", "ghostshard/muon"]
ON_REQUEST = ["fsdp2/torch_muon", "fsdp2/adamw", "fsdp2/adamw8bit", "fsdp2/muon", "ghostshard/adamw", "ghostshard/shampoo", "ghostshard/soap"]
COLUMNS = ("seconds", "processor_seconds", "peak_memory_mib", "loopback_mb", "all_gather_mb", "reduce_scatter_mb", "all_reduce_mb",
           "optimizer_seconds", "state_mb", "optimizer_all_gather_mb", "optimizer_reduce_scatter_mb", "optimizer_all_reduce_mb",
           "optimizer_all_to_all_mb")  # fmt: skip


class OptimizerEngine(Engine):
    answers = len(COLUMNS)


def start(name, shape, microbatches, ranks, device):
    engine, optimizer = name.split("/")
    sizes = [f"--{key}={value}" for key, value in shape.items() if key != "untied"]
    command = [sys.executable, str(ROOT / "bench/peers/python_step.py"), engine, *sizes, f"--microbatches={microbatches}",
               f"--optimizer={optimizer}", f"--device={device}"]  # fmt: skip
    return OptimizerEngine(command, ranks)


def compare(name, shape, microbatches, ranks, repeats, names, device):
    engines = {each: start(each, shape, microbatches, ranks, device) for each in names}
    series = in_turns(engines, repeats, "step")
    result = {"shape": name, "microbatches": microbatches, "ranks": ranks, "repeats": repeats, **shape, "untied": True,
              "plan": {each: engine.said().splitlines() for each, engine in engines.items() if each.startswith("ghostshard")},
              "engines": {}, "rounds": series}  # fmt: skip
    for each, answers in series.items():
        row = {key: statistics.median(column) for key, column in zip(COLUMNS, zip(*answers))}
        row["peak_memory_mib"] = max(answer[2] for answer in answers)
        peer = f"{each.split('/')[0]}/torch_adamw"
        if peer in series:
            row["step_over_adamw"] = statistics.median(q[0] / p[0] for p, q in zip(series[peer], answers))
        result["engines"][each] = row
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["21M_T100"])
    parser.add_argument("--engines", nargs="+", choices=ENGINES + ON_REQUEST, default=ENGINES, help="all at once need the memory of all")
    parser.add_argument("--microbatches", nargs="+", type=int, default=[4])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="a tiny model, one round of one microbatch")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    shapes = {name: SHAPES[name] for name in args.shapes}
    if args.short:
        shapes, args.microbatches, args.repeats = {"short": SHORT}, [1], 1
    report = new_report(name_of_cuda_device(parser, args.ranks) if args.device == "cuda" else None)
    print(f"{'shape':11} {'mb':>2} {'engine':26} {'step s':>7} {'/adamw':>7} {'opt. s':>7} {'MiB':>6} {'state':>7} {'gather':>7} "
          f"{'reduce':>7} {'all':>7} {'to all':>7}")  # fmt: skip
    for name, shape in shapes.items():
        for microbatches in args.microbatches:
            run = compare(name, shape, microbatches, args.ranks, args.repeats, args.engines, args.device)
            report["runs"].append(run)
            for engine, row in run["engines"].items():
                sent = " ".join(f"{row[key]:7.1f}" for key in COLUMNS[9:])
                print(f"{name:11} {microbatches:2} {engine:26} {row['seconds']:7.3f} {row.get('step_over_adamw', float('nan')):7.3f} "
                      f"{row['optimizer_seconds']:7.3f} {row['peak_memory_mib']:6.0f} {row['state_mb']:7.1f} {sent}", flush=True)  # fmt: skip
            if args.output:
                report["load_after"] = os.getloadavg()
                args.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
