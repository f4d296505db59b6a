"""Optimizers beside each other on the same weights, batches and noise: for each seed the difference of two runs that differ in the
optimizer alone, and its mean and standard error. (bench/e2e_quality.py gives each run noise of its own, whose spread hides differences
below a few hundredths.) The set-up is that of e2e_quality.json; both parts of the texts are public, so no privacy is at stake.

    .venv/bin/python bench/paired_optimizers.py --train devset.csv --test testset_w_refs.csv --output pairs.json
"""

import argparse
import concurrent.futures
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from e2e_quality import ROOT, flags, prepare, standard_error

OPTIMIZERS = ("adamw", "adamw8bit", "adamw16bit")


def loss(config: dict, binary: Path, folder: Path, part: str, optimizer: str, rate: float, seed: int) -> dict[str, float]:
    words = {**config["run"], "target-epsilon": 8, "optimizer": optimizer, "learning-rate": rate, "seed": seed,
             "model-config": folder / "config.json", "data": folder / "train.safetensors",
             "eval-data": folder / f"{part}.safetensors", "output": folder / "never-written"}  # fmt: skip
    done = subprocess.run([binary, *flags(words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{optimizer} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def differences(losses: dict[str, list[float]]) -> dict[str, dict]:
    """Of each optimizer's loss from the first one's, seed by seed."""
    first, *others = losses
    apart = {name: [other - one for one, other in zip(losses[first], losses[name], strict=True)] for name in others}
    return {name: {"of_pairs": values, "mean": statistics.mean(values), "standard_error": standard_error(values)}
            for name, values in apart.items()}  # fmt: skip


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--train", type=Path, required=True)
    command.add_argument("--test", type=Path, required=True)
    command.add_argument("--config", type=Path, default=ROOT / "bench" / "e2e_quality.json")
    command.add_argument("--binary", type=Path, default=ROOT / "build" / "release" / "bin" / "paired_run")
    command.add_argument("--optimizers", nargs="+", default=OPTIMIZERS, help="the others are compared with the first")
    command.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    command.add_argument("--part", choices=["test", "tune"], default="test", help="of the test split, to evaluate on")
    command.add_argument("--steps", type=int, help="instead of the configuration's")
    command.add_argument("--learning-rate", type=float, default=0.01)
    command.add_argument("--output", type=Path)
    command.add_argument("--jobs", type=int, default=1, help="runs at a time, one core each")
    options = command.parse_args()
    config = json.loads(options.config.read_text())
    config["run"]["steps"] = options.steps or config["run"]["steps"]
    with tempfile.TemporaryDirectory() as temporary, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        folder = Path(temporary)
        prepare(config, options.train, options.test, folder, declared="public")
        started = {name: [pool.submit(loss, config, options.binary, folder, options.part, name, options.learning_rate, seed)
                          for seed in options.seeds] for name in options.optimizers}  # fmt: skip
        losses = {}
        for name, runs in started.items():
            losses[name] = [run.result()["after"] for run in runs]
            print(f"{name:12} " + " ".join(f"{value:.4f}" for value in losses[name]), file=sys.stderr, flush=True)
    apart = differences(losses)
    for name, row in apart.items():
        print(f"{name} from {options.optimizers[0]}: {row['mean']:+.4f}, standard error {row['standard_error']:.4f}")
    if options.output:
        whole = {"config": config, "learning_rate": options.learning_rate, "seeds": options.seeds, "part": options.part, "losses": losses, "differences": apart}
        options.output.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
