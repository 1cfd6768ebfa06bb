"""The documentation is true: its code runs, prints what it says, links to what exists, and the examples work.

A page is a Markdown file of docs/, or README.md. Its ```python blocks run in order and share a namespace; what a block
prints must stand in a ```text block right after it, and nothing else may. ```text blocks elsewhere are mistakes.
"""

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import relattn

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("README.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A ```python block: its code, the line it starts on, and what it prints ("" where no ```text block follows)."""

    code: str
    line: int
    output: str


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page with their outputs."""
    found: list[Block] = []
    end_of_last = -1
    for fence in FENCE.finditer(text):
        language, body = fence.groups()
        if language == "python":
            found.append(Block(body, text.count("\n", 0, fence.start()) + 2, ""))
            end_of_last = fence.end()
        elif language == "text":
            follows = end_of_last >= 0 and not text[end_of_last : fence.start()].strip()
            assert follows, (
                f"line {text.count(chr(10), 0, fence.start()) + 1}: a ```text block after no ```python block"
            )
            found[-1] = found[-1]._replace(output=body)
            end_of_last = -1
    return found


def run(page: Path) -> None:
    """Run every block of a page, one namespace for all, and compare what each prints."""
    namespace = {"__name__": "__docs__"}
    for block in blocks(page.read_text()):
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        assert printed.getvalue() == block.output, f"{page}:{block.line} prints something else"


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """The relative links of a page that lead to no file, or to no heading."""
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            broken.append(target)
    return broken


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_code_of_a_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(page)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_of_a_page_lead_somewhere(page):
    assert broken_links(page) == []


def test_every_public_encoding_has_a_page():
    public = [getattr(relattn, name) for name in relattn.__all__]
    encodings = [
        thing.__name__
        for thing in public
        if isinstance(thing, type)
        and issubclass(thing, relattn.RelativeEncoding)
        and thing is not relattn.RelativeEncoding
    ]
    assert len(encodings) >= 6
    titles = [page.read_text().partition("\n")[0] for page in (ROOT / "docs" / "encodings").glob("*.md")]
    assert [name for name in encodings if not any(name in title for title in titles)] == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    listed = {(ROOT / "docs" / target.partition("#")[0]).resolve() for target in LINK.findall(index)}
    assert [page for page in PAGES if page.is_relative_to(ROOT / "docs" / "") and page.resolve() not in listed] == [
        ROOT / "docs" / "README.md"
    ]


def test_the_pictures_are_drawn_by_their_script(tmp_path, monkeypatch):
    figures = ROOT / "docs" / "figures"
    monkeypatch.syspath_prepend(figures)
    monkeypatch.setattr(sys, "argv", ["draw_skew.py", str(tmp_path)])
    runpy.run_path(str(figures / "draw_skew.py"), run_name="__main__")
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in figures.glob("skew_*.svg")}
    page = (ROOT / "docs" / "skew.md").read_text()
    assert all(path.name in page for path in tmp_path.iterdir())


def example(name: str, arguments: list[str], monkeypatch, capsys) -> str:
    """What an example prints."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    return capsys.readouterr().out


def test_example_self_attention(monkeypatch, capsys):
    printed = example("self_attention.py", [], monkeypatch, capsys)
    changes = [float(line.split()[-1]) for line in printed.splitlines() if "changes by" in line or "cache, by" in line]
    assert len(changes) == 14
    assert max(changes) < 1e-5


def test_example_decoder_block(monkeypatch, capsys):
    lines = example("decoder_block.py", ["--steps", "80"], monkeypatch, capsys).splitlines()
    assert lines[0].startswith("shaw: trained on 24 notes to a loss of 0.0")
    assert lines[-2:] == ["right up to note 24: 100%", "right from there to note 64: 100%"]


def test_example_attention_picture(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "attention.png"
    lines = example("attention_picture.py", ["--steps", "80", "--out", str(picture)], monkeypatch, capsys).splitlines()
    assert any("looks at offset -7 most" in line for line in lines)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000


def test_every_example_is_run_and_listed():
    examples = {path.name for path in (ROOT / "examples").glob("*.py")}
    page = (ROOT / "docs" / "examples.md").read_text()
    assert examples == {"self_attention.py", "decoder_block.py", "attention_picture.py", "keras_chorales.py"}
    assert all(f"## {name}" in page for name in examples)


# --- the checks above can fail ---


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nprint(1)\n```\n```text\n2\n```\n", "prints something else"),
        ("```python\nprint(1)\n```\n", "prints something else"),
        ("```python\nx = 1\n```\n```text\n1\n```\n", "prints something else"),
        ("```python\nx = 1\n```\n```python\nassert x == 2, 'x is 1'\n```\n", "x is 1"),
        ("```text\n1\n```\n", "after no ```python block"),
        ("```python\nprint(1)\n```\nand\n```text\n1\n```\n", "after no ```python block"),
    ],
)
def test_a_page_that_lies_is_found_out(tmp_path, text, complaint):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        run(page)


def test_an_error_names_the_line_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\nx = 1\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run(page)
    assert caught.traceback[-1].lineno == 4


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# The one title\n[a](page.md) [b](#the-one-title) [c](none.md) [d](page.md#other) [e](https://x.org)\n"
    )
    assert broken_links(page) == ["none.md", "page.md#other"]
