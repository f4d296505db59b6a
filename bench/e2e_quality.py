"""What privacy costs in quality: a small GPT-2 on E2E from fresh weights, without privacy and under budgets, by method. Loss per
token of the reference texts of the test split, which is not trained on.

    python bench/e2e_quality.py --train devset.csv --test testset_w_refs.csv --output bench/results/e2e_quality.json \\
        --plot docs/quality.svg --table docs/quality.md
    python bench/e2e_quality.py … --methods SGD Muon    # makes runs of these alone; of the others it takes what --output has

The two files are of the E2E NLG challenge (columns mr, ref); each row is a privacy unit. Every number is in e2e_quality.json
beside this file. All methods are tuned alike: the learning rate is doubled and halved until the best has a worse one on either
side, by one run each, with a seed of its own, on every fourth row of the test split. The other rows then give the losses that
count, one run for each seed at the best rate. Runs that --output has already, made with the same flags, are not made again, and
each says at which commit it was made. A row that lacks a run is left out of the table.
"""

import argparse
import concurrent.futures
import copy
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_RATES = 8  # of a method at one budget
OF_ALL_METHODS = ("vocabulary", "data", "model", "run", "tuning_seed")


def flags(values: dict) -> list[str]:
    words = []
    for name, value in values.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def rows_apart(path: Path, every: int, folder: Path) -> dict[str, Path]:
    """Every so-manieth row in a file for tuning, the others in one for the losses that count."""
    with path.open(newline="") as file:
        head, *rows = csv.reader(file)
    parts = {"tune": rows[::every], "test": [row for i, row in enumerate(rows) if i % every]}
    for name, part in parts.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([head, *part])
    return {name: folder / f"{name}.csv" for name in parts}


def prepare(config: dict, train: Path, test: Path, folder: Path, declared: str = "private") -> None:
    """declared: of the texts to train on."""

    def data(*words) -> None:
        subprocess.run([sys.executable, "-m", "ghostshard.texts", *map(str, words)], check=True, stdout=sys.stderr)

    vocabulary = config["vocabulary"]
    data("tokenizer", "--format", vocabulary["format"], "--input", vocabulary["input"], "--vocab-size",
         vocabulary["size"], "--output", folder / "tokenizer")  # fmt: skip
    parts = {"train": train, **rows_apart(test, config["data"]["tuning_rows_of_test"], folder)}
    for name, path in parts.items():
        data("prepare", "--format", "e2e", "--input", path, "--tokenizer", folder / "tokenizer", "--max-length",
             config["data"]["max_length"], "--declare", declared if name == "train" else "public",
             "--output", folder / f"{name}.safetensors")  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config["model"]))


def cells_of(config: dict) -> list[dict]:
    """A cell is a method at one budget: {"method", "epsilon" (None: none), "flags", "first_rate"}. The first budget of every method
    comes before the second of any, so a run that is stopped leaves methods that can be compared."""
    cells = []
    for method in config["methods"]:
        for place, epsilon in enumerate(method.get("budgets", [None])):
            target = {} if epsilon is None else {"target-epsilon": epsilon}
            cells.append((place, {"method": method["name"], "epsilon": epsilon, "first_rate": method["first_rate"],
                                  "flags": {**method.get("flags", {}), **target}}))  # fmt: skip
    return [cell for _, cell in sorted(cells, key=lambda placed: placed[0])]


def still_valid(known: dict, config: dict) -> list[dict]:
    """Of the runs in a file those that this configuration would make in the same way, each with the commit it was made at."""
    if not known or any(known["config"].get(part) != config.get(part) for part in OF_ALL_METHODS):
        return []
    before, now = ({method["name"]: method.get("flags", {}) for method in each["methods"]} for each in (known["config"], config))
    return [{"commit": known["commit"], **run} for run in known["runs"]
            if run["method"] in now and now[run["method"]] == before[run["method"]]]  # fmt: skip


class RunIsMissing(Exception):
    pass


