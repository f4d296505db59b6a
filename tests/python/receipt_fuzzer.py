"""A fuzzer of the receipts' reader, as libFuzzer is of C++: inputs that take a new way through it are kept and changed further.

What is not refused with a sentence must be true. Seeds: a ledger of ten Gaussians of sigma 5 and its receipt, and what earlier
calls kept in --corpus. The last line is `N runs, corpus of N`; an input that was wrong lies in --crashes.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "bindings/python")]

from test_receipt_fuzz import changed, changed_text, true_delta

from ghostshard import check_receipt
from ghostshard.check_receipt import Refused

SEEDS = Path(__file__).parents[1] / "accountant/fuzz/seeds/receipt"
SLICE = 50  # runs of one corpus entry before another is drawn


class Ways:
    """The steps from line to line of the reader that some run has taken."""

    def __init__(self) -> None:
        self.known: set[tuple[int, int]] = set()
        self.new = False
        self.before = 0

    def __call__(self, frame, event, _):
        if frame.f_code.co_filename != check_receipt.__file__:
            return None
        step = (self.before, frame.f_lineno)
        self.before = frame.f_lineno
        if step not in self.known:
            self.known.add(step)
            self.new = True
        return self


def proven_or_refused(text: str, ledger: tuple) -> None:
    """Raises AssertionError if the receipt is taken for a proof of what is not true."""
    try:
        proven = check_receipt.check(check_receipt.parse(text, "the receipt"), *ledger)
    except Refused as refused:
        str(refused).encode()
        return
    assert true_delta(proven["epsilon"]) <= proven["delta"] * (1 + 1e-9), proven


def another(text: str, draw: random.Random) -> str:
    if draw.random() < 0.25:
        return changed_text(text, draw)
    try:
        return json.dumps(changed(json.loads(text), draw))
    except (ArithmeticError, ValueError, TypeError, IndexError, RecursionError):  # no JSON any more, or nothing in it
        return changed_text(text, draw)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--runs", type=int, default=-1, help="stop after so many; below 0, after the seconds")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--crashes", type=Path, required=True)
    options = parser.parse_args()
    ledger = check_receipt.read_ledger(str(SEEDS / "ledger.jsonl"))
    corpus = [path.read_text() for path in [SEEDS / "receipt.json", *sorted(options.corpus.iterdir())]]
    draw = random.Random(len(corpus))
    ways, runs, until = Ways(), 0, time.monotonic() + options.seconds
    parent = corpus[0]
    while runs < options.runs if options.runs >= 0 else time.monotonic() < until:
        if runs % SLICE == 0:
            parent = draw.choice(corpus)
        text = corpus[runs] if runs < len(corpus) else another(parent, draw)
        ways.new, ways.before = False, 0
        sys.settrace(ways)
        try:
            proven_or_refused(text, ledger)
        except Exception as error:
            sys.settrace(None)
            (options.crashes / f"receipt-{runs}").write_text(text, errors="backslashreplace")
            print(f"run {runs}: {type(error).__name__}: {error}")
            return 1
        sys.settrace(None)
        runs += 1
        if ways.new and text not in corpus:
            corpus.append(text)
            (options.corpus / f"{len(corpus):05}").write_text(text, errors="backslashreplace")
    print(f"{runs} runs, corpus of {len(corpus)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
