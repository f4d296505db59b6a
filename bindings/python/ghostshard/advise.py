"""`ghostshard advise`: how the noise of a run depends on its batch, before anything is trained. No text is read.

What a step adds to the mean gradient is noise of the size clip norm × noise multiplier / batch; noise multiplier / batch is called
the noise-batch ratio (arXiv:2501.18914). While the noise multiplier stands still, twice the batch halves the ratio; once it grows
as fast as the batch, a larger batch buys nothing. The table shows where between the two a plan stands:

  at the same steps   what a larger batch gains if texts may be seen more often (more computing)
  at the same texts   what it gains if batch × steps is kept (the same computing): fewer steps, each with less noise

`pays` is the largest batch at which doubling, at the same steps, still takes away a quarter of the ratio.
"""

from dataclasses import dataclass

from ghostshard.errors import UserError, number, parser, whole_number
from ghostshard.planned_noise import planned_bins_noise, planned_delta, planned_noise

PAYS = 0.75  # of the ratio, after a doubling


@dataclass(frozen=True)
class Row:
    batch: int
    steps: int
    noise_multiplier: float

    @property
    def ratio(self) -> float:
        return self.noise_multiplier / self.batch


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.expected_batch > options.units:
        raise UserError(f"--expected-batch must be at most --units ({options.units}), got {options.expected_batch}")
    if not options.target_epsilon > 0:
        raise UserError(f"--target-epsilon must be > 0, got {options.target_epsilon}")
    delta = planned_delta(options.delta, options.units)

    def row(batch: int, steps: int) -> Row:
        if options.sampling == "balls-in-bins":
            return Row(batch, steps, planned_bins_noise(options.target_epsilon, delta, options.units, batch, steps))
        return Row(batch, steps, planned_noise(options.target_epsilon, delta, f"{batch}/{options.units}", steps))

    batches = batches_around(options.expected_batch, options.units)
    same_steps = [row(batch, options.steps) for batch in batches]
    texts = options.expected_batch * options.steps
    same_texts = [row(batch, -(-texts // batch)) for batch in batches if batch <= texts]
    print(f"{options.units} units, epsilon {options.target_epsilon:g} at delta {delta:.3g}; ratio: noise multiplier / batch")
    print(table(f"At {options.steps} steps", same_steps, options.expected_batch))
    print(table(f"At {texts} texts in all", same_texts, options.expected_batch))
    print(advice(same_steps, options.expected_batch))
    return 0


def _parser():
    command = parser("ghostshard advise", "How much noise a plan's batch and steps mean, and what other batches would. Reads no text.")
    command.add_argument("--units", required=True, type=whole_number(at_least=1), help="the number of private texts (or users)")
    command.add_argument("--target-epsilon", required=True, type=number(at_least=0), help="of the private run")
    command.add_argument("--delta", type=number(at_least=0), help="of the private run (default: min(1e-6, units^-1.1))")
    command.add_argument("--expected-batch", required=True, type=whole_number(at_least=1), help="the plan's")
    command.add_argument("--steps", required=True, type=whole_number(at_least=1), help="the plan's")
    command.add_argument("--sampling", choices=("poisson", "balls-in-bins"), default="poisson", help="the plan's (default: poisson)")
    return command


def batches_around(batch: int, units: int) -> list[int]:
    """The batch, its halves and its doubles: from an eighth to 64 times it, within 1 and the number of units."""
    found = [batch * 2**power if power >= 0 else batch // 2**-power for power in range(-3, 7)]
    return sorted({each for each in found if 1 <= each <= units})


def table(title: str, rows: list[Row], chosen: int) -> str:
    mine = next(row.ratio for row in rows if row.batch == chosen)
    lines = [f"\n{title}", f"{'batch':>10} {'steps':>8} {'noise mult.':>12} {'ratio':>10} {'of yours':>9}"]
    for row in rows:
        mark = "  <- yours" if row.batch == chosen else ""
        lines.append(f"{row.batch:10d} {row.steps:8d} {row.noise_multiplier:12.4f} {row.ratio:10.3g} {row.ratio / mine:9.2f}{mark}")
    return "\n".join(lines)


def pays(rows: list[Row]) -> int:
    """The largest batch of which the double one, at the same steps, has at most PAYS of its ratio; the smallest if there is none."""
    doubled = {row.batch: row.ratio for row in rows}
    return max((row.batch * 2 for row in rows if doubled.get(row.batch * 2, row.ratio) <= PAYS * row.ratio), default=rows[0].batch)


def advice(rows: list[Row], chosen: int) -> str:
    best = pays(rows)
    if best <= chosen:
        return f"\nA larger batch at the same steps gains little: doubling {chosen} takes away less than a quarter of the ratio."
    ratio = {row.batch: row.ratio for row in rows}
    return (f"\nA larger batch pays up to {best} at the same steps: {ratio[best] / ratio[chosen]:.2f} of the noise in the mean gradient, "
            f"for {best / chosen:g} times the computing.")  # fmt: skip
