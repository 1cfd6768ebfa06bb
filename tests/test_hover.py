"""What an editor shows over a public name, a call of it, and a keyword. Asked of pyright's language server.

Over a call of a class the server shows the docstring of `__init__`, the first that it finds in the class and its bases,
and that of the class where there is none. So where a class has a base such as nn.Module, whose `__init__` has a
docstring, its arguments stand in an `__init__` docstring of its own. Over a keyword the server shows one line: that
where the name stands right before a colon, in the docstring of the function or of `__init__`. It shows none for the
fields of a tuple or dataclass, for the arguments of a decorated function, and for a name that shares
what is said with a later one ("query, key: ...").
"""

import ast
import html
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

from tests.site.test_reference import ROOT, public

NAMES = sorted(public())
MODULES = sorted({name.rpartition(".")[0] for name in NAMES} - {"relattn.offsets"})  # which is an attribute of relattn
IMPORTS = [f"import {module}" for module in MODULES]
ABSTRACT = {"relattn.RelativeEncoding", "relattn.keras.RelativeEncoding"}
"""Nobody calls them, and they have no `__init__` of their own."""


class LanguageServer:
    """A client of the language server, with one file open: IMPORTS, and a line for each of NAMES."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.numbers = process, itertools.count()
        self.uri = (ROOT / "hovered.py").as_uri()
        sees = {"textDocument": {"hover": {"contentFormat": ["markdown"]}}}
        folders = [{"uri": ROOT.as_uri(), "name": "relattn"}]
        self.ask("initialize", processId=None, rootUri=None, capabilities=sees, workspaceFolders=folders)
        self.send(method="initialized", params={})
        file = {"uri": self.uri, "languageId": "python", "version": 1, "text": "\n".join([*IMPORTS, *NAMES])}
        self.send(method="textDocument/didOpen", params={"textDocument": file})

    def send(self, **message: Any) -> None:
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(content), content))
        self.process.stdin.flush()

    def ask(self, method: str, **params: Any) -> Any:
        """The result of a request; what the server says in between is passed over."""
        number = next(self.numbers)
        self.send(id=number, method=method, params=params)
        assert self.process.stdout
        while True:
            lines = iter(self.process.stdout.readline, b"\r\n")
            (length,) = (int(line.split()[1]) for line in lines if line.startswith(b"Content-Length"))
            message = json.loads(self.process.stdout.read(length))
            if message.get("id") == number:
                return message["result"]

    def change(self, lines: list[str]) -> None:
        """Other lines in place of NAMES, in their order."""
        file, text = {"uri": self.uri, "version": 2}, "\n".join([*IMPORTS, *lines])
        self.send(method="textDocument/didChange", params={"textDocument": file, "contentChanges": [{"text": text}]})

    def over(self, name: str, method: str, column: int | None = None) -> Any:
        """The answer about a name's last part, or about what stands at a column of its line."""
        line, column = len(IMPORTS) + NAMES.index(name), len(name) - 1 if column is None else column
        return self.ask(method, textDocument={"uri": self.uri}, position={"line": line, "character": column})


def shown(server: LanguageServer, name: str, column: int | None = None) -> tuple[str, str]:
    """The signature and the documentation that a hover shows."""
    found = server.over(name, "textDocument/hover", column)["contents"]["value"]
    signature, _, text = found.partition("\n```")
    return signature, html.unescape(re.sub(r"\\(.)", r"\1", text.removeprefix("\n---")))


class Written(NamedTuple):
    """What the source says. docstring: of the name. call: of a call of it. keywords: of single arguments, in a line."""

    docstring: str
    call: str
    keywords: dict[str, str]


def single(text: str) -> dict[str, str]:
    """The arguments that a docstring explains one by one at the beginning of a line, and the rest of that line."""
    return {name: said for name, said in re.findall(r"^ *(\w+): (.+)$", text, re.MULTILINE)}


def written(server: LanguageServer, name: str) -> Written:
    """Read where the name is defined; the docstring of a constant is a statement behind it."""
    place = server.over(name, "textDocument/definition")[0]
    body = ast.parse(Path(unquote(urlsplit(place["uri"]).path)).read_text()).body
    (number,) = (i for i, one in enumerate(body) if one.lineno == place["range"]["start"]["line"] + 1)
    found = body[number]
    if isinstance(found, ast.AnnAssign):
        said = ast.literal_eval(body[number + 1].value)
        return Written(said, said, {})
    assert isinstance(found, ast.FunctionDef | ast.ClassDef)
    said = ast.get_docstring(found) or ""
    if isinstance(found, ast.FunctionDef):
        return Written(said, said, {} if found.decorator_list else single(said))
    made = [one for one in found.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    of_making = ast.get_docstring(made[0]) if made else None
    return Written(said, of_making or said, single(of_making or ""))


def arguments(signature: str) -> set[str]:
    """Those that a signature names: each has a line, or the only one stands behind the bracket."""
    return set(re.findall(r"^(?:    |(?:\(function\) def|class) \w+\()(\w+)", signature, re.MULTILINE))


def explained(text: str) -> set[str]:
    """The words before the colons at which what an argument is begins."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"(?:^|\. ) *([^.:;`\n]*): ", text, re.MULTILINE))))


def words(text: str) -> list[str]:
    """Without the marks and breaks that the server adds or takes away."""
    return re.findall(r"\w+", text)


def complaint(name: str, signature: str, text: str, said: Written) -> str:
    """What an editor does not show over a name; empty where it shows all."""
    named = rf"^(?:\(function\)\s+def|class) {name.rpartition('.')[2]}\(|\(constant\)"
    if not re.search(named, signature, re.MULTILINE):
        return f"its signature, but {signature}"
    if not text or words(text) != words(said.docstring):
        return f"its docstring, but {text!r}"
    return ", ".join(sorted(arguments(signature) - explained(f"{said.docstring}\n{said.call}")))


def complaint_of_a_call(server: LanguageServer, name: str, call: str, said: Written) -> str:
    """What it does not show over a call, and over the keywords in it."""
    text = shown(server, name)[1]
    if name not in ABSTRACT and words(text) != words(said.call):
        return f"what a call takes, but {text!r}"
    places = {one[1]: one.start() for one in re.finditer(r"(\w+)=", call)}
    for keyword, line in said.keywords.items():
        if keyword in places and words(line) != words(shown(server, name, places[keyword])[1])[1:]:
            return f"the line of {keyword}"
    return ""


@pytest.mark.slow
def test_an_editor_shows_what_is_written() -> None:
    command = [sys.executable, "-m", "pyright.langserver", "--stdio"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        server = LanguageServer(process)
        hovers = {name: shown(server, name) for name in NAMES}
        sources = {name: written(server, name) for name in NAMES}
        complaints = {name: complaint(name, *hovers[name], sources[name]) for name in NAMES}
        calls = [f"{name}({', '.join(f'{one}=0' for one in sorted(arguments(hovers[name][0])))})" for name in NAMES]
        server.change(calls)
        complaints |= {
            f"{name}(": complaint_of_a_call(server, name, call, sources[name])
            for name, call in zip(NAMES, calls, strict=True)
        }
    assert {name: said for name, said in complaints.items() if said} == {}
    assert sum(len(one.keywords) for one in sources.values()) > 150
