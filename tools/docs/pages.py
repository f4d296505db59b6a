"""Makes the pages of the documentation's site from README, docs/ and the sources: pages.py FOLDER.

The README becomes the first page and docs/*.md are taken as they are. Python names have a page for each module below, from their
docstrings; each public C++ header has a page of its own. Links to files that are no page become plain text.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "bindings" / "python"

# The order of the guides, and what the navigation calls them. A page that is missing here is an error.
GUIDES = {
    "install.md": "Install", "python.md": "Python", "cli.md": "Command line", "accountant.md": "Accountant", "guarantee.md": "Guarantee",
    "receipt.md": "Receipts", "performance.md": "Performance", "quality.md": "Quality", "cuda.md": "CUDA", "bundle.md": "Without a network",
}  # fmt: skip

# A page for each module, with these names; none: all public ones.
MODULES = {
    "ghostshard.privacy_engine": ["PrivacyEngine"],
    "ghostshard.resumable_engine": ["ResumableEngine"],
    "ghostshard.fsdp": [],
    "ghostshard.optim": ["AdamW", "AdamW8bit", "Muon", "Shampoo", "SOAP", "matrix_groups"],
    "ghostshard.accountants": [],
    "ghostshard.loaders": ["GhostDataLoader", "BatchMemoryManager", "PoissonBatchSampler"],
    "ghostshard.checkpoint": [],
    "ghostshard.ghost.weights": ["digest_of_weights"],
    "ghostshard.texts.vocabulary": ["load_vocabulary", "gpt2_vocabulary", "train_vocabulary"],
}
LIBRARIES = {"accountant": "*.h", "kernels": "*.h", "fsdp": "*.h", "dp": "*/*.h"}


def guide(path: Path, *, depth: str) -> str:
    """A page of prose. depth: the way from its folder to the root of the tree ("" or "../")."""
    text = path.read_text(encoding="utf-8")

    def link(match: re.Match) -> str:
        words, target = match[1], match[2]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve().relative_to(ROOT).as_posix()
        page = page_of(place)
        return words if page is None else f"[{words}]({page}{'#' + anchor if anchor else ''})"

    text = re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", link, text)
    return re.sub(rf'(src|srcset)="{re.escape(depth)}(?:docs/)?([\w-]+\.svg)"', r'\1="\2"', text)


def page_of(place: str) -> str | None:
    """The page that a file of the tree has."""
    if place == "README.md":
        return "index.md"
    if place in ("CONTRIBUTING.md", "CHANGELOG.md"):
        return place.lower()
    return Path(place).name if re.fullmatch(r"docs/[\w-]+\.md", place) else None


def module_page(module: str, names: list[str]) -> str:
    shown = [f"{module}.{name}" for name in names] or [module]
    return f"# {module}\n\n" + "\n\n".join(f"::: {name}" for name in shown) + "\n"


def header_page(header: Path) -> str:
    """The first paragraph of the header's comment as a lead, then the header, as wide as the page."""
    text = header.read_text(encoding="utf-8")
    comment = re.match(r"(?:// ?.*\n)+", text)
    first = re.split(r"\n//\n", comment[0])[0] if comment else ""
    lead = " ".join(line.removeprefix("//").strip() for line in first.splitlines())
    name = header.relative_to(ROOT).as_posix()
    safe = lead.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
    return f"---\nhide: [toc]\n---\n\n# {name}\n\n{safe}\n\n```cpp\n{text.rstrip()}\n```\n"


def headers() -> dict[str, list[Path]]:
    found = {library: sorted((ROOT / library).glob(pattern)) for library, pattern in LIBRARIES.items()}
    return {library: [path for path in paths if not path.stem.endswith("_state")] for library, paths in found.items()}


def build(folder: Path) -> None:
    """Writes pages/ and mkdocs.yml into the folder. ValueError if a guide has no place in the navigation."""
    pages = folder / "pages"
    pages.mkdir(parents=True, exist_ok=True)
    if unknown := {path.name for path in (ROOT / "docs").glob("*.md")} ^ set(GUIDES):
        raise ValueError(f"docs/ and the navigation in tools/docs/pages.py differ in {', '.join(sorted(unknown))}")
    (pages / "index.md").write_text(guide(ROOT / "README.md", depth=""), encoding="utf-8")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        (pages / name.lower()).write_text(guide(ROOT / name, depth=""), encoding="utf-8")
    for name in GUIDES:
        (pages / name).write_text(guide(ROOT / "docs" / name, depth="../"), encoding="utf-8")
    for picture in (*(ROOT / "docs").glob("*.svg"), *(ROOT / "docs").glob("*.png")):
        (pages / picture.name).write_bytes(picture.read_bytes())
    navigation = ["nav:", "  - GhostShard: index.md", "  - Guides:"]
    navigation += [f"      - {title}: {name}" for name, title in GUIDES.items()]
    navigation += ["  - Python:"]
    for module, names in MODULES.items():
        (pages / f"{module}.md").write_text(module_page(module, names), encoding="utf-8")
        navigation.append(f"      - {module}: {module}.md")
    navigation += ["  - C++:"]
    for library, paths in headers().items():
        navigation.append(f"      - {library}:")
        for path in paths:
            name = path.relative_to(ROOT).as_posix()
            page = f"cpp/{name}.md"
            (pages / page).parent.mkdir(parents=True, exist_ok=True)
            (pages / page).write_text(header_page(path), encoding="utf-8")
            navigation.append(f"          - {name.removeprefix(library + '/')}: {page}")
    navigation += ["  - Project:", "      - Contributing: contributing.md", "      - Changes: changelog.md"]
    settings = (Path(__file__).parent / "mkdocs.yml").read_text(encoding="utf-8").replace("[python]", f"[{PYTHON}]")
    (folder / "mkdocs.yml").write_text(settings + "\n".join(navigation) + "\n", encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
