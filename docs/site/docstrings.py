"""An extension of griffe: docstrings as Markdown.

In a docstring an argument starts a line, `name: what it is`, and goes on in indented lines. Such a paragraph becomes a
list. Lines of equations at the top become a block. In the rest nothing but a code span means more than its characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from griffe import Extension, Object

ARGUMENT = re.compile(r"(?!Source|Raises|A call)([\w*][^:.;`]*): ")
SPAN = re.compile(r"(`[^`]*`)")
INDENT = "    "


def literal(line: str) -> str:
    """A line of text, in which Markdown finds no emphasis and no tag."""
    parts = SPAN.split(line)
    parts[::2] = [part.replace("*", r"\*").replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)


def is_list(paragraph: list[str]) -> bool:
    """Whether it begins with an argument: alone on its line, or before indented lines."""
    first = ARGUMENT.match(paragraph[0])
    hanging = any(line.startswith(INDENT) for line in paragraph[1:])
    return first is not None and (hanging or " " not in first[1] or len(paragraph) == 1)


def item(line: str) -> str:
    """The first line of an argument, or one that goes on."""
    argument = None if line.startswith(INDENT) else ARGUMENT.match(line)
    return f"- `{argument[1]}`: {literal(line[argument.end() :])}" if argument else literal(line)


def paragraphs(text: str) -> Iterator[list[str]]:
    """The lines between empty ones."""
    for part in re.split(r"\n[ ]*\n", text.strip("\n")):
        yield part.splitlines()


def as_markdown(text: str) -> str:
    """The docstring as Markdown."""
    found = []
    for number, lines in enumerate(paragraphs(text)):
        if lines[0].startswith(INDENT):
            found.append(lines)
        elif number == 0 and len(lines) > 1 and all(re.match(r"\S+ = ", line) for line in lines):
            found.append([INDENT + line for line in lines])
        else:
            found.append([item(line) if is_list(lines) else literal(line) for line in lines])
    return "\n\n".join("\n".join(lines) for lines in found)


class DocstringsAsMarkdown(Extension):
    """Rewrites every docstring once it is read."""

    def on_object(self, *, obj: Object, **kwargs: object) -> None:
        """Of a module, a class, a function or an attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
