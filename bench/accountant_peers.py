"""A table of our accountants beside Opacus, Google's dp_accounting and Microsoft's prv_accountant: error against the true
epsilon, and time. One run:

    python bench/accountant_peers.py --ours build/release/bin/accountant_bench --output bench/results/accountant.json \
        [--python dp_accounting=ENVIRONMENT/bin/python --python prv_accountant=… --python opacus=…]

Each peer runs in an interpreter of its own (default: this one), one process for all rows, each row within a time limit;
see requirements-peers.txt. Errors are upper value minus truth, because users report the upper value. A negative error is an
epsilon that is too small.
"""

import argparse
import json
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEERS = {"opacus_rdp": "opacus", "opacus_prv": "opacus", "google_rdp": "dp_accounting", "google_pld": "dp_accounting", "ms_prv": "prv_accountant"}
LIMIT_SECONDS = 20


def opacus(kind, phases, delta):
    from opacus.accountants import PRVAccountant, RDPAccountant

    accountant = {"rdp": RDPAccountant, "prv": PRVAccountant}[kind]()
    accountant.history = [(sigma, q, steps) for q, sigma, steps in phases]
    return accountant.get_epsilon(delta=delta)


def google(kind, phases, delta):
    import dp_accounting
    from dp_accounting import pld, rdp

    accountant = {"rdp": rdp.RdpAccountant, "pld": pld.PLDAccountant}[kind]()
    for q, sigma, steps in phases:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)), steps)
    return accountant.get_epsilon(delta)


def microsoft(phases, delta):
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

    releases = [PoissonSubsampledGaussianMechanism(sampling_probability=q, noise_multiplier=sigma) for q, sigma, _ in phases]
    counts = [steps for _, _, steps in phases]
    accountant = PRVAccountant(prvs=releases, max_self_compositions=counts, eps_error=0.01, delta_error=delta / 1000)
    return accountant.compute_epsilon(delta=delta, num_self_compositions=counts)[2]


def call(peer, phases, delta):
    if peer.startswith("opacus"):
        return opacus(peer.removeprefix("opacus_"), phases, delta)
    if peer.startswith("google"):
        return google(peer.removeprefix("google_"), phases, delta)
    return microsoft(phases, delta)


def peer_main(peer):
    """Rows as JSON on stdin, one result a line on stdout."""
    import resource
    import warnings

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))

    def too_long(*_):
        raise TimeoutError(f"more than {LIMIT_SECONDS} s")

    signal.signal(signal.SIGALRM, too_long)
    try:
        call(peer, [(0.01, 2.0, 10)], 1e-5)  # imports and caches
    except Exception:
        pass
    for row in json.load(sys.stdin):
        result = {"name": row["name"]}
        signal.alarm(LIMIT_SECONDS)
        start = time.perf_counter()
        try:
            result["epsilon"] = float(call(peer, row["phases"], row["delta"]))
        except BaseException as error:
            result["error"] = f"{type(error).__name__}: {error}"[:80]
        signal.alarm(0)
        result["milliseconds"] = (time.perf_counter() - start) * 1e3
        print(json.dumps(result), flush=True)


def run_ours(program):
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "ours.json"
        subprocess.run([program, "--benchmark_min_time=0.05", f"--benchmark_out={output}", "--benchmark_out_format=json"], check=True, stdout=subprocess.DEVNULL)
        return json.loads(output.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True, help="the program accountant_bench")
    parser.add_argument("--output", help="JSON file to write")
    parser.add_argument("--python", action="append", default=[], metavar="PACKAGE=INTERPRETER")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    interpreters = dict(entry.split("=", 1) for entry in arguments.python)

    ours = run_ours(arguments.ours)
    rows = {}
    for entry in ours["benchmarks"]:
        if "/" not in entry["name"]:
            continue
        engine, name = entry["name"].split("/", 1)
        phases = [[float(q), float(s), int(t)] for q, s, t in (p.split(":") for p in entry["label"].split(","))]
        row = rows.setdefault(name, {"name": name, "phases": phases, "delta": entry["delta"], "truth": entry["truth"], "results": {}})
        row["results"][engine] = {"epsilon": entry["upper"], "lower": entry["lower"], "milliseconds": entry["real_time"]}
    table = [{key: row[key] for key in ("name", "phases", "delta")} for row in rows.values()]
    for peer, package in PEERS.items():
        command = [interpreters.get(package, sys.executable), __file__, "--ours", "-", "--peer", peer]
        done = subprocess.run(command, input=json.dumps(table), capture_output=True, text=True)
        for line in done.stdout.splitlines():
            result = json.loads(line)
            rows[result.pop("name")]["results"][peer] = result

    columns = ["contour_quick", "contour", "prv", "rdp", *PEERS]
    print("upper epsilon minus truth | milliseconds")
    print("".join(f"{title:>20}" for title in ["row", *columns]))
    for row in rows.values():
        cells = []
        for column in columns:
            result = row["results"].get(column, {})
            if "epsilon" in result:
                cells.append(f"{result['epsilon'] - row['truth']:+.1e} {result['milliseconds']:.1f}")
            else:
                cells.append(result.get("error", "not run").split(":")[0])
        print("".join(f"{cell:>20}" for cell in [row["name"][:20], *cells]))
    if arguments.output:
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
        record = {"commit": commit, "machine": platform.processor() or platform.machine(), "context": {k: ours["context"][k] for k in ("num_cpus", "mhz_per_cpu", "load_avg")}, "rows": list(rows.values())}
        Path(arguments.output).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    if "--peer" in sys.argv:
        peer_main(sys.argv[sys.argv.index("--peer") + 1])
    else:
        main()
