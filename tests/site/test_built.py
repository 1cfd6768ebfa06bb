"""The built site, in site/: its links lead somewhere, nothing comes from another host, signatures are whole."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parent.parent.parent
SITE = ROOT / "site"
LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}
"""What a browser fetches by itself."""
pytestmark = pytest.mark.site


class Page(HTMLParser):
    """The targets and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[tuple[str, str]] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if name in ("href", "src") and value and not (tag == "link" and ("rel", "canonical") in attrs):
                self.targets.append((f"{tag}.{name}", value))


def pages() -> dict[Path, Page]:
    found = [path for path in sorted(SITE.rglob("*.html")) if path.name != "report.html"]
    return {path: Page(path.read_text(encoding="utf-8")) for path in found}


def broken(found: dict[Path, Page]) -> list[str]:
    """The links that lead to no file, or to no heading."""
    missing = []
    for path, page in found.items():
        for _, target in page.targets:
            name, _, anchor = unquote(target).partition("#")
            if re.match(r"[a-z]+:|//|/", name) or path.name == "404.html":
                continue
            there = (path.parent / name).resolve() if name else path
            if there.is_dir():
                there = there / "index.html"
            known = found[there].anchors if there in found else {anchor}
            if not there.exists() or (anchor and anchor not in known):
                missing.append(f"{path.relative_to(SITE)}: {target}")
    return missing


def test_every_link_leads_somewhere() -> None:
    found = pages()
    assert len(found) > 60
    assert broken(found) == []


def test_a_broken_link_is_found() -> None:
    path = SITE / "start.html"
    page = Page('<a href="equation.html"></a><a href="none.html"></a><a href="#none"></a>')
    assert broken({path: page}) == ["start.html: none.html", "start.html: #none"]


def test_a_page_loads_nothing_from_another_host() -> None:
    loaded = {
        target
        for page in pages().values()
        for kind, target in page.targets
        if tuple(kind.split(".")) in LOADED and re.match(r"\w+:|//", target) and not target.startswith("data:")
    }
    assert loaded == set()
    styles = " ".join(path.read_text(encoding="utf-8") for path in SITE.rglob("*.css"))
    assert re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*", styles) == []


def test_links_out_of_docs_have_a_page() -> None:
    shown = (SITE / "repository/measure/peers/arrangements.py.html").read_text(encoding="utf-8")
    assert "def strided(" in re.sub(r"<[^>]+>", "", shown)
    assert "decoder_block.py" in (SITE / "repository/examples.html").read_text()
    assert (SITE / "repository/measure/results/hugging-face.svg").exists()


def test_the_reference_has_arguments_and_signatures() -> None:
    html = (SITE / "reference/attention.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", html)
    assert text.count("softcap: float | None = None") >= 3
    assert "<code>attn_mask</code>: boolean" in html
    assert "request: Request" not in text
