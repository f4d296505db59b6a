"""A whole private run of the C++ program on small inputs: five steps, a report, and the ledger verified against it."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
from program import arguments, write_inputs

FLAGS = {
    "--model": "model", "--data": "data.safetensors", "--eval-data": "public.safetensors", "--output": "run",
    "--target-epsilon": "8", "--expected-batch": "8", "--steps": "5",
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder))
        verify = ["verify", "--ledger", "run/ledger.jsonl", "--report", "run/privacy_report.json"]
        for command in (["ghostshard-finetune-gpt2", *arguments(FLAGS), "--device", device], ["ghostshard-account", *verify]):
            done = subprocess.run(command, cwd=folder)
            if done.returncode != 0:
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
