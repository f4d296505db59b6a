"""Figures in documents: the cells of Markdown tables and the numbers with a unit in prose, each beside its entry in
bench/results/figures.json, which names the run it was measured by."""

import dataclasses
import json
import pathlib
import re

NUMBER = re.compile(r"\d+(?:\.\d+)?")
# A cell of a table that no entry describes: numbers and nothing else.
BARE = re.compile(r"[~<≤]?\d[\d.,]*(?:[,/ ]+\(?\d[\d.,]*\)?)*\s?[×x%]?")
# What is measured in prose has a unit. Sizes of models, texts and vocabularies have none of these.
WITH_UNIT = re.compile(r"\d[\d,.]*\d?\s?(?:MiB|MB|GiB|GB|GB/s|TFLOP/s|GFLOP|ms|µs|s|seconds|minutes|times|×|%)(?![\w/])")


@dataclasses.dataclass
class Figure:
    """A number in a document and the value it stands for."""

    place: str  # for people: file, row, column
    printed: str
    value: float  # in its run
    run: dict
    path: str

    @property
    def half_a_digit(self) -> float:
        digits = len(self.printed.split(".")[1]) if "." in self.printed else 0
        return 0.5 * 10.0**-digits

    def is_rounded(self) -> bool:
        """A half may be rounded either way."""
        return abs(float(self.printed) - self.value) <= self.half_a_digit * (1 + 1e-9)


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables_of(text: str) -> list[list[list[str]]]:
    """The tables in their order, each as rows of cells; the first row is the heading."""
    tables, open_table = [], False
    for line in without_code(text).splitlines():
        if not line.startswith("|"):
            open_table = False
            continue
        if not open_table:
            tables.append([])
        open_table = True
        if set(line) - set("|-: "):
            tables[-1].append(cells_of(line))
    return tables


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def prose_of(text: str) -> str:
    """Everything outside of tables and code, on one line."""
    lines = [line for line in without_code(text).splitlines() if not line.startswith("|")]
    return re.sub(r"\s+", " ", re.sub(r"`[^`]*`", "``", " ".join(lines)))


def value_at(run: dict, path: str) -> float:
    """"private.seconds", or a ratio of two: "engines.fsdp2.seconds / engines.ghostshard.seconds". KeyError if it is not there."""
    if " / " in path:
        above, below = path.split(" / ")
        return value_at(run, above) / value_at(run, below)
    found = run
    for name in path.split("."):
        found = found[name]
    return float(found)


class Results:
    """Runs by file, shape and microbatches. A run's own commit, command and plan stand before those of its file."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._reports: dict[str, dict] = {}

    def run(self, file: str, shape: str, microbatches: int) -> dict:
        if file not in self._reports:
            self._reports[file] = json.loads((self._folder / file).read_text())
        report = self._reports[file]
        for run in report["runs"]:
            if (run["shape"], run.get("microbatches")) == (shape, microbatches):
                whole = {key: report[key] for key in ("commit", "command", "plan") if key in report}
                return whole | run | {"file": file}
        raise KeyError(f"no run of {shape} with {microbatches} microbatch(es) in {file}")


def figures_of_table(entry: dict, table: list[list[str]], results: Results) -> tuple[list[Figure], list[str]]:
    """The figures of a table and what is wrong with its entry.

    entry["runs"] gives a shape and a number of microbatches, from the cells of a row ("in": "rows"), from the heading of a
    column ("columns"), or the same for all ("fixed"). entry["values"] gives the paths along the other direction; a path's
    {row} stands for what entry["rows"] has for the row.
    """
    found, wrong = [], []
    for row in table[1:]:
        for c, cell in enumerate(row):
            column = table[0][c] if c < len(table[0]) else "beyond the heading"
            place = f"{entry['file']}: {label_of(entry, row)} | {column}"
            try:
                paths = paths_of(entry, row, c)
                if paths:
                    words = row if entry["runs"]["in"] == "rows" else re.split(r",\s*", column)
                    found += figures_of_cell(place, cell, paths, run_of(entry, words, results))
            except (KeyError, IndexError, ValueError) as error:
                wrong.append(f"{place}: {error.args[0] if error.args else error}")
    return found, wrong


def label_of(entry: dict, row: list[str]) -> str:
    values = entry["values"]
    return row[0] if isinstance(values, dict) else " ".join(cell for cell, path in zip(row, values) if path is None)


def paths_of(entry: dict, row: list[str], column: int) -> list[str]:
    """Of a cell's figures; none for a label. ValueError for a cell that the entry does not have."""
    values = entry["values"]
    if isinstance(values, dict):
        if column > 0 and row[0] not in values:
            raise ValueError("a figure without an entry in figures.json")
        paths = values[row[0]] if column > 0 else []
    else:
        if column >= len(values):
            raise ValueError("a figure without an entry in figures.json")
        paths = values[column] or []
    paths = [paths] if isinstance(paths, str) else paths
    if paths and "rows" in entry:
        if row[0] not in entry["rows"]:
            raise ValueError("a figure without an entry in figures.json")
        paths = [path.replace("{row}", entry["rows"][row[0]]) for path in paths]
    return paths


