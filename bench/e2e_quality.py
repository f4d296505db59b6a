"""The cost of privacy in quality: the same small GPT-2 on E2E from fresh weights, without privacy, with clipping alone, and
under two budgets, after equal steps. Loss per token of the reference texts of the test split, which is not trained on.

    python bench/e2e_quality.py --train devset.csv --test testset_w_refs.csv --output bench/results/e2e_quality.json

The two files are of the E2E NLG challenge (columns mr, ref); each row is a privacy unit. Every number is in
e2e_quality.json beside this file. "Clipping only" runs the private code with a noise multiplier of 0.01, which gives no useful
guarantee: it shows the cost of clipping and of Poisson batches, almost without noise.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def flags(values: dict) -> list[str]:
    words = []
    for name, value in values.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def prepare(config: dict, train: Path, test: Path, folder: Path) -> None:
    def data(*words) -> None:
        subprocess.run([sys.executable, "-m", "ghostshard.texts", *map(str, words)], check=True, stdout=sys.stderr)

    vocabulary = config["vocabulary"]
    data("tokenizer", "--format", vocabulary["format"], "--input", vocabulary["input"], "--vocab-size",
         vocabulary["size"], "--output", folder / "tokenizer")  # fmt: skip
    for name, path in {"train": train, "test": test}.items():
        data("prepare", "--format", "e2e", "--input", path, "--tokenizer", folder / "tokenizer", "--max-length",
             config["data"]["max_length"], "--declare", "public" if name == "test" else "private",
             "--output", folder / f"{name}.safetensors")  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config["model"]))


def run(binary: Path, config: dict, setting: dict, seed: int, folder: Path, output: Path) -> dict:
    words = {**config["run"], **setting, "seed": seed, "model-config": folder / "config.json",
             "data": folder / "train.safetensors", "eval-data": folder / "test.safetensors",
             "eval-every": config["run"]["steps"], "output": output}  # fmt: skip
    if "non-private" in setting:
        for name in ("delta", "clip-norm"):
            words.pop(name)
    subprocess.run([binary, *flags(words)], check=True, stdout=sys.stderr)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line["eval_loss"] for line in lines if "eval_loss" in line]
    found = {"before": evaluated[0], "after": evaluated[-1], "steps": lines[-1]["step"]}
    report = output / "privacy_report.json"
    if report.exists():
        guarantee = json.loads(report.read_text())["guarantee"]
        header = json.loads((output / "ledger.jsonl").read_text().splitlines()[0])
        found |= {"epsilon": guarantee["epsilon"]["upper"], "noise_multiplier": header["noise_multiplier"]}
    return found


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--train", type=Path, required=True)
    command.add_argument("--test", type=Path, required=True)
    command.add_argument("--config", type=Path, default=Path(__file__).with_suffix(".json"))
    command.add_argument("--binary", type=Path, default=ROOT / "build" / "release" / "bin" / "ghostshard-finetune-gpt2")
    command.add_argument("--output", type=Path, required=True)
    options = command.parse_args()

    config = json.loads(options.config.read_text())
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    results: dict[str, list] = {name: [] for name in config["settings"]}
    begun = time.time()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(config, options.train, options.test, folder)
        for seed in config["seeds"]:
            for name, setting in config["settings"].items():
                output = folder / f"{name.replace(' ', '-')}-{seed}"
                found = run(options.binary, config, setting, seed, folder, output)
                results[name].append({"seed": seed, **found})
                whole = {"commit": commit, "config": config, "results": results}
                options.output.write_text(json.dumps(whole, indent=1) + "\n")
                print(f"{time.time() - begun:6.0f} s  seed {seed}  {name:14} loss {found['after']:.4f}", file=sys.stderr)
    print("| | test loss per token | standard deviation over seeds | noise multiplier | epsilon |\n|---|---|---|---|---|")
    for name, runs in results.items():
        losses = [found["after"] for found in runs]
        sigma, epsilon = runs[0].get("noise_multiplier"), runs[0].get("epsilon")
        told = f"{epsilon:.3f}" if isinstance(epsilon, float) and sigma > 0.1 else "none"
        print(f"| {name} | {statistics.mean(losses):.4f} | {statistics.stdev(losses) if len(losses) > 1 else 0:.4f} "
              f"| {sigma if sigma else '–'} | {told} |")  # fmt: skip


if __name__ == "__main__":
    main()
