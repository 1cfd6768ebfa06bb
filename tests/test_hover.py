"""What an editor shows over a public name: its docstring, with every argument. Asked of pyright's language server."""

import ast
import html
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.site.test_reference import ROOT, public

NAMES = sorted(public())
MODULES = sorted({name.rpartition(".")[0] for name in NAMES} - {"relattn.offsets"})  # which is an attribute of relattn
SOURCE = "\n".join([*(f"import {module}" for module in MODULES), *NAMES])


class LanguageServer:
    """A client of the language server, with one file open: SOURCE."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.numbers = process, itertools.count()
        self.uri = (ROOT / "hovered.py").as_uri()
        sees = {"textDocument": {"hover": {"contentFormat": ["markdown"]}}}
        folders = [{"uri": ROOT.as_uri(), "name": "relattn"}]
        self.ask("initialize", processId=None, rootUri=None, capabilities=sees, workspaceFolders=folders)
        self.send(method="initialized", params={})
        file = {"uri": self.uri, "languageId": "python", "version": 1, "text": SOURCE}
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

    def over(self, name: str, method: str) -> Any:
        """The answer about a name's last part."""
        line = len(MODULES) + NAMES.index(name)
        return self.ask(method, textDocument={"uri": self.uri}, position={"line": line, "character": len(name) - 1})


def shown(server: LanguageServer, name: str) -> tuple[str, str]:
    """The signature and the documentation that a hover shows."""
    signature, _, text = server.over(name, "textDocument/hover")["contents"]["value"].partition("\n```\n")
    return signature, html.unescape(re.sub(r"\\(.)", r"\1", text))


def written(server: LanguageServer, name: str) -> str:
    """The docstring in the source, where the name is defined; behind a constant it is a statement of its own."""
    place = server.over(name, "textDocument/definition")[0]
    body = ast.parse(Path(unquote(urlsplit(place["uri"]).path)).read_text()).body
    (number,) = (i for i, one in enumerate(body) if one.lineno == place["range"]["start"]["line"] + 1)
    if isinstance(body[number], ast.AnnAssign):
        return ast.literal_eval(body[number + 1].value)
    return ast.get_docstring(body[number]) or ""


def arguments(signature: str) -> set[str]:
    """Those that a signature names: each has a line, or the only one stands behind the bracket."""
    return set(re.findall(r"^(?:    |(?:\(function\) def|class) \w+\()(\w+)", signature, re.MULTILINE))


def explained(text: str) -> set[str]:
    """The words before the colons at which what an argument is begins."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"(?:^|\. ) *([^.:;`\n]*): ", text, re.MULTILINE))))


def complaint(server: LanguageServer, name: str) -> str:
    """What an editor does not show over a name; empty where it shows all."""
    signature, text = shown(server, name)
    named = rf"^(?:\(function\)\s+def|class) {name.rpartition('.')[2]}\(|\(constant\)"
    if not re.search(named, signature, re.MULTILINE):
        return f"its signature, but {signature}"
    if not text or re.findall(r"\w+", text) != re.findall(r"\w+", written(server, name)):
        return f"its docstring, but {text!r}"
    return ", ".join(sorted(arguments(signature) - explained(text)))


@pytest.mark.slow
def test_an_editor_shows_the_docstring_of_every_public_name_with_every_argument() -> None:
    command = [sys.executable, "-m", "pyright.langserver", "--stdio"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        server = LanguageServer(process)
        complaints = {name: complaint(server, name) for name in NAMES}
    assert {name: said for name, said in complaints.items() if said} == {}
