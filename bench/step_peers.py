"""Training steps of several engines in turn, each kept ready in its own processes: private and plain steps of
GhostShard, and PyTorch's FSDP2 without privacy. One step of each, again and again, in an order that changes, so that
other load on the machine hits all alike. Prints a table and writes JSON.

    .venv/bin/python bench/step_peers.py --output bench/results/step_peers.json
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPES = {
    # name: model of that many parameters, texts on each rank in a microbatch of about 800 to 1,000 tokens
    "28.9M_T100": dict(layers=4, width=256, heads=4, vocab=50257, length=100, texts=8, untied=True),
    "28.9M_T512": dict(layers=4, width=256, heads=4, vocab=50257, length=512, texts=2, untied=True),
    "28.9M_T1024": dict(layers=4, width=256, heads=4, vocab=50257, length=1024, texts=1, untied=True),
    "21M_T100": dict(layers=4, width=512, heads=8, vocab=8192, length=100, texts=8, untied=True),
    "21M_T512": dict(layers=4, width=512, heads=8, vocab=8192, length=512, texts=2, untied=True),
    "21M_T1024": dict(layers=4, width=512, heads=8, vocab=8192, length=1024, texts=1, untied=True),
    "124M_T100": dict(layers=12, width=768, heads=12, vocab=50257, length=100, texts=8, untied=False),
    "124M_T512": dict(layers=12, width=768, heads=12, vocab=50257, length=512, texts=2, untied=False),
    "124M_T1024": dict(layers=12, width=768, heads=12, vocab=50257, length=1024, texts=1, untied=False),
    "355M_T1024": dict(layers=24, width=1024, heads=16, vocab=50257, length=1024, texts=1, untied=False),
}
SMALL = [name for name, shape in SHAPES.items() if shape["layers"] == 4]  # for minutes on a CPU


PEERS = ["plain", "fsdp2", "fsdp2_accumulate"]


class Engine:
    """The ranks of one engine, waiting for commands on rank 0's standard input."""

    answers = 3  # numbers that a step is answered with

    def __init__(self, command, ranks):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.ranks = []
        self.errors = tempfile.TemporaryFile("w+")
        for rank in range(ranks):
            environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                               LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                               OMP_NUM_THREADS="1")
            self.ranks.append(subprocess.Popen(command, env=environment, text=True, stderr=self.errors,
                                               stdin=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                                               stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL))

    def step(self, word):
        with contextlib.suppress(BrokenPipeError):  # its process has ended: there is no answer either
            self.ranks[0].stdin.write(word + "\n")
            self.ranks[0].stdin.flush()
        answer = self.ranks[0].stdout.readline().split()
        if len(answer) != self.answers:
            raise SystemExit(f"{self.ranks[0].args[:3]} ended instead of answering {word!r}:\n{self.said()[-2000:]}")
        return [float(value) for value in answer]

    def said(self):
        """All that its ranks wrote to standard error."""
        self.errors.seek(0)
        return self.errors.read()

    def quit(self):
        self.ranks[0].stdin.write("quit\n")
        self.ranks[0].stdin.close()
        for process in self.ranks:
            process.wait(timeout=120)


def in_turns(engines, repeats, word=None):
    """{name: answers} of `repeats` steps of each engine, in an order that changes from round to round, after one that warms up. word: what
    an engine is told; by default its name."""
    series = {name: [] for name in engines}
    for i in range(repeats + 1):
        for name in list(engines) if i % 2 == 0 else list(reversed(engines)):
            answer = engines[name].step(word or name)
            if i > 0:
                series[name].append(answer)
    for engine in engines.values():
        engine.quit()
    return series


def flags(shape, microbatches):
    words = [f"--{name}={value}" for name, value in shape.items() if name != "untied"]
    return words + [f"--microbatches={microbatches}"] + (["--untied"] if shape["untied"] else [])


