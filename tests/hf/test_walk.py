"""Every family of the installed transformers that speaks of relative positions has a replacement or a reason."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers

from relattn.hf.installed import FIRST, LAST, VERSION, release
from relattn.hf.models import FILES, SINCE, replacements
from relattn.hf.unsupported import LEFT, NO_BIAS, REMAINS, is_named, reason, relative

CODE = {path: path.read_text() for path in Path(transformers.__file__).parent.glob("models/*/modeling_*.py")}
FITTING = [package for package in FILES if release(SINCE.get(package, FIRST)) <= release(VERSION)]
"""The families of which the installed version has a form that is replaced."""
ONCE = {"evolla"}
"""The families whose files have a mark in older versions alone; there their attention is left."""
TABLES = {"FILES": FILES, "LEFT": LEFT, "REMAINS": REMAINS, "NO_BIAS": NO_BIAS}

CALLS = re.compile(r"scaled_dot_product_attention\(|flash_attention_forward\(|ALL_ATTENTION_FUNCTIONS")
FORMULA = re.compile(r"(?s)(matmul|einsum|baddbmm)\(.*softmax|softmax.*(matmul|einsum|baddbmm)\(", re.IGNORECASE)
"""What the code of a class says that attends: by another's function, or itself."""


def files(package: str) -> dict[str, str]:
    return {path.name: code for path, code in CODE.items() if path.parent.name == package}


def entries() -> Iterator[tuple[str, str, str]]:
    """(table, package, class or "")."""
    for table, names in TABLES.items():
        for name in names:
            package, _, kind = name.partition(".")
            yield table, package, kind


@pytest.mark.slow
def test_every_family_is_covered_or_has_a_reason() -> None:
    found = {path.parent.name for path, code in CODE.items() if relative(code)}
    assert len(found) > 50, "the walk has found no families"
    assert not sorted(package for package in found - ONCE if package not in FILES and not is_named(package))


def attending() -> Iterator[tuple[str, ast.ClassDef]]:
    """(package, class): those that attend, and speak of relative positions in their code."""
    for path, code in CODE.items():
        for node in ast.parse(code).body if relative(code) else ():
            if isinstance(node, ast.ClassDef):
                for part in ast.walk(node):
                    if isinstance(part, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(part) is not None:
                        part.body = part.body[1:]
                written = ast.unparse(node)  # without comments and documentation
                if relative(written) and (CALLS.search(written) or FORMULA.search(written)):
                    yield path.parent.name, node


@pytest.mark.slow
def test_every_attention_is_replaced_or_has_a_reason() -> None:
    """Class by class. A subclass of one that is replaced is left, and its report says so."""
    replaced = {kind.__name__ for file in {FILES[package] for package in FITTING} for kind in replacements(file)}
    found = list(attending())
    assert len(found) > 40, "the walk has found no classes"
    assert not [
        f"{package}.{node.name}"
        for package, node in found
        if package not in FILES.keys() - FITTING
        and not {node.name, *map(ast.unparse, node.bases)} & replaced
        and not any(reason(table, package, node.name) for table in (LEFT, REMAINS, NO_BIAS))
    ]


def test_no_family_stands_in_two_tables() -> None:
    whole = [package for _, package, kind in entries() if not kind]
    assert not {package for package in whole if whole.count(package) > 1}
    single = [(package, kind) for _, package, kind in entries() if kind]
    assert len(single) == len(set(single))
    elsewhere = {package for table, package, kind in entries() if not kind and table != "FILES"}
    assert not {package for package, _ in single if package in elsewhere}, "its whole package has a reason, too"


def test_every_entry_is_there() -> None:
    """With a mark in its files if it has a reason, and, of a single class, with that class.

    The last version has all of them, an older one those that it has, and not yet all marks.
    """
    older = release(VERSION) < release(LAST)
    for table, package, kind in entries():
        code = files(package)
        if not code and older and (table != "FILES" or package not in FITTING):
            continue
        assert code, f"{table}: no {package}"
        marked = table == "FILES" or older or any(relative(text) for text in code.values())
        assert marked, f"{table}: {package} has no relative position"
        defined = re.compile(rf"^class {kind}\b", re.MULTILINE)
        assert not kind or any(defined.search(text) for text in code.values()), f"{table}: no {package}.{kind}"


def test_reasons_are_given() -> None:
    """They go into the report behind a colon or a semicolon."""
    for table in (LEFT, REMAINS, NO_BIAS):
        for name, why in table.items():
            assert re.fullmatch(r"[a-zA-Z].*[^.]", why), name
