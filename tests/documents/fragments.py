"""A code span of a page: what it is, and whether that is true.

Every span stands in names.toml beside this file, under its page and under what it is; or it is one of these, asked in
this order: a command line, an option, a name of the catalogue, a file, several names, Python, which is evaluated, or
whose names must exist.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
import inspect
import io
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import relattn
from relattn.catalogue import CATALOGUE
from tests.documents.commands import OPTIONS, is_command, refusal
from tests.documents.page import ROOT
from tests.documents.vocabulary import CONSTANTS, FILES, known, known_methods, public, words

NAMES: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "names.toml").read_text())
PREAMBLE, SPELLED = "preamble", "spelled_in"
KINDS = ("equations", "theirs", "formats", "examples")
"""What names.toml may call a span: mathematics; a name of other code; how names or tensors are spelled in general; what
a reader makes himself while he follows the page."""
SCRIPTS = "".join(path.read_text() for folder in ("examples", "measure") for path in (ROOT / folder).glob("*.py"))
DIMENSIONS = {"B", "H", "Hq", "Hk", "L", "Lq", "Lk", "D", "Dv", "Dr", "E", "K", "R", "S", "n"}
SUFFIXES = ("py", "md", "txt", "json", "html", "toml", "safetensors", "mid", "bin", "pt", "pth", "ckpt")


class Wrong(AssertionError):
    """A span that is surely of one kind, and untrue."""


class Place(NamedTuple):
    """Where a span stands: what it may use of Python, the words of other code, and whether the page is about Keras."""

    namespace: dict[str, Any]
    foreign: frozenset[str]
    on_keras: bool = False

    def knows(self, name: str) -> bool:
        """Whether a bare name means something here."""
        return name in self.namespace or name in self.foreign or known(name, self.on_keras)

    def holds(self, text: object) -> bool:
        """Whether a value is none of those strings that relattn's source would have to know."""
        return not isinstance(text, str) or text in CONSTANTS or text in self.foreign


def listed(page: str) -> list[str]:
    """The spans that names.toml has for a page."""
    return [span for kind in KINDS for span in NAMES.get(page, {}).get(kind, ())]


def place(page: str, namespace: dict[str, Any], keras_blocks: list[str]) -> Place:
    """A page's place: what its blocks made, and its preamble in names.toml, which may use all that."""
    entry = NAMES.get(page, {})
    names = {**public(bool(keras_blocks)), "relattn": relattn, "torch": torch, "inf": math.inf, **namespace}
    for code in [*keras_blocks, entry.get(PREAMBLE, "")]:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, names)
    foreign = frozenset({*listed(page), *spelled(tuple(entry.get(SPELLED, ())))})
    return Place(names, foreign, bool(keras_blocks))


@functools.cache
def spelled(sources: tuple[str, ...]) -> frozenset[str]:
    """Every string and dotted name in these files and folders: what other code is called, where ours deals with it."""
    paths = [
        path for name in sources for path in ((ROOT / name).rglob("*.py") if name[-3:] != ".py" else [ROOT / name])
    ]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    dotted = {ast.unparse(node) for node in nodes if isinstance(node, (ast.Name, ast.Attribute))}
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.arg for node in nodes if isinstance(node, (ast.arg, ast.keyword)) and node.arg}
    return frozenset(strings | dotted | names)


def complaint(span: str, where: Place) -> str | None:
    """What is untrue of a span, or that it is of no kind; None where all is well."""
    try:
        if span in where.foreign or any(kind(span, where) for kind in (command, option, named, file, several, python)):
            return None
    except Wrong as error:
        return f"`{span}`: {error}"
    return f"`{span}`: nothing is known of it; tests/documents/fragments.py says what it may be"


def named(span: str, where: Place) -> bool:
    """An encoding by its name on the command line."""
    return span in CATALOGUE


def command(span: str, where: Place) -> bool:
    """`relattn compare --minutes 5`: its program would take it."""
    if not is_command(span):
        return False
    if why := refusal(span):
        raise Wrong(why)
    return True


def option(span: str, where: Place) -> bool:
    """`--data path.json`: an option of the command `relattn`, or of a script."""
    if not span.startswith("--"):
        return False
    if span.split()[0] not in OPTIONS and f'"{span.split()[0]}"' not in SCRIPTS:
        raise Wrong("no command and no script has this option")
    return True


def file(span: str, where: Place) -> bool:
    """`tests/oracle/`, `forward.py`: a file of the repository, by the end of its path; or one that relattn names."""
    if not re.fullmatch(r"[\w./<>-]*(/[\w./<>-]*|\w\.(" + "|".join(SUFFIXES) + "))", span):
        return False
    pattern = re.compile(
        ".*/" + re.sub("<[^>]*>", "[^/]+", re.escape(span.removeprefix("../")).replace(r"\.<", ".<")) + "/?"
    )
    return span in CONSTANTS or any(pattern.fullmatch(name) for name in FILES)


