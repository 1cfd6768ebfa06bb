"""A page: its blocks of code with what they print, and its code spans."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "DESIGN.md", "vectors/README.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "measure").rglob("*.md"),
    ]
)
MARKDOWN = MarkdownIt().enable("table")
PYTHON, KERAS, SHELL = "python", "py", "sh"
SHOWN = ("", PYTHON, KERAS, "text", SHELL)


class Block(NamedTuple):
    """A ```python block: its code, the line it starts on, and what it prints ("" where no ```text block follows)."""

    code: str
    line: int
    output: str


class Page(NamedTuple):
    """python: the blocks that run. keras: those that need Keras. shell: commands. plain: drawings and the like."""

    python: list[Block]
    keras: list[str]
    shell: list[str]
    plain: list[str]
    spans: list[str]


def read(text: str) -> Page:
    """A page's code, by what it is; spans and commands with single blanks."""
    page = Page([], [], [], [], [])
    previous = None
    for token in MARKDOWN.parse(text):
        if token.type in ("fence", "code_block"):
            line = (token.map or [0])[0] + 1
            assert token.info in SHOWN, f"line {line}: a block of {token.info!r}; expected one of {SHOWN}"
            if token.info == PYTHON:
                page.python.append(Block(token.content, line + 1, ""))
            elif token.info == "text":
                follows = previous is not None and previous.info == PYTHON
                assert follows, f"line {line}: a ```text block after no ```python block"
                page.python[-1] = page.python[-1]._replace(output=token.content)
            elif token.info == KERAS:
                page.keras.append(token.content)
            elif token.info == SHELL:
                page.shell.extend(token.content.replace("\\\n", " ").splitlines())
            else:
                page.plain.append(token.content)
        page.spans.extend(
            re.sub(r"\s+", " ", child.content) for child in token.children or () if child.type == "code_inline"
        )
        previous = token
    return page


def run(path: Path) -> dict[str, Any]:
    """Run every ```python block of a page, compare what each prints, and return the namespace that they share."""
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for block in read(path.read_text()).python:
        code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        assert printed.getvalue() == block.output, f"{path}:{block.line} prints something else"
    return namespace