class Runs:
    """Makes runs, and keeps all in a file: a run is its cell, rate, seed, and the part it was evaluated on. makes: of which methods;
    None: of all. again: methods whose runs in the file are not taken."""

    def __init__(self, config: dict, binary: Path, folder: Path, output: Path,
                 makes: Sequence[str] | None = None, again: Sequence[str] = ()):  # fmt: skip
        self.config, self.binary, self.folder, self.output, self.makes = config, binary, folder, output, makes
        known = json.loads(output.read_text()) if output.exists() else {}
        self.done = [run for run in still_valid(known, config) if run["method"] not in again]
        self.begun = time.time()
        self.writing = threading.Lock()

    def loss(self, cell: dict, rate: float, seed: int, part: str) -> float:
        """RunIsMissing for one of a method that it does not make."""
        key = {"method": cell["method"], "epsilon": cell["epsilon"], "rate": rate, "seed": seed, "part": part}
        for run in self.done:
            if {name: run[name] for name in key} == key:
                return run["after"]
        if self.makes is not None and cell["method"] not in self.makes:
            raise RunIsMissing(key)
        found = self._train(cell, rate, seed, part, Path(tempfile.mkdtemp(dir=self.folder)) / "run")
        with self.writing:
            self.done.append({**key, "commit": commit(), **found})
            self.write()
        print(f"{time.time() - self.begun:6.0f} s  {cell['method']}, epsilon {cell['epsilon']}, rate {rate:g}, seed {seed}, "
              f"{part}: {found['after']:.4f}", file=sys.stderr, flush=True)  # fmt: skip
        return found["after"]

    def _train(self, cell: dict, rate: float, seed: int, part: str, output: Path) -> dict:
        words = {**self.config["run"], **cell["flags"], "learning-rate": rate, "seed": seed,
                 "model-config": self.folder / "config.json", "data": self.folder / "train.safetensors",
                 "eval-data": self.folder / f"{part}.safetensors", "eval-every": self.config["run"]["steps"],
                 "output": output}  # fmt: skip
        if "non-private" in cell["flags"]:
            for word in ("delta", "clip-norm"):
                words.pop(word)
        done = subprocess.run([self.binary, *flags(words)], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{cell['method']} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        evaluated = [line["eval_loss"] for line in lines if "eval_loss" in line]
        found = {"before": evaluated[0], "after": evaluated[-1]}
        report = output / "privacy_report.json"
        if report.exists():
            header = json.loads((output / "ledger.jsonl").read_text().splitlines()[0])
            found |= {"stated_epsilon": json.loads(report.read_text())["guarantee"]["epsilon"]["upper"],
                      "noise_multiplier": header["noise_multiplier"]}  # fmt: skip
        return found

    def write(self) -> None:
        """With the results of all cells that lack no run."""
        results = [result for cell in cells_of(self.config) if (result := measured(self, cell)) is not None]
        whole = {"commit": commit(), "config": self.config, "runs": self.done, "results": results}
        self.output.write_text(json.dumps(whole, indent=1) + "\n")


def commit() -> str:
    return subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def tuned_rate(loss_at, first: float) -> float:
    """The best of the rates first·2^k, with a worse one on either side. loss_at(rate): the loss to make small."""
    losses: dict[float, float] = {}

    def at(power: int) -> float:
        rate = first * 2.0**power
        if rate not in losses and len(losses) < MOST_RATES:
            losses[rate] = loss_at(rate)
        return losses.get(rate, float("inf"))

    best = 0
    while True:
        better = min((best, best + 1, best - 1), key=at)
        if better == best:
            return first * 2.0**best
        best = better


def measure(runs: Runs, cell: dict) -> dict:
    config = runs.config
    rate = tuned_rate(lambda rate: runs.loss(cell, rate, config["tuning_seed"], "tune"), cell["first_rate"])
    losses = [runs.loss(cell, rate, seed, "test") for seed in config["seeds"]]
    stated = next((run for run in runs.done if (run["method"], run["epsilon"]) == (cell["method"], cell["epsilon"])), {})
    return {"method": cell["method"], "epsilon": cell["epsilon"], "rate": rate, "losses": losses,
            "mean": statistics.mean(losses), "standard_error": standard_error(losses),
            "noise_multiplier": stated.get("noise_multiplier")}  # fmt: skip


def measured(runs: Runs, cell: dict) -> dict | None:
    """From what is there. None if a run is missing."""
    known = copy.copy(runs)
    known.makes = ()
    try:
        return measure(known, cell)
    except RunIsMissing:
        return None


def standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def label(method: dict) -> str:
    """In the table: its flags, unless it has a label."""
    return method.get("label") or "`" + " ".join(flags(method["flags"])) + "`"


def table(results: list[dict], methods: list[dict]) -> str:
    """By method, in the order of the configuration."""
    labels = {method["name"]: label(method) for method in methods}
    results = sorted(results, key=lambda result: list(labels).index(result["method"]))
    lines = ["| method | ε | noise multiplier | learning rate | loss | standard error |", "|---|---|---|---|---|---|"]
    for r in results:
        sigma = f"{r['noise_multiplier']:.3f}" if r["noise_multiplier"] else "–"
        epsilon = f"{r['epsilon']:g}" if r["epsilon"] else "–"
        lines.append(f"| {labels[r['method']]} | {epsilon} | {sigma} | {r['rate']:g} | {r['mean']:.3f} | {r['standard_error']:.3f} |")
    return "\n".join(lines) + "\n"


def put_table(made: str, path: Path) -> None:
    """In the place of the file's table with the same first line."""
    lines = path.read_text().splitlines(keepends=True)
    first = lines.index(made.splitlines(keepends=True)[0])
    end = next((i for i in range(first, len(lines)) if not lines[i].startswith("|")), len(lines))
    path.write_text("".join([*lines[:first], made, *lines[end:]]))


def plot(results: list[dict], path: Path) -> None:
    """Loss over ε for each method that has several budgets, with standard errors, and the line without privacy."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "ghostshard"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6))
    by_method: dict[str, list[dict]] = {}
    for result in results:
        by_method.setdefault(result["method"], []).append(result)
    for method, points in by_method.items():
        if points[0]["epsilon"] and len(points) > 1:
            points = sorted(points, key=lambda point: point["epsilon"])
            axes.errorbar([p["epsilon"] for p in points], [p["mean"] for p in points],
                          [p["standard_error"] for p in points], marker="o", capsize=3, label=method)  # fmt: skip
        elif method == "without privacy":
            axes.axhline(points[0]["mean"], color="#666666", linestyle="--", label=method)
    axes.set(xscale="log", xlabel="ε (δ = 1e-5)", ylabel="loss per token, test split")
    axes.set_xticks([1, 3, 8], ["1", "3", "8"])
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--train", type=Path, required=True)
    command.add_argument("--test", type=Path, required=True)
    command.add_argument("--config", type=Path, default=Path(__file__).with_suffix(".json"))
    command.add_argument("--binary", type=Path, default=ROOT / "build" / "release" / "bin" / "ghostshard-finetune-gpt2")
    command.add_argument("--output", type=Path, required=True)
    command.add_argument("--plot", type=Path, help="an SVG")
    command.add_argument("--table", type=Path, help="a Markdown file; the table replaces the one that begins with the same head")
    command.add_argument("--methods", nargs="*", help="to make runs of; default: all")
    command.add_argument("--again", nargs="+", default=[], help="methods whose runs in --output are made anew")
    command.add_argument("--jobs", type=int, default=1, help="methods at a time, one core each")
    options = command.parse_args()

    config = json.loads(options.config.read_text())
    unknown = {*(options.methods or []), *options.again} - {method["name"] for method in config["methods"]}
    if unknown:
        command.error(f"{options.config} has no method {sorted(unknown)}")
    with tempfile.TemporaryDirectory() as temporary, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = Runs(config, options.binary, Path(temporary), options.output, options.methods, options.again)
        wanted = [cell for cell in cells_of(config) if options.methods is None or cell["method"] in options.methods]
        if wanted:
            prepare(config, options.train, options.test, Path(temporary))
        list(pool.map(lambda cell: measure(runs, cell), wanted))
    runs.write()
    results = json.loads(options.output.read_text())["results"]
    print(table(results, config["methods"]), end="")
    if options.table:
        put_table(table(results, config["methods"]), options.table)
    if options.plot:
        plot(results, options.plot)


if __name__ == "__main__":
    main()