def run_of(entry: dict, words: list[str], results: Results) -> dict:
    names = [entry["runs"].get("names", {}).get(word, word) for word in words]
    shape = entry["runs"]["shape"].format(*names)
    microbatches = int(str(entry["runs"]["microbatches"]).format(*names))
    error = None
    for file in entry["results"]:
        try:
            return results.run(file, shape, microbatches)
        except KeyError as missing:
            error = missing
    raise error


def figures_of_cell(place: str, cell: str, paths: list[str], run: dict) -> list[Figure]:
    numbers = NUMBER.findall(cell)
    if not numbers and cell == "–":
        return []
    if len(numbers) != len(paths):
        raise ValueError(f"{len(numbers)} figures where figures.json has {len(paths)}: {cell}")
    return [Figure(place, printed, value_at(run, path), run, path) for printed, path in zip(numbers, paths)]


def read(root: pathlib.Path, entries: dict) -> tuple[list[Figure], list[str]]:
    """All figures of the documents that `entries` names, and a line for everything that is wrong with them."""
    results = Results(root / "bench/results")
    found, wrong = [], []
    for file in entries["documents"]:
        text = (root / file).read_text()
        mine = [entry for entry in entries["tables"] if entry["file"] == file]
        for table in tables_of(text):
            heading = " | ".join(table[0])
            entry = next((entry for entry in mine if entry["heading"] == heading), None)
            if entry is None:
                if any(BARE.fullmatch(cell) for row in table[1:] for cell in row):
                    wrong.append(f"{file}: a table of figures without an entry in figures.json: {heading}")
                continue
            mine.remove(entry)
            if "stated" in entry:
                wrong += compare_stated(entry, table)
                continue
            figures, faults = figures_of_table(entry, table, results)
            found += figures
            wrong += faults
        wrong += [f"{file}: figures.json has an entry for a table that is not there: {entry['heading']}" for entry in mine]
        wrong += wrong_prose(file, prose_of(text), [e for e in entries["prose"] if e["file"] == file])
    return found, wrong + [fault for figure in found for fault in faults_of(figure)] + missing_sources(entries)


def compare_stated(entry: dict, table: list[list[str]]) -> list[str]:
    if entry["stated"] == table[1:]:
        return []
    return [f"{entry['file']}: other figures than figures.json states: {entry['heading']}"]


def wrong_prose(file: str, prose: str, entries: list[dict]) -> list[str]:
    wrong, rest = [], prose
    for entry in entries:
        if entry["text"] not in rest:
            wrong.append(f"{file}: not there as figures.json has it: {entry['text']}")
        rest = rest.replace(entry["text"], "")
    return wrong + [
        f"{file}: a figure without an entry in figures.json: {rest[max(0, m.start() - 60):m.end()]}"
        for m in WITH_UNIT.finditer(rest)
    ]


def faults_of(figure: Figure) -> list[str]:
    faults = []
    if not figure.is_rounded():
        faults.append(f"{figure.place}: prints {figure.printed}, but its run gave {figure.value:.4g} ({figure.run['file']})")
    for key in ("commit", "command", "plan"):
        if not figure.run.get(key):
            faults.append(f"{figure.place}: its run in {figure.run['file']} has no {key}")
    return faults


def missing_sources(entries: dict) -> list[str]:
    sourced = [entry for entry in entries["prose"] + entries["tables"] if "stated" in entry or "text" in entry]
    return [
        f"{entry['file']}: no {key} for {entry.get('text', entry.get('heading'))}"
        for entry in sourced for key in ("command", "commit", "plan") if not entry.get(key)
    ]  # fmt: skip
