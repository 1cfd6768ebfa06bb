"""Every public name is in the reference, and the navigation has every page. Reads files alone: no site is built."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "relattn"
REFERENCE = ROOT / "docs" / "reference"
PARTS = ("nn", "hf", "keras", "convert", "distributed")
"""The subpackages whose `__all__` is public, beside relattn's own."""


def strings(node: ast.AST) -> list[str]:
    return [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def assigned(path: Path, name: str) -> ast.expr:
    """What a module assigns to a name."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return node.value
    raise AssertionError(f"{path} assigns nothing to {name}")


def public() -> set[str]:
    """The dotted names of all that is public."""
    homes = assigned(SOURCE / "__init__.py", "_HOMES")
    assert isinstance(homes, ast.Dict)
    own = {name for key in homes.keys if key is not None for name in strings(key)}
    names = {f"relattn.{name}" for name in own}
    for part in PARTS:
        names |= {f"relattn.{part}.{name}" for name in strings(assigned(SOURCE / part / "__init__.py", "__all__"))}
    functions = [
        node.name for node in ast.parse((SOURCE / "positions" / "offsets.py").read_text()).body if hasattr(node, "name")
    ]
    return names | {f"relattn.offsets.{name}" for name in functions if not name.startswith("_")}


def documented(folder: Path) -> list[str]:
    """The names that the pages of a folder hand to mkdocstrings."""
    return [name for page in folder.glob("*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]


def test_every_public_name_is_in_the_reference_once() -> None:
    found = documented(REFERENCE)
    assert len(found) > 60
    assert sorted(found) == sorted(public())


@pytest.mark.parametrize("lost", ["relattn.relative_attention", "relattn.nn.KVCache", "relattn.offsets.t5_buckets"])
def test_a_name_that_the_reference_lacks_is_found(tmp_path: Path, lost: str) -> None:
    for page in REFERENCE.glob("*.md"):
        (tmp_path / page.name).write_text(page.read_text().replace(f"::: {lost}\n", ""))
    assert public() - set(documented(tmp_path)) == {lost}


def test_no_public_part_is_forgotten() -> None:
    """A package with an `__all__` is a part of the reference, or all its names are relattn's own."""
    found = {path.parent.name for path in SOURCE.glob("*/__init__.py") if "\n__all__ = " in path.read_text()}
    assert found >= set(PARTS)
    for package in found - set(PARTS):
        names = strings(assigned(SOURCE / package / "__init__.py", "__all__"))
        assert {f"relattn.{name}" for name in names} <= public()


def test_every_page_is_in_the_navigation() -> None:
    """Those with results, too: `make docs` refuses a page that has no place in it."""
    text = (ROOT / "mkdocs.yml").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    pages |= {f"repository/{page.relative_to(ROOT)}" for page in (ROOT / "measure" / "results").rglob("*.md")}
    assert [page for page in sorted(pages) if not re.search(rf"[ :]{re.escape(page)}$", text, re.MULTILINE)] == []
