"""Predicted against measured: time and memory of the plans of a front (dp/planning/step_plan.h), from the fastest to the
smallest. Each plan takes turns with the fastest one, in an order that changes, and counts by its ratio to it, so that other
load on the machine hits both alike. Prints a table, writes JSON, and draws three of the shapes as SVG.

    .venv/bin/python bench/plan_front.py --output bench/results/plan_front.json --plot docs/plan_front.svg

Time: the planner counts matrix products, norms, records and traffic. What it leaves out (attention, softmax, noise, optimizer) is the
same for all plans, so a plan's predicted time is that of the fastest as measured, and the planner's difference on top.
Memory: the planner's count on top of what a process takes beside it, which a model of no size shows.
"""

import argparse
import json
import pathlib
import statistics
import sys

from step_peers import ROOT, SHAPES, SMALL, Engine, flags, new_report

MIB = 1 << 20
PAGE = 4096  # a budget is given in decimals of a MiB: a page more, so that rounding does not forbid its own plan
TIME_OFF, MEMORY_OFF = 0.10, 0.05  # what a prediction may be off by
NO_SIZE = dict(layers=1, width=8, heads=1, vocab=16, length=8, texts=1, untied=True)


def front_of(step, ranks):
    """The planner's front: [{"peak_bytes", "seconds", "change"}, ...]."""
    engine = Engine([*step, "--front"], ranks)
    text = engine.ranks[0].stdout.read()
    codes = [process.wait(timeout=120) for process in engine.ranks]
    if any(codes):
        raise SystemExit(f"step_compare --front ended with {codes}:\n{engine.said()[-2000:]}")
    return json.loads(text)


def thinned(front, count):
    """The ends of the front and plans in between, evenly."""
    if len(front) <= count:
        return front
    last = len(front) - 1
    return [front[round(i * last / (count - 1))] for i in range(count)]


def measure(step, budgets, ranks, rounds):
    """Budgets in bytes, each a process of its own, taking turns: by budget, [seconds, processor seconds, peak MiB] a round."""
    engines = [Engine([*step, "--serve", "--only=private", f"--memory-budget={(budget + PAGE) / MIB:.6f}"], ranks)
               for budget in budgets]  # fmt: skip
    answers = [[] for _ in engines]
    for i in range(rounds + 1):  # the first round warms up
        order = range(len(engines)) if i % 2 == 0 else reversed(range(len(engines)))
        for e in order:
            answer = engines[e].step("private")
            if i > 0:
                answers[e].append(answer)
    for engine in engines:
        engine.quit()
    return answers


def peak_of(answers):
    return max(answer[2] for answer in answers)


def point_of(plan, fastest, answers, beside_mib):
    """A plan as predicted and as measured. answers: of the fastest plan and of this one, round by round."""
    theirs, ours = answers
    base = statistics.median(answer[0] for answer in theirs)
    ratios = [mine[0] / other[0] for mine, other in zip(ours, theirs)]
    predicted = 1 + (plan["seconds"] - fastest["seconds"]) / base
    memory = plan["peak_bytes"] / MIB + beside_mib
    return {
        **plan, "predicted_time": predicted, "measured_time": statistics.median(ratios),
        "noise": max(ratios) - min(ratios), "seconds_of_fastest": base,
        "predicted_mib": memory, "measured_mib": peak_of(ours),
        "time_off": predicted / statistics.median(ratios) - 1, "memory_off": memory / peak_of(ours) - 1,
    }  # fmt: skip


def is_off(point):
    return abs(point["time_off"]) > TIME_OFF or abs(point["memory_off"]) > MEMORY_OFF


def beside(binary, ranks):
    """MiB of a process beside what the planner counts."""
    step = [str(binary), *flags(NO_SIZE, 1)]
    plan = front_of(step, ranks)[0]
    return peak_of(measure(step, [plan["peak_bytes"]], ranks, 1)[0]) - plan["peak_bytes"] / MIB


def run_shape(name, args, beside_mib):
    step = [str(args.binary), *flags(SHAPES[name], args.microbatches)]
    front = thinned(front_of(step, args.ranks), args.plans)
    fastest, points = front[0], []
    for plan in front:
        points.append(point_of(plan, fastest, measure(step, [fastest["peak_bytes"], plan["peak_bytes"]], args.ranks, args.rounds),
                               beside_mib))  # fmt: skip
        print(line_of(name, points[-1]), flush=True)
    return {"shape": name, "microbatches": args.microbatches, "ranks": args.ranks, "rounds": args.rounds,
            "beside_mib": beside_mib, "points": points}  # fmt: skip


