"""Write numbers.js for docs/explorer.md: what every encoding makes of 24 tokens, for every setting of its parameters.

    python docs/explorer/make_numbers.py [FILE]      (default: numbers.js beside this file)

The numbers are relattn's: each encoding lowers a call, and its tables, queries and keys are written down. equation.js
contains only the score equation, no encoding.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import relattn
from relattn.call import Options, request_of

LENGTH, WIDTH = 24, 8
DIGITS = 5
YES_NO = ("no", "yes")


class Choice(NamedTuple):
    """An encoding as a reader picks it: what it says, its parameters with their values, and how it is made of them."""

    says: str
    parameters: dict[str, tuple[Any, ...]]
    make: Callable[..., relattn.RelativeEncoding]


def alibi(slope: float, signed: str) -> relattn.RelativeEncoding:
    """One head with this slope."""
    return relattn.AlibiBias(1, slopes=[slope], signed=signed == "yes")


def t5(buckets: int, max_distance: int, bidirectional: str) -> relattn.RelativeEncoding:
    """A number per bucket."""
    return relattn.T5Bias(
        1, num_buckets=buckets, max_distance=max_distance, bidirectional=bidirectional == "yes"
    )  # fmt: skip


def kerple(kind: str, r1: float, r2: float) -> relattn.RelativeEncoding:
    """With these two numbers in the place of learned ones."""
    encoding = relattn.KerpleBias(1, kind=kind)
    with torch.no_grad():
        encoding.r1.fill_(r1)
        encoding.r2.fill_(r2)
    return encoding


def rotary(base: int, stretched: int) -> relattn.RelativeEncoding:
    """All features turned; positions divided by `stretched`."""
    scaling = None if stretched == 1 else {"rope_type": "linear", "factor": float(stretched)}
    return relattn.RotaryEmbedding(WIDTH, base=float(base), scaling=scaling)


SLOPES = tuple(relattn.offsets.alibi_slopes(8).tolist())
CHOICES = {
    "AlibiBias": Choice("a penalty linear in the distance", {"slope": SLOPES, "signed": YES_NO}, alibi),
    "T5Bias": Choice(
        "a number per bucket of offsets",
        {"buckets": (4, 8, 16), "max_distance": (16, 32, 128), "bidirectional": ("yes", "no")}, t5,
    ),
    "KerpleBias": Choice(
        "a penalty, logarithmic in the distance or a power of it",
        {"kind": ("log", "power"), "r1": (0.25, 0.5, 1.0), "r2": (0.25, 0.5, 1.0, 2.0)}, kerple,
    ),
    "SandwichBias": Choice(
        "the product of two sinusoidal positions",
        {"width": (8, 32, 128)}, lambda width: relattn.SandwichBias(1, width),
    ),
    "RelativeEmbedding": Choice(
        "a row per offset, multiplied with the query",
        {"max_length": (2, 4, 8, 24), "beyond": ("clamp", "zero")},
        lambda max_length, beyond: relattn.RelativeEmbedding(WIDTH, max_length, beyond=beyond),
    ),
    "ShawEmbedding": Choice(
        "clipped rows, multiplied with the query",
        {"max_distance": (1, 2, 4, 8, 16)},
        lambda max_distance: relattn.ShawEmbedding(WIDTH, max_distance, values=False),
    ),
    "TransformerXLEmbedding": Choice(
        "projected sinusoids and two biases",
        {"interleaved": YES_NO},
        lambda interleaved: relattn.TransformerXLEmbedding(1, WIDTH, interleaved=interleaved == "yes"),
    ),
    "RotaryEmbedding": Choice(
        "queries and keys are turned", {"base": (10, 100, 10000), "stretched": (1, 2, 4)}, rotary
    ),
    "DisentangledEmbedding": Choice(
        "rows multiplied with the query, and rows multiplied with the key",
        {"max_distance": (2, 4, 8)},
        lambda max_distance: relattn.DisentangledEmbedding(1, WIDTH, embed_dim=WIDTH, max_distance=max_distance),
    ),
    "KeyQueryEmbedding": Choice(
        "a row per offset, multiplied with query and key",
        {},
        lambda: relattn.KeyQueryEmbedding(WIDTH, LENGTH),
    ),
}  # fmt: skip


def drawn(generator: torch.Generator, *shape: int) -> Tensor:
    """Whole multiples of 1/64 between -2 and 2, as the test vectors have them."""
    return torch.randint(-128, 129, shape, generator=generator, dtype=torch.float64) / 64


def tokens() -> dict[str, tuple[Tensor, Tensor]]:
    """Queries and keys of two kinds of tokens, [LENGTH, WIDTH] each."""
    generator = torch.Generator().manual_seed(20)
    same = torch.ones(LENGTH, WIDTH, dtype=torch.float64)
    return {
        "alike": (same, same),
        "drawn": (drawn(generator, LENGTH, WIDTH), drawn(generator, LENGTH, WIDTH)),
    }  # fmt: skip


def with_numbers(encoding: relattn.RelativeEncoding) -> relattn.RelativeEncoding:
    """Learned tables and projections filled; r1 and r2 of KerpleBias stay as a reader set them."""
    generator = torch.Generator().manual_seed(21)
    encoding = encoding.double()
    if not isinstance(encoding, relattn.KerpleBias):
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.copy_(drawn(generator, *parameter.shape) / 2)
    return encoding


def lowered(encoding: relattn.RelativeEncoding, query: Tensor, key: Tensor, head: int = 0) -> dict[str, Tensor]:
    """The symbols of the equation for one head of queries and keys [H, L, D]; only those that the encoding brings.

    query, key: rewritten ones. relative_query: r, where it is not the query. relative_keys, relative_queries, bias: a
    row for each offset, from the most distant past on.
    """
    with torch.no_grad():
        tensors = query[None], key[None], key[None]
        problem = request_of(*tensors, False, False, encoding, 0, 0, Options()).problem
    (axis,) = problem.axes
    found = {"query": problem.query[0], "key": problem.key[0]}
    found = {name: found[name] for name, own in (("query", query), ("key", key)) if not torch.equal(found[name], own)}
    if axis.relative_query is not None:
        found["relative_query"] = axis.relative_query[0]
    queries, keys = query.shape[1], key.shape[1]
    for name in ("relative_keys", "relative_queries", "bias"):
        if (table := getattr(axis, name)) is not None:
            found[name] = table.rows(1 - queries, queries + keys - 1)
    return {name: one[head if len(one) > 1 else 0] for name, one in found.items()}


def plain(numbers: Any) -> Any:
    """Nested lists of numbers with few digits."""
    if isinstance(numbers, list):
        return [plain(one) for one in numbers]
    rounded = float(f"{numbers:.{DIGITS}g}")
    return int(rounded) if rounded == int(rounded) else rounded


def entries(choice: Choice) -> dict[str, Any]:
    """By the tokens' kind, then by the places of the parameters' values, "0,1": the symbols."""
    found: dict[str, Any] = {}
    for kind, (query, key) in tokens().items():
        found[kind] = {}
        for places in itertools.product(*(range(len(values)) for values in choice.parameters.values())):
            values = [list(choice.parameters.values())[n][place] for n, place in enumerate(places)]
            symbols = lowered(with_numbers(choice.make(*values)), query[None], key[None])
            found[kind][",".join(map(str, places))] = {name: plain(one.tolist()) for name, one in symbols.items()}
    return found


def numbers() -> dict[str, Any]:
    """All that the page needs."""
    given = {kind: {"query": q.tolist(), "key": k.tolist()} for kind, (q, k) in tokens().items()}
    return {
        "length": LENGTH,
        "tokens": {kind: {name: plain(one) for name, one in both.items()} for kind, both in given.items()},
        "encodings": {
            name: {
                "says": choice.says,
                "parameters": {key: list(values) for key, values in choice.parameters.items()},
                "entries": entries(choice),
            }
            for name, choice in CHOICES.items()
        },
    }


def main(path: Path) -> None:
    """Write the file."""
    text = json.dumps(numbers(), separators=(",", ":"))
    path.write_text(f"// Written by make_numbers.py.\nglobalThis.relattnNumbers = {text};\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("numbers.js"))
