"""Training steps from Python, several engines in turn, each kept ready in its own processes: GhostShard's ghost_fsdp,
PyTorch's FSDP2 without privacy, Opacus' ghost_fsdp, Opacus' ghost with the model whole on every rank. One step of each,
again and again, in an order that changes, so that other load on the machine hits all alike. Prints a table and
writes JSON. Ratios are medians over rounds; "/fsdp2" of 0.97 means 3 % slower than without privacy. With
--largest-batch MIB the texts on a rank grow instead, until a process takes more memory than MIB.

With --device cuda every rank has a GPU of its own (one rank by default), all engines' processes share it, and peak
memory is that of PyTorch's allocator of the device.

    .venv/bin/python bench/peers.py --output bench/results/peers.json
    GHOSTSHARD_MODULES=build/cuda/python .venv/bin/python bench/peers.py --device cuda --shapes 124M_T1024 --texts 8
    .venv/bin/python bench/peers.py --shapes 21M_T100 --largest-batch 2048
"""

import argparse
import json
import os
import pathlib
import statistics
import sys

from step_peers import ROOT, SHAPES, Engine, in_turns, new_report

ENGINES = ["fsdp2", "fsdp2_accumulate", "ghostshard", "opacus_fsdp", "opacus_dpddp"]
ON_REQUEST = ["ghostshard_reduced_each", "ghostshard_two_passes"]
COLUMNS = ("seconds", "processor_seconds", "peak_memory_mib", "loopback_mb", "all_gather_mb", "reduce_scatter_mb",
           "all_reduce_mb")
GROWTH = 1.1  # of the batch from step to step, in the search for the largest


class PythonEngine(Engine):
    answers = len(COLUMNS)


def start(engine, shape, microbatches, ranks, device, compute_dtype="float32"):
    sizes = [f"--{key}={value}" for key, value in shape.items() if key != "untied"]
    command = [sys.executable, str(ROOT / "bench/peers/python_step.py"), engine, *sizes,
               f"--microbatches={microbatches}", f"--device={device}", f"--compute-dtype={compute_dtype}"]
    return PythonEngine(command, ranks)


def largest_batch(engine, shape, ranks, limit_mib, device, compute_dtype="float32"):
    """Texts on a rank in one microbatch, and the peak memory with them; two steps of each size."""
    process = start(engine, shape, 1, ranks, device, compute_dtype)
    texts, fits = 1, (0, 0.0)
    while True:
        peak = max(process.step(f"step {texts}")[2] for _ in range(2))
        if peak > limit_mib:
            break
        fits = (texts, peak)
        texts = max(texts + 1, int(texts * GROWTH))
    process.quit()
    return fits


def compare(name, shape, microbatches, ranks, repeats, names, device, compute_dtype="float32"):
    engines = {engine: start(engine, shape, microbatches, ranks, device, compute_dtype) for engine in names}
    series = in_turns(engines, repeats, "step")
    result = {"shape": name, "microbatches": microbatches, "ranks": ranks, "repeats": repeats,
              "compute_dtype": compute_dtype, **shape, "untied": True,
              "plan": {name: each.said().splitlines() for name, each in engines.items() if name.startswith("ghostshard")},
              "engines": {}, "rounds": series}
    for engine, answers in series.items():
        row = {key: statistics.median(column) for key, column in zip(COLUMNS, zip(*answers))}
        row["peak_memory_mib"] = max(answer[2] for answer in answers)
        for peer in ("fsdp2", "fsdp2_accumulate"):
            if peer in series:
                for column, key in ((0, "throughput"), (1, "processor")):
                    row[f"{key}_over_{peer}"] = statistics.median(
                        p[column] / q[column] for p, q in zip(series[peer], answers))
        result["engines"][engine] = row
    return result


def shape_of(name, texts):
    return SHAPES[name] | ({"texts": texts} if texts else {})


def name_of_cuda_device(parser, ranks):
    import torch

    found = torch.cuda.device_count()
    if found < ranks:
        parser.error(f"--device cuda --ranks {ranks}: each rank needs a CUDA device of its own, this machine has "
                     f"{found}")
    return torch.cuda.get_device_name()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["21M_T100", "21M_T512", "28.9M_T100"])
    parser.add_argument("--engines", nargs="+", choices=ENGINES + ON_REQUEST, default=ENGINES)
    parser.add_argument("--microbatches", nargs="+", type=int, default=[4, 1])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compute-dtype", choices=["float32", "bfloat16"], default="float32",
                        help="bfloat16: by FSDP2's MixedPrecisionPolicy; Opacus' DistributedDataParallel has none and is left out")
    parser.add_argument("--ranks", type=int, help="default: 2 on the CPU, 1 on a GPU")
    parser.add_argument("--texts", type=int, help="on each rank in a microbatch (default: the shape's, a CPU's)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--largest-batch", type=float, metavar="MIB")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    if args.compute_dtype != "float32":
        args.engines = [engine for engine in args.engines if engine != "opacus_dpddp"]
    args.ranks = args.ranks or (2 if args.device == "cpu" else 1)
    report = new_report(name_of_cuda_device(parser, args.ranks) if args.device == "cuda" else None)
    if args.largest_batch:
        for name in args.shapes:
            for engine in args.engines:
                texts, peak = largest_batch(engine, SHAPES[name], args.ranks, args.largest_batch, args.device, args.compute_dtype)
                report["runs"].append({"shape": name, "engine": engine, "ranks": args.ranks, "texts": texts,
                                       "peak_memory_mib": peak, "limit_mib": args.largest_batch})
                print(f"{name:11} {engine:22} {texts:5} texts a rank within {args.largest_batch:.0f} MiB", flush=True)
                if args.output:
                    args.output.write_text(json.dumps(report, indent=2) + "\n")
        return
    print(f"{'shape':11} {'mb':>2} {'engine':22} {'step s':>7} {'/fsdp2':>7} {'cpu':>6} {'/accum.':>8} {'MiB':>6} "
          f"{'MB sent':>8} {'gather':>7} {'reduce':>7} {'all':>7}")
    for name in args.shapes:
        for microbatches in args.microbatches:
            run = compare(name, shape_of(name, args.texts), microbatches, args.ranks, args.repeats, args.engines,
                          args.device, args.compute_dtype)
            report["runs"].append(run)
            for engine, row in run["engines"].items():
                ratios = [row.get(f"{key}_over_{peer}", float("nan")) for key, peer in
                          (("throughput", "fsdp2"), ("processor", "fsdp2"), ("throughput", "fsdp2_accumulate"))]
                print(f"{name:11} {microbatches:2} {engine:22} {row['seconds']:7.3f} {ratios[0]:7.3f} {ratios[1]:6.3f} "
                      f"{ratios[2]:8.3f} {row['peak_memory_mib']:6.0f} {row['loopback_mb']:8.1f} "
                      f"{row['all_gather_mb']:7.1f} {row['reduce_scatter_mb']:7.1f} {row['all_reduce_mb']:7.1f}",
                      flush=True)
            if args.output:
                report["load_after"] = os.getloadavg()
                args.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