HEADING = f"{'shape':12} {'MiB':>7} {'counted':>8} {'off':>7} {'time':>7} {'counted':>8} {'off':>7} {'noise':>6}"


def line_of(name, point):
    return (f"{name:12} {point['measured_mib']:7.0f} {point['predicted_mib']:8.0f} {point['memory_off']:+7.3f} "
            f"{point['measured_time']:7.3f} {point['predicted_time']:8.3f} {point['time_off']:+7.3f} {point['noise']:6.3f}  "
            f"{'OFF ' if is_off(point) else ''}{point['change'] or 'fastest'}")  # fmt: skip


# Plot -----------------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, MARGIN = 320, 240, 46


def plot(runs):
    """An SVG: for each run time over memory, the prediction a line, measurements dots."""
    panels = [panel(run, i * WIDTH) for i, run in enumerate(runs)]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(runs)}" height="{HEIGHT}" font-family="sans-serif" '
            f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(panels) + "\n</svg>\n")  # fmt: skip


def panel(run, left):
    points = run["points"]
    memory = [value for point in points for value in (point["measured_mib"], point["predicted_mib"])]
    time = [value for point in points for value in (point["measured_time"], point["predicted_time"])]
    low, high = min(memory) * 0.97, max(memory) * 1.03
    bottom, top = min(time) * 0.95, max(time) * 1.05

    def place(mib, seconds):
        x = left + MARGIN + (mib - low) / (high - low) * (WIDTH - 1.4 * MARGIN)
        y = HEIGHT - MARGIN - (seconds - bottom) / (top - bottom) * (HEIGHT - 1.8 * MARGIN)
        return f"{x:.1f}", f"{y:.1f}"

    def label(x, y, text, anchor="middle"):
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'

    line = " ".join(",".join(place(point["predicted_mib"], point["predicted_time"])) for point in points)
    dots = [place(point["measured_mib"], point["measured_time"]) for point in points]
    right, floor = left + WIDTH - 0.4 * MARGIN, HEIGHT - MARGIN
    return "\n".join([
        f'<path d="M{left + MARGIN} {0.8 * MARGIN} V{floor} H{right}" fill="none" stroke="#666"/>',
        f'<polyline points="{line}" fill="none" stroke="#1f6f8b" stroke-width="1.5"/>',
        *(f'<circle cx="{x}" cy="{y}" r="3.5" fill="#d1495b"/>' for x, y in dots),
        label(left + WIDTH / 2, 0.5 * MARGIN, f"{run['shape']}, {run['microbatches']} microbatches"),
        label(left + WIDTH / 2, HEIGHT - 0.2 * MARGIN, "peak memory of a rank, MiB"),
        label(left + MARGIN, HEIGHT - 0.6 * MARGIN, f"{low:.0f}"), label(right - 8, HEIGHT - 0.6 * MARGIN, f"{high:.0f}"),
        label(left + MARGIN - 4, floor, f"{bottom:.2f}", "end"), label(left + MARGIN - 4, 0.8 * MARGIN + 8, f"{top:.2f}", "end"),
        label(left + 14, 0.5 * MARGIN, "× fastest", "start"),
    ])  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SMALL)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--plans", type=int, default=6, help="of a front, its ends among them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--plotted", nargs="+", default=["28.9M_T100", "28.9M_T512", "21M_T512"])
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/bin/step_compare")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path)
    args = parser.parse_args()
    report = new_report()
    print(HEADING)
    beside_mib = beside(args.binary, args.ranks)
    for name in args.shapes:
        report["runs"].append(run_shape(name, args, beside_mib))
        if args.output:
            args.output.write_text(json.dumps(report, indent=1) + "\n")
    if args.plot:
        args.plot.write_text(plot([run for run in report["runs"] if run["shape"] in args.plotted] or report["runs"][:3]))
    off = [point for run in report["runs"] for point in run["points"] if is_off(point)]
    print(f"{len(off)} plans off by more than {TIME_OFF:.0%} in time or {MEMORY_OFF:.0%} in memory")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
