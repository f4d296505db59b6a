"""tools/docs/pages.py: the pages that `make docs` builds a site of. MkDocs itself runs in `make docs`, with --strict."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def pages(repository):
    spec = importlib.util.spec_from_file_location("docs_pages", repository / "tools" / "docs" / "pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(pages, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    pages.build(folder)
    return folder


def test_every_link_leads_to_a_page(site):
    for page in (site / "pages").glob("*.md"):
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).is_file(), f"{page.name}: {target}"


def test_every_page_is_in_the_navigation(site):
    navigation = (site / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = set(re.findall(r"[\w./-]+\.md$", navigation, re.MULTILINE))
    assert listed == {page.relative_to(site / "pages").as_posix() for page in (site / "pages").rglob("*.md")}


def test_every_public_header_has_a_page(site, repository):
    for header in ("accountant/ledger.h", "accountant/budget_register.h", "kernels/linear_norm.h", "fsdp/mesh.h", "dp/run/private_run.h"):
        page = (site / "pages" / "cpp" / f"{header}.md").read_text(encoding="utf-8")
        assert (repository / header).read_text(encoding="utf-8").rstrip() in page


def test_the_python_names_exist_and_say_what_they_do(pages):
    for module, names in pages.MODULES.items():
        file = pages.PYTHON / (module.replace(".", "/"))
        source = file.with_suffix(".py") if file.with_suffix(".py").is_file() else file / "__init__.py"
        tree = ast.parse(source.read_text(encoding="utf-8"))
        known = {node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        known |= {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert set(names) <= known, module
        assert names or ast.get_docstring(tree), module


def test_a_guide_without_a_place_is_an_error(pages, monkeypatch, tmp_path):
    monkeypatch.delitem(pages.GUIDES, "cuda.md")
    with pytest.raises(ValueError, match=r"cuda\.md"):
        pages.build(tmp_path)
