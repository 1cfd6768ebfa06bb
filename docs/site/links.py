"""A hook of mkdocs: links that leave docs/ lead somewhere in the site, too.

A page links to files of the repository as a code host has them: `../examples/self_attention.py`. Each file that is
linked so becomes part of the site, under repository/: Markdown as a page, a picture or HTML as it is, and any other
file, or a folder, as a page that shows its text, or its names. The links follow. The pages themselves stay as they
are.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
COPIES = "repository/"
SHOWN_AS_IT_IS = (".png", ".svg", ".html")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?\[[^\]]*\]\()(?!\w+:|#)([^)\s#]+)([^)\s]*\))")


def links(text: str) -> Iterator[str]:
    """The relative targets of a page, without those in its blocks of code."""
    for part in FENCE.split(text)[::2]:
        yield from (link[2] for link in LINK.finditer(part))


def in_navigation(nav: object) -> Iterator[str]:
    """The paths in the repository of what the navigation has, whether or not a page links to it."""
    if isinstance(nav, str):
        yield origin(nav)
    elif isinstance(nav, (list, dict)):
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from in_navigation(part)


def leads_to(source: str, target: str) -> str:
    """The path in the repository that a link of the file `source` means."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def place(name: str) -> str:
    """Where a path of the repository lies among the sources of the site."""
    path = ROOT / name
    if name.startswith("docs/") and path.suffix != ".py":
        return name.removeprefix("docs/")
    if path.suffix == ".md" or path.suffix in SHOWN_AS_IT_IS:
        return COPIES + name
    return f"{COPIES}{name}.md"


def origin(uri: str) -> str:
    """The path in the repository of a page; the inverse of `place` for Markdown."""
    return uri.removeprefix(COPIES) if uri.startswith(COPIES) else f"docs/{uri}"


def shown(name: str) -> str:
    """A page for a file that is no Markdown, or a folder."""
    path = ROOT / name
    head = f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n"
    if path.is_dir():
        names = sorted(one.name for one in path.iterdir() if one.name[0] not in "._")
        return head + "".join(f"- `{one}`\n" for one in names)
    language = {".py": "python"}.get(path.suffix, "")
    return f"{head}~~~~~~{language}\n{path.read_text(encoding='utf-8')}\n~~~~~~\n"


def copy_of(name: str, config: MkDocsConfig) -> File:
    """The file of the site for a path outside of docs/."""
    path, uri = ROOT / name, place(name)
    if path.suffix in SHOWN_AS_IT_IS:
        return File.generated(config, uri, abs_src_path=str(path))
    text = path.read_text(encoding="utf-8") if path.suffix == ".md" else shown(name)
    where = InclusionLevel.INCLUDED if path.suffix == ".md" else InclusionLevel.NOT_IN_NAV
    return File.generated(config, uri, content=text, inclusion=where)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds all that the pages link to, and what those pages link to."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    waiting += [name for name in in_navigation(config.nav) if (ROOT / name).exists()]
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        if files.get_file_from_path(place(name)) is None:
            files.append(copy_of(name, config))
        if not name.endswith(".md"):
            continue
        for target in links((ROOT / name).read_text(encoding="utf-8")):
            found = leads_to(name, target)
            if found not in seen and (ROOT / found).exists():
                seen.add(found)
                waiting.append(found)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links to where the files lie in the site; one that leads nowhere stays, and fails the build."""
    source = origin(page.file.src_uri)
    if not source.endswith(".md") or not (ROOT / source).exists():
        return markdown

    def moved(link: re.Match[str]) -> str:
        found = leads_to(source, link[2])
        if not (ROOT / found).exists():
            return link[0]
        return link[1] + posixpath.relpath(place(found), posixpath.dirname(page.file.src_uri) or ".") + link[3]

    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(moved, part) for part in parts[::2]]
    return "".join(parts)
