"""The words that a page may name without its own code making them: relattn's, and those of PyTorch's two attentions."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

import relattn
from relattn import convert, nn
from relattn.backends.base import Backend
from relattn.backends.select import BACKENDS
from relattn.cli.bench.workload import ENCODINGS as BENCH_ENCODINGS
from relattn.convert import FORMATS
from relattn.lab.encodings import ENCODINGS as LAB_ENCODINGS
from tests.documents.commands import COMMANDS, PROJECT
from tests.documents.page import ROOT

SOURCE = [ast.parse(path.read_text()) for path in (ROOT / "src").rglob("*.py")]
CONSTANTS = {
    node.value
    for tree in SOURCE
    for node in ast.walk(tree)
    if isinstance(node, ast.Constant) and isinstance(node.value, str)
}
"""Every string in relattn's source."""
FOLDERS = ("src", "tests", "docs", "examples", "measure", "ptxemu", "vectors")
FILES = {
    "/" + str(path.relative_to(ROOT)) + ("/" if path.is_dir() else "")
    for path in [*ROOT.iterdir(), *(found for folder in FOLDERS for found in (ROOT / folder).rglob("*"))]
}


def examples() -> list[Any]:
    """A small object of every public class that has attributes only once it is made."""
    encodings = [
        relattn.RelativeEmbedding(4, 3),
        relattn.ShawEmbedding(4, 3),
        relattn.TransformerXLEmbedding(2, 4),
        relattn.T5Bias(2),
        relattn.AlibiBias(2),
        relattn.KerpleBias(2),
        relattn.SandwichBias(2),
        relattn.FunctionBias(torch.cos, 2),
        relattn.GridBias((2, 2), 2),
        relattn.GridEmbedding(4, (2, 2)),
        relattn.LogGridBias((2, 2), 2),
        relattn.RotaryEmbedding(4),
        relattn.DisentangledEmbedding(2, 4, embed_dim=8, max_distance=3),
        relattn.KeyQueryEmbedding(4, 3),
    ]
    modules = [nn.RelativeMultiheadAttention(8, 2), nn.RelPositionMultiHeadedAttention(8, 2)]
    return [*encodings, *modules, nn.KVCache(), torch.nn.MultiheadAttention(8, 2)]


@functools.cache
def public(on_keras: bool = False) -> dict[str, Any]:
    """relattn's public names, without the modules that hold them; of one extra only, for both take long to import."""
    extra = importlib.import_module("relattn.keras" if on_keras else "relattn.hf")
    rooms: list[ModuleType] = [relattn, nn, convert, extra]
    return {name: getattr(room, name) for room in rooms for name in room.__all__}


def parameters(function: Any) -> list[str]:
    """The names of a function's parameters, those of its constructor for a class."""
    try:
        return [name for name in inspect.signature(function).parameters if name != "self"]
    except (TypeError, ValueError):
        return []


def methods(things: list[Any]) -> dict[str, list[Any]]:
    """The public methods of classes and modules, by name."""
    found: dict[str, list[Any]] = {}
    for thing in things:
        for name in dir(thing):
            if not name.startswith("_") and callable(method := getattr(thing, name)):
                found.setdefault(name, []).append(method)
    return found


@functools.cache
def known_methods(on_keras: bool = False) -> dict[str, list[Any]]:
    """The methods of relattn's public classes and of its contracts."""
    return methods([one for one in [*public(on_keras).values(), Backend] if isinstance(one, type)])


@functools.cache
def words(on_keras: bool = False) -> frozenset[str]:
    """Every name that is a public object, an attribute or a parameter of one, or a name that a user types."""
    functions = [
        *public(on_keras).values(),
        torch.nn.MultiheadAttention,
        torch.nn.MultiheadAttention.forward,
        flex_attention,
    ]
    functions += [method for named in known_methods(on_keras).values() for method in named]
    with torch.device("meta"):  # only their names are asked for: nothing is drawn
        made = examples()
    return frozenset(
        {name for function in functions for name in parameters(function)}
        | {
            name
            for one in [*public(on_keras).values(), *made, Backend]
            for name in dir(one)
            if not name.startswith("_")
        }
        | {
            part
            for one in made
            if isinstance(one, torch.nn.Module)
            for key in one.state_dict()
            for part in [key, *key.split(".")]
        }
        | {
            *public(on_keras),
            *BACKENDS,
            *FORMATS,
            *BENCH_ENCODINGS,
            *LAB_ENCODINGS,
            *COMMANDS,
            *PROJECT["optional-dependencies"],
        }
        | {path.stem for path in (ROOT / "vectors").glob("*.safetensors")}
    )


def known(name: str, on_keras: bool = False) -> bool:
    """Whether it is such a word, or a name of PyTorch's or transformers'."""
    import transformers

    return name in words(on_keras) or any(hasattr(module, name) for module in (F, torch, torch.nn, transformers))
