"""docs/adding_an_encoding.md to the letter: its files and lines, put into a copy of the repository, pass its tests."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.documents.page import MARKDOWN, ROOT, read

PAGE = (ROOT / "docs" / "adding_an_encoding.md").read_text()
COPIED = (
    "src",
    "lab",
    "tests",
    "docs",
    "vectors",
    "examples",
    "measure",
    "ptxemu",
    "*.md",
    "*.toml",
    "*.yml",
    "Makefile",
)
WHERE = re.compile(r"`([\w./]+\.\w+)`(?:, (below|above) `(.+)`)?:")


class Step(NamedTuple):
    """A block that the page puts into a file: the whole file, or lines below or above the line that begins so."""

    file: str
    side: str | None
    line: str | None
    block: str

    def take(self, root: Path) -> None:
        """Do what the page says, in the copy at `root`."""
        path = root / self.file
        if self.line is None:
            assert not path.exists(), f"{self.file} is there already"
            path.write_text(self.block)
            return
        lines = path.read_text().splitlines(keepends=True)
        (found,) = [number for number, line in enumerate(lines) if line.strip().startswith(self.line)]
        lines.insert(found + (self.side == "below"), self.block)
        path.write_text("".join(lines))


def steps() -> list[Step]:
    """The steps of the page, in its order."""
    found, above = [], ""
    for token in MARKDOWN.parse(PAGE):
        where = WHERE.fullmatch(above) if token.type == "fence" else None
        if where is not None:
            found.append(Step(where[1], where[2], where[3], token.content))
        above = token.content if token.type == "inline" else above if token.type == "paragraph_close" else ""
    return found


def copy_of_the_repository(root: Path) -> None:
    for path in [path for pattern in COPIED for path in ROOT.glob(pattern)]:
        if path.is_dir():
            shutil.copytree(path, root / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, root)


SELECTED = {
    "pytest tests/contract -k tisa": ["-m", "not slow"],
    "pytest tests/test_layering.py tests/test_docs.py tests/site/test_reference.py": [
        "-k", "no_arrow or oracles_import or declared or every_public or in_the_index or in_the_navigation or tisa",
    ],
}  # fmt: skip
"""The commands of the page, and what of them is about a new encoding and takes seconds."""


@pytest.mark.slow
def test_an_encoding_added_as_the_page_says_passes(tmp_path: Path) -> None:
    copy_of_the_repository(tmp_path)
    for step in steps():
        step.take(tmp_path)
    assert read(PAGE).shell == list(SELECTED)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(str(tmp_path / one) for one in ("src", "lab/src"))}
    for command, selected in SELECTED.items():
        ran = subprocess.run(
            [sys.executable, "-m", *command.split(), *selected, "-q", "-x", "-p", "no:cacheprovider"],
            cwd=tmp_path, env=variables, capture_output=True, text=True,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout


def test_the_page_has_no_other_files() -> None:
    """A block that is meant for a file is found: each text above a block that begins with a file is a step."""
    named = re.findall(r"^`[\w./]+\.\w+`.*\n\n```", PAGE, re.MULTILINE)
    assert len(named) == len(steps()) > 10


def test_a_line_that_is_not_there_once_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("one\ntwo\n    one more\n")
    for line in ("three", "one"):
        with pytest.raises(ValueError):
            Step("file.py", "below", line, "new\n").take(tmp_path)
    Step("file.py", "above", "one more", "    new\n").take(tmp_path)
    assert (tmp_path / "file.py").read_text() == "one\ntwo\n    new\n    one more\n"
