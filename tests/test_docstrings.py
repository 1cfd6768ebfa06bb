"""Docstrings of the package say in one form what is raised: "Raises ValueError: when ...; TypeError: for ..."."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for folder in ("src", "lab/src") for path in (ROOT / folder).rglob("*.py"))
NAME = r"[A-Z]\w*(?:Error|Interrupt|Resources)"
FORM = re.compile(rf"Raises (?:{NAME}(?:, {NAME})*: |what (?:`|its ))")
IMPORTING = re.compile(r"\n\n +import torch\n")  # in few files: the others need not be parsed
WITHOUT_COLON = re.compile(rf"\b{NAME}\b(?!:|, {NAME}\b)")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Every docstring with the line on which its owner stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def complaints(text: str) -> list[str]:
    """The paragraphs of a docstring that name in another form what is raised."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return [paragraph for paragraph in paragraphs if re.search(r"\bRaises\b", paragraph) and not _good(paragraph)]


def _good(paragraph: str) -> bool:
    """It opens with the form, says `Raises` once, and every error it names has its colon."""
    return bool(FORM.match(paragraph)) and paragraph.count("Raises") == 1 and not WITHOUT_COLON.search(paragraph)


def examples() -> Iterator[tuple[str, str]]:
    """The blocks of code in the docstrings: paragraphs set in by four spaces, from one that imports torch on."""
    for path in SOURCES:
        source = path.read_text()
        for _, text in docstrings(source) if IMPORTING.search(source) else ():
            _, found, block = text.partition("\n\n    import torch\n")
            if found:
                yield path.stem, inspect.cleandoc("\n" + found + block)


EXAMPLES = list(examples())


@pytest.mark.parametrize(("name", "code"), EXAMPLES)
def test_examples_run(name, code):
    exec(compile(code, name, "exec"), {})


def test_there_are_examples():
    assert {"function", "kerple", "sandwich"} <= {name for name, _ in EXAMPLES}


def test_every_docstring_has_the_form():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {complaint}"
        for path in SOURCES
        for line, text in docstrings(path.read_text())
        for complaint in complaints(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "Raises ValueError: for another name.",
        "Raises ShapeError, TypeError: for inputs that\ndo not fit; OSError: when it cannot be read; and what `load` "
        "raises.",
        "Raises TypeError: for no bool. A call raises ShapeError: for another width.",
        "Raises what `load` raises.",
        "The device raises the error itself.",
    ],
)
def test_good_forms(text):
    assert complaints(f"It does one thing.\n\n{text}\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "Raises ValueError for another name.",
        "Raises ValueError when it is\nfull.",
        "Raises ValueError: for another name, TypeError for a number.",
        "Raises ShapeError, TypeError or ValueError: for inputs that do not fit.",
        "Raises:\n    ValueError: for another name.",
        "Raises as `load`.",
        "It ends. Raises ValueError: for another name.",
        "Raises ValueError: for one name. Raises TypeError: for another.",
    ],
)
def test_other_forms_are_found_out(text):
    found = complaints(inspect.cleandoc(f"It does one thing.\n\n{text}\n"))
    assert len(found) == 1
    assert "Raises" in found[0]