def several(span: str, where: Place) -> bool:
    """`bert_*`: some of the known names. `relattn::tiled`: an operator. `key_mask [B, Lk]`: a name and its shape."""
    if re.fullmatch(r"\w+\*", span):
        return any(word.startswith(span[:-1]) for word in words(where.on_keras))
    if operator := re.fullmatch(r"(\w+)::(\w+)", span):
        return hasattr(getattr(torch.ops, operator[1]), operator[2])
    shaped = re.fullmatch(r"(\w+) (\[.*\])", span)
    return shaped is not None and python(shaped[1], where) and python(shaped[2], where)


def python(span: str, where: Place) -> bool:
    """Python, or keyword arguments: names exist, calls can be made, expressions have a value."""
    text, arrow, answer = span.removeprefix("@").partition(" -> ")
    if arrow and not where.knows(answer):
        return False
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError):
        return arguments(text, where)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return arguments(text, where)
    if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Assign)):
        return runs(text, where, exec)
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, (ast.List, ast.Tuple)):
        return all(name in DIMENSIONS or where.knows(name) for name in names_in(value))
    if isinstance(value, ast.Constant):
        return where.holds(value.value)
    if isinstance(value, ast.Name):
        return where.knows(value.id)
    if isinstance(value, ast.Attribute):
        return exists(value, where) is not None
    if isinstance(value, ast.Call) and (shown := as_shown(value, where)) is not None:
        return shown
    return runs(text, where, eval)


def names_in(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def arguments(text: str, where: Place) -> bool:
    """`is_causal=True, window=(left, right)`, `"factor": 2.0`: known parameters, with values made of known names."""
    text = re.sub(r'"(\w+)": ', r"\1=", text)
    try:
        call = ast.parse(f"_({text})", mode="eval").body
    except SyntaxError:
        return False
    assert isinstance(call, ast.Call)
    if call.args or not call.keywords:
        return False
    return (
        all(k.arg is not None and where.knows(k.arg) for k in call.keywords)
        and all(where.knows(name) for k in call.keywords for name in names_in(k.value))
        and all(where.holds(k.value.value) for k in call.keywords if isinstance(k.value, ast.Constant))
    )


def exists(node: ast.expr, where: Place) -> Any:
    """What a name, or a name of a module, class or object, stands for; None where its first part is unknown."""
    if isinstance(node, ast.Name):
        return where.namespace.get(node.id, getattr(builtins, node.id, None))
    if not isinstance(node, ast.Attribute):
        return None
    owner = exists(node.value, where)
    if owner is None:
        return None
    if inspect.ismodule(owner) and not hasattr(owner, node.attr):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(f"{owner.__name__}.{node.attr}")
    if not hasattr(owner, node.attr):
        raise Wrong(f"{ast.unparse(node.value)} has no {node.attr}")
    return getattr(owner, node.attr)


def as_shown(call: ast.Call, where: Place) -> bool | None:
    """A call as documentation shows it: `truncate(length)`, by its parameters' names, or `KVCache(max_length=...)`.

    None where it is a call to be made: the page has every name in it, and it leaves nothing out.
    """
    callee = exists(call.func, where)
    if callee is None and isinstance(call.func, ast.Name):  # a method, without the object
        candidates = known_methods(where.on_keras).get(call.func.id, [])
        return any(is_signature(call, candidate) or takes(call, candidate) for candidate in candidates)
    if callee is not None and not names_in(call) <= set(where.namespace) and is_signature(call, callee):
        return True
    if not any(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(call)):
        return None
    if callee is not None and not takes(call, callee):
        raise Wrong(f"{ast.unparse(call.func)} takes other arguments")
    return callee is not None


def takes(call: ast.Call, function: Any) -> bool:
    """Whether the function has these parameters."""
    try:
        bound = (None,) if next(iter(inspect.signature(function).parameters), "") == "self" else ()
        inspect.signature(function).bind(*bound, *call.args, **{k.arg: k.value for k in call.keywords if k.arg})
    except TypeError:
        return False
    return True


def is_signature(call: ast.Call, function: Any) -> bool:
    """Whether the arguments are the first parameters by name, and the defaults by value."""
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    except (TypeError, ValueError):
        return False
    names = [argument.id if isinstance(argument, ast.Name) else None for argument in call.args]
    defaults = {p.name: p.default for p in parameters}
    return names == [p.name for p in parameters][: len(names)] and all(
        k.arg in defaults and isinstance(k.value, ast.Constant) and k.value.value == defaults[k.arg]
        for k in call.keywords
    )


def runs(text: str, where: Place, how: Callable[..., Any]) -> bool:
    """Whether it can be evaluated with the page's names; False where one of them is unknown."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            how(text, dict(where.namespace))
    except NameError:
        return False
    except Exception as error:
        raise Wrong(f"{type(error).__name__}: {error}") from error
    return True
