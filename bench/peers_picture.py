"""Draws a run of bench/results/peers.json: throughput and peak memory of four engines, as SVG for light and for dark pages.

    .venv/bin/python bench/peers_picture.py --shape 21M_T512 --microbatches 4 --output docs/peers
"""

import argparse
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENGINES = {"ghostshard": "GhostShard", "fsdp2": "FSDP2, no privacy", "opacus_fsdp": "Opacus ghost_fsdp",
           "opacus_dpddp": "Opacus ghost"}
COLOURS = {  # background is the page's own
    "light": {"text": "#1f2328", "faint": "#656d76", "ours": "#0969da", "other": "#afb8c1"},
    "dark": {"text": "#e6edf3", "faint": "#8d96a0", "ours": "#4493f8", "other": "#484f58"},
}
LEFT, WIDTH, ROW, TOP = 150, 200, 30, 34
GAP = 90  # for a panel's figures, which stand right of its bars


def panel(x, title, values, texts, colours):
    """Bars of one figure, the longest WIDTH wide."""
    scale = WIDTH / max(values)
    yield f'<text x="{x}" y="20" fill="{colours["faint"]}">{title}</text>'
    for row, (value, text) in enumerate(zip(values, texts)):
        y, colour = TOP + row * ROW, colours["ours" if row == 0 else "other"]
        yield f'<rect x="{x}" y="{y}" width="{value * scale:.1f}" height="18" rx="2" fill="{colour}"/>'
        yield f'<text x="{x + value * scale + 6:.1f}" y="{y + 14}" fill="{colours["text"]}">{text}</text>'


def picture(engines, colours):
    rows = [engines[name] for name in ENGINES]
    speed = [row["throughput_over_fsdp2"] for row in rows]
    memory = [row["peak_memory_mib"] for row in rows]
    width, height = LEFT + 2 * (WIDTH + GAP), TOP + len(rows) * ROW
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="system-ui, sans-serif" font-size="13" role="img">')
    yield "<title>Throughput and peak memory of GhostShard, FSDP2 without privacy and Opacus</title>"
    for row, label in enumerate(ENGINES.values()):
        yield f'<text x="{LEFT - 10}" y="{TOP + row * ROW + 14}" text-anchor="end" fill="{colours["text"]}">{label}</text>'
    yield from panel(LEFT, "throughput (FSDP2 without privacy = 1)", speed, [f"{value:.2f}" for value in speed], colours)
    yield from panel(LEFT + WIDTH + GAP, "peak memory of a rank, MiB", memory, [f"{value:.0f}" for value in memory], colours)
    yield "</svg>"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench/results/peers.json")
    parser.add_argument("--shape", default="21M_T512")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--output", default="docs/peers", help="-light.svg and -dark.svg are added")
    args = parser.parse_args()
    runs = json.loads(args.results.read_text())["runs"]
    found = [run for run in runs if (run["shape"], run["microbatches"]) == (args.shape, args.microbatches)
             and set(ENGINES) <= set(run["engines"])]
    if not found:
        parser.error(f"no run of {args.shape} with {args.microbatches} microbatches has all of {', '.join(ENGINES)}")
    for name, colours in COLOURS.items():
        pathlib.Path(f"{args.output}-{name}.svg").write_text("\n".join(picture(found[-1]["engines"], colours)) + "\n")


if __name__ == "__main__":
    main()