def compare(name, shape, microbatches, ranks, repeats, binary, names, memory_budget=None):
    """rounds: by engine, the answers of each round. plan: the private step's, in words."""
    step = [str(binary), "--serve"] + flags(shape, microbatches)
    private = ["--only=private", "--explain-plan"] + ([f"--memory-budget={memory_budget}"] if memory_budget else [])
    fsdp2 = [sys.executable, str(ROOT / "bench/peers/fsdp2_step.py")] + flags(shape, microbatches)
    # A process each, so that each one's peak memory is its own.
    commands = {"private": step + private, "plain": step + ["--only=plain"], "fsdp2": fsdp2,
                "fsdp2_accumulate": fsdp2}
    engines = {engine: Engine(command, ranks) for engine, command in commands.items() if engine in names}
    series = in_turns(engines, repeats)
    result = {"shape": name, "microbatches": microbatches, "ranks": ranks, "repeats": repeats, **shape,
              "plan": engines["private"].said().splitlines() if "private" in engines else None, "rounds": series}
    for engine, answers in series.items():
        wall, processor, peak = zip(*answers)
        result[engine] = {"seconds": statistics.median(wall), "fastest": min(wall),
                          "processor_seconds": statistics.median(processor), "peak_memory_mib": max(peak)}
    for peer in (engine for engine in engines if engine != "private"):
        for column, key in ((0, "throughput"), (1, "processor")):
            ratios = [q[column] / p[column] for p, q in zip(series["private"], series[peer])]
            result[f"private_over_{peer}_{key}"] = statistics.median(ratios)
        result[f"memory_private_over_{peer}"] = result["private"]["peak_memory_mib"] / result[peer]["peak_memory_mib"]
    return result


def processor():
    """Which CPU this is: ratios move with it, as its vectors and caches weigh in some operations only."""
    found = {}
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        found = dict((part.strip() for part in line.split(":", 1)) for line in lines if ":" in line)
    flags = found.get("flags", "").split()
    vectors = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("sse2", "SSE2")) if flag in flags), platform.machine())
    name = f"{found.get('model name', platform.machine())} (family {found.get('cpu family', '?')}, model {found.get('model', '?')})"
    return f"{os.cpu_count()} cores, {name}, {vectors}"


def new_report(device=None):
    """device: the device that was measured, if it is not this CPU."""
    commit = os.environ.get("GHOSTSHARD_COMMIT")  # of a bundle, which has no history of its own
    if commit is None:
        command = ["git", "-C", ROOT, "describe", "--always", "--dirty"]
        commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    device = device or f"CPU, {processor()}"
    return {"device": device, "commit": commit, "command": " ".join(sys.argv),
            "load_before": os.getloadavg(), "runs": []}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SMALL)
    parser.add_argument("--microbatches", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS, help="all at once need the memory of all")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/bin/step_compare")
    parser.add_argument("--memory-budget", help="of the private step: MiB, or 1.05x")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    report = new_report()
    print(f"{'shape':12} {'mb':>3} {'private s':>10} {'/plain':>7} {'cpu':>6} {'/fsdp2':>7} {'/accum.':>8} {'MiB':>6} "
          f"{'/plain':>7} {'/fsdp2':>7}")
    for name in args.shapes:
        for microbatches in args.microbatches:
            run = compare(name, SHAPES[name], microbatches, args.ranks, args.repeats, args.binary,
                          ["private", *args.peers], args.memory_budget)
            report["runs"].append(run)
            ratios = [run.get(key, float("nan")) for key in (
                "private_over_plain_throughput", "private_over_plain_processor", "private_over_fsdp2_throughput",
                "private_over_fsdp2_accumulate_throughput", "memory_private_over_plain", "memory_private_over_fsdp2")]
            print(f"{name:12} {microbatches:3} {run['private']['seconds']:10.3f} {ratios[0]:7.3f} {ratios[1]:6.3f} "
                  f"{ratios[2]:7.3f} {ratios[3]:8.3f} {run['private']['peak_memory_mib']:6.0f} {ratios[4]:7.3f} "
                  f"{ratios[5]:7.3f}", flush=True)
            if args.output:
                report["load_after"] = os.getloadavg()
                args.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
