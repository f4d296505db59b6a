"""Writes what runs gave into the tables of documents, in the place of what stands there: as many digits after the point as before."""

import re

from figures.documents import NUMBER, Results, cells_of, paths_of, run_of, value_at


def written(text: str, entries: list[dict], results: Results) -> str:
    """A document's text. entries: of its tables. A cell that has no entry, other numbers than its entry has paths, or no run, stays as it is:
    documents.read() says so."""
    waiting, lines = list(entries), text.splitlines(keepends=True)
    entry, heading, in_code = None, None, False
    for number, line in enumerate(lines):
        in_code ^= line.startswith("```")
        if in_code or not line.startswith("|"):
            entry = heading = None
        elif heading is None:
            heading = cells_of(line)
            entry = next((each for each in waiting if each["heading"] == " | ".join(heading)), None)
            if entry is not None:
                waiting.remove(entry)
        elif entry is not None and "values" in entry and set(line) - set("|-: \n"):
            lines[number] = _row(line, heading, entry, results)
    return "".join(lines)


def _row(line: str, heading: list[str], entry: dict, results: Results) -> str:
    row = cells_of(line)
    cells = list(row)
    for column, cell in enumerate(row):
        try:
            paths = paths_of(entry, row, column)
            run = run_of(entry, row if entry["runs"]["in"] == "rows" else re.split(r",\s*", heading[column]), results) if paths else {}
            values = [value_at(run, path) for path in paths]
        except (KeyError, IndexError, ValueError):
            continue
        if values and len(values) == len(NUMBER.findall(cell)):
            left = iter(values)
            cells[column] = NUMBER.sub(lambda printed: _like(printed[0], next(left)), cell)
    return f"| {' | '.join(cells)} |\n"


def _like(printed: str, value: float) -> str:
    return f"{value:.{len(printed.partition('.')[2])}f}"
