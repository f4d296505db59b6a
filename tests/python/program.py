"""The C++ program as a user starts it, on one rank or several, and small inputs for it."""

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from safetensors.numpy import load_file, save_file

# All time-outs are this much longer than a quiet machine needs: tests run beside each other, each with ranks of its own.
PATIENCE = 3

VOCABULARY = 32
POSITIONS = 12
UNITS = 24
# Of the texts in data.safetensors: one of one token, one as long as the model takes.
LENGTHS = [1, POSITIONS + 1, *(2 + number % 7 for number in range(UNITS - 2))]

CONFIG = {
    "model_type": "gpt2", "vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": 16, "n_layer": 2, "n_head": 2,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip

# Flags of a short private run; see arguments().
PRIVATE = {
    "--model": "model", "--data": "data.safetensors", "--output": "run",
    "--noise-multiplier": "1", "--expected-batch": "4", "--steps": "3",
}  # fmt: skip
PLAIN = {**PRIVATE, "--noise-multiplier": None, "--non-private": ""}


def arguments(flags: dict[str, str | None], **changes: str | None) -> list[str]:
    """A command line: flags with changes (`learning_rate="1"` for --learning-rate); "" is a switch, None takes away."""
    merged = {**flags, **{"--" + name.replace("_", "-"): value for name, value in changes.items()}}
    words = []
    for flag, value in merged.items():
        if value is not None:
            words += [flag, value] if value else [flag]
    return words


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


@dataclass
class Rank:
    """A started process; its outputs go to files, so that no full pipe can stop it."""

    process: subprocess.Popen
    out: Path
    err: Path

    def wait(self, seconds: float) -> Finished:
        code = self.process.wait(max(PATIENCE * seconds, 0.01))
        return Finished(code, self.out.read_text(), self.err.read_text())


def free_port() -> int:
    """A port that nobody listens on, of a range that this worker of pytest alone takes from. The ports that the
    operating system gives out begin above all ranges, so no other program is given it before the ranks listen there."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 12000 + 400 * (worker % 50)
    for port in random.sample(range(first, first + 400), 400):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {first} to {first + 399}")


class Program:
    """Runs the program in a folder."""

    def __init__(self, binary: Path, folder: Path):
        self.binary = binary
        self.folder = folder
        self._started: list[Rank] = []

    def run(self, words: Sequence[str], seconds: float = 60) -> Finished:
        return self.start(words).wait(seconds)

    def start(self, words: Sequence[str], environment: dict[str, str] | None = None,
              before_exec: Callable[[], None] | None = None) -> Rank:  # fmt: skip
        number = len(self._started)
        logs = self.folder.parent / f"{self.folder.name}-logs"
        logs.mkdir(exist_ok=True)
        out, err = logs / f"{number}.out", logs / f"{number}.err"
        inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        with out.open("wb") as out_stream, err.open("wb") as err_stream:
            process = subprocess.Popen(
                [str(self.binary), *words], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out_stream,
                stderr=err_stream, env={**inherited, "OMP_NUM_THREADS": "1", **(environment or {})},
                preexec_fn=before_exec,
            )  # fmt: skip
        self._started.append(Rank(process, out, err))
        return self._started[-1]

    def start_ranks(self, *words_of_ranks: Sequence[str], before_exec: Callable[[], None] | None = None) -> list[Rank]:
        """One rank for each command line, as a launcher without an agent would start them."""
        size = str(len(words_of_ranks))
        place = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        return [
            self.start(words, {**place, "RANK": str(rank), "LOCAL_RANK": str(rank)}, before_exec)
            for rank, words in enumerate(words_of_ranks)
        ]

    def run_ranks(self, *words_of_ranks: Sequence[str], seconds: float = 60,
                  before_exec: Callable[[], None] | None = None) -> list[Finished]:  # fmt: skip
        started = self.start_ranks(*words_of_ranks, before_exec=before_exec)
        end = time.monotonic() + PATIENCE * seconds
        return [rank.wait((end - time.monotonic()) / PATIENCE) for rank in started]

    def kill_all(self) -> None:
        for rank in self._started:
            if rank.process.poll() is None:
                rank.process.send_signal(signal.SIGKILL)
                rank.process.wait()


def write_model(folder: Path, config: dict | None = None, change: Callable[[dict], object] | None = None) -> Path:
    """A Hugging Face folder with random weights; change(tensors) may spoil them."""
    config = {**CONFIG, **(config or {})}
    d, inner = config["n_embd"], config.get("n_inner") or 4 * config["n_embd"]
    shapes = {"wte.weight": (config["vocab_size"], d), "wpe.weight": (config["n_positions"], d)}
    for layer in range(config["n_layer"]):
        for name, inputs, outputs in (("attn.c_attn", d, 3 * d), ("attn.c_proj", d, d), ("mlp.c_fc", d, inner),
                                      ("mlp.c_proj", inner, d)):  # fmt: skip
            shapes |= {f"h.{layer}.{name}.weight": (inputs, outputs), f"h.{layer}.{name}.bias": (outputs,)}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{layer}.{name}.weight": (d,), f"h.{layer}.{name}.bias": (d,)}
    shapes |= {"ln_f.weight": (d,), "ln_f.bias": (d,)}
    random = numpy.random.default_rng(5)
    tensors = {}
    for name, shape in shapes.items():
        middle = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
        tensors[f"transformer.{name}"] = (middle + 0.1 * random.standard_normal(shape)).astype(numpy.float32)
    if change:
        change(tensors)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def texts(lengths: Sequence[int], vocabulary: int = VOCABULARY, seed: int = 0) -> list[list[int]]:
    random = numpy.random.default_rng(seed)
    return [random.integers(0, vocabulary, length).tolist() for length in lengths]


def write_data(path: Path, units: Sequence[Sequence[int]], declared: str | None = None, **changes: numpy.ndarray | None) -> Path:
    """The packed file of these texts, loss everywhere; changes replace columns, None takes one away."""
    columns = {
        "tokens": numpy.array([token for unit in units for token in unit], numpy.int32),
        "offsets": numpy.cumsum([0, *map(len, units)]).astype(numpy.int64),
        "loss_mask": numpy.ones(sum(map(len, units)), numpy.uint8),
        **changes,
    }
    save_file({name: values for name, values in columns.items() if values is not None}, path,
              metadata={"declared": declared} if declared else None)  # fmt: skip
    return path


def write_key(folder: Path, name: str = "key", content: bytes = bytes(range(50, 82))) -> None:
    (folder / name).write_bytes(content)
    (folder / name).chmod(0o600)


def write_inputs(folder: Path) -> None:
    """model/, data.safetensors (ragged lengths, a text of one token, one as long as the model takes) and public.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / "model")
    write_data(folder / "data.safetensors", texts(LENGTHS))
    write_data(folder / "public.safetensors", texts([5, 9, 2, 7], seed=1), declared="public")


def everything_in(folder: Path) -> dict[str, bytes | int | None]:
    """Every path below a folder with its content, or its size if memory would not hold it; None for a folder."""
    return {str(path.relative_to(folder)): _content(path) for path in folder.rglob("*")}


def _content(path: Path) -> bytes | int | None:
    if not path.is_file():
        return None
    size = path.stat().st_size
    return path.read_bytes() if size < 1 << 32 else size


def weights(run: Path) -> dict[str, numpy.ndarray]:
    return load_file(run / "model" / "model.safetensors")


def json_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(run: Path) -> list[dict]:
    return json_lines(run / "metrics.jsonl")


def wait_until(holds: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + PATIENCE * seconds
    while not holds():
        assert time.monotonic() < end, f"still not so after {seconds} s"
        time.sleep(0.02)


def report(run: Path) -> dict:
    return json.loads((run / "privacy_report.json").read_text())


def same_weights(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    return all(numpy.array_equal(a[name], b[name]) for name in a)
