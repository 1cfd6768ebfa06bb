"""Any axes before the heads: the same numbers as the call folded by hand to four axes, answers and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from relattn import (
    OffsetTable,
    RelativeEmbedding,
    RelativeEncoding,
    RotaryEmbedding,
    ScoreTerms,
    ShapeError,
    ShawEmbedding,
    T5Bias,
    TransformerXLEmbedding,
    attention_and_lse,
    attention_weights,
    explain,
    relative_attention,
)
from tests.bad_input.refusal import refused
from tests.contract.calls import EXACT, assert_equal, gradients

pytestmark = pytest.mark.one_in(8)

HEADS, KEY_HEADS, LQ, LK, WIDTH = 4, 2, 5, 6, 8
LENGTHS = {"query_position": LQ, "key_position": LK}
Axes = tuple[int, ...]

LAYOUTS: dict[str, tuple[Axes, Axes, Axes]] = {
    "none": ((), (), ()),
    "two": ((2, 3), (2, 3), (2, 3)),
    "three": ((2, 1, 2), (2, 1, 2), (2, 1, 2)),
    "keys without": ((2, 3), (), ()),
    "keys with fewer": ((2, 3), (3,), (2, 3)),
    "queries without": ((), (2,), (2,)),
    "of one against many": ((1,), (3,), (3,)),
    "of one on every side": ((2, 1), (1, 3), (2, 1)),
    "empty": ((0, 2), (1, 2), (2,)),
}
"""The axes before the heads of query, key and value."""

ENCODINGS: dict[str, Callable[[], RelativeEncoding | None]] = {
    "none": lambda: None,
    "shaw": lambda: ShawEmbedding(WIDTH, 2, num_heads=HEADS),
    "t5": lambda: T5Bias(HEADS, num_buckets=8, max_distance=10),
    "rotary": lambda: RotaryEmbedding(WIDTH),
    "transformer-xl": lambda: TransformerXLEmbedding(HEADS, WIDTH),
    "sum": lambda: T5Bias(HEADS, num_buckets=8, max_distance=10) + RelativeEmbedding(WIDTH, 30),
}

every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_encoding = pytest.mark.parametrize("name", ENCODINGS)
every_backend = pytest.mark.parametrize("backend", ["dense", "blocks", "reference"])


def normal(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64, requires_grad=True)


def tensors(layout: str) -> dict[str, Tensor]:
    query, key, value = LAYOUTS[layout]
    return {
        "query": normal(*query, HEADS, LQ, WIDTH),
        "key": normal(*key, KEY_HEADS, LK, WIDTH),
        "value": normal(*value, KEY_HEADS, LK, WIDTH),
    }


def batch_of(layout: str) -> Axes:
    return tuple(np.broadcast_shapes(*LAYOUTS[layout]))


def folded(tensor: Tensor, batch: Axes, last: int) -> Tensor:
    """Its last axes behind one batch axis, written out; what broadcasts is repeated."""
    missing = (1,) * (len(batch) + last - tensor.dim())
    tensor = tensor.reshape(missing + tensor.shape)
    return tensor.expand(*batch, *tensor.shape[len(batch) :]).reshape(math.prod(batch), *tensor.shape[len(batch) :])


def folded_call(arguments: dict[str, Any], batch: Axes) -> dict[str, Any]:
    """The same call with four axes."""
    changed = {name: folded(arguments[name], batch, 3) for name in ("query", "key", "value")}
    mask, segments = arguments.get("attn_mask"), arguments.get("segment_ids")
    if mask is not None:
        changed["attn_mask"] = folded(mask, batch, 3)
    if "key_bias" in arguments:
        changed["key_bias"] = folded(arguments["key_bias"], batch, 2)
    if "sinks" in arguments and arguments["sinks"].dim() > 1:
        changed["sinks"] = folded(arguments["sinks"], batch, 2)
    if "key_mask" in arguments:
        changed["key_mask"] = folded(arguments["key_mask"], batch, 1)
    if segments is not None:
        changed["segment_ids"] = tuple(folded(ids, batch, 1) for ids in segments)
    for name in LENGTHS:
        explicit = arguments.get(name)
        if isinstance(explicit, Tensor) and explicit.dim() > 1:
            changed[name] = folded(explicit, batch, 1)
    terms = arguments.get("encoding")
    if isinstance(terms, ScoreTerms):
        rewritten = {name: getattr(terms, name) for name in ("query", "key", "relative_query")}
        tables = {name: getattr(terms, name) for name in ("relative_keys", "relative_values", "bias")}
        rewritten = {name: tensor if tensor is None else folded(tensor, batch, 3) for name, tensor in rewritten.items()}
        changed["encoding"] = ScoreTerms(**rewritten, **tables)
    return {**arguments, **changed}


def with_axes(answer: Tensor, batch: Axes) -> Tensor:
    """An answer of the folded call with the caller's axes."""
    assert answer.shape[0] == math.prod(batch)
    return answer.reshape(batch + answer.shape[1:])


def assert_folds(arguments: dict[str, Any], layout: str, backend: str, leaves: list[Tensor]) -> None:
    """Output, lse and gradients of the call, and attention_weights, are those of the folded call."""
    batch, attend = batch_of(layout), partial(attention_and_lse, backend=backend, enable_gqa=True)
    by_hand = folded_call(arguments, batch)
    answers = attend(**arguments)
    expected = tuple(with_axes(answer, batch) for answer in attend(**by_hand))
    assert [tuple(answer.shape) for answer in answers] == [(*batch, HEADS, LQ, WIDTH), (*batch, HEADS, LQ)]
    assert_equal(answers, expected)
    assert_equal(gradients(answers, leaves), gradients(expected, leaves))
    assert_equal(relative_attention(**arguments, backend=backend, enable_gqa=True), answers[0])
    weights = attention_weights(**arguments, enable_gqa=True)
    assert weights.shape == (*batch, HEADS, LQ, LK)
    assert_equal(weights, with_axes(attention_weights(**by_hand, enable_gqa=True), batch))


@pytest.mark.pairs
@every_backend
@every_layout
@pytest.mark.parametrize("shared", ["nothing", "batch", "heads", "an axis"])
def test_key_bias_and_sinks(layout: str, shared: str, backend: str) -> None:
    inputs, batch, heads = tensors(layout), batch_of(layout), HEADS
    axes = {"batch": (1,) * len(batch), "an axis": (*batch[:-1], 1)[: len(batch)]}.get(shared, batch)
    key_bias = normal(*axes, 1 if shared == "heads" else heads, LK)
    sinks = normal(heads) if shared == "heads" else normal(*batch, heads, LQ)
    arguments = {**inputs, "key_bias": key_bias, "sinks": sinks, "softcap": 2.0, "is_causal": True}
    assert_folds(arguments, layout, backend, [*inputs.values(), key_bias, sinks])


def booleans(*size: int) -> Tensor:
    return torch.rand(size) < 0.7


def ids(*size: int) -> Tensor:
    return torch.randint(3, size)


OPTIONS: dict[str, Callable[[Axes], dict[str, Any]]] = {
    "causal": lambda batch: {"is_causal": True},
    "starts": lambda batch: {"query_position": 4, "key_position": torch.tensor(2), "is_causal": True},
    "window": lambda batch: {"window": (2, 1)},
    "key mask": lambda batch: {"key_mask": booleans(*batch, LK)},
    "segments": lambda batch: {"segment_ids": (ids(*batch, LQ), ids(*batch, LK))},
    "queries explicit": lambda batch: {"query_position": torch.randint(9, (LQ,)), "is_causal": True},
    "keys explicit, for each": lambda batch: {"key_position": torch.randint(9, (*batch, LK)), "window": (3, 3)},
    "both explicit": lambda batch: {
        name: torch.randint(9, (*batch, length)) for name, length in LENGTHS.items()
    },
    "all of them": lambda batch: {
        "is_causal": True,
        "window": (4, None),
        "key_mask": booleans(*batch, LK),
        "segment_ids": (ids(*batch, LQ) // 2, ids(*batch, LK) // 2),
        "attn_mask": booleans(HEADS, LQ, LK),
        "query_position": torch.randint(9, (*batch, LQ)),
        "scale": 0.3,
    },
}  # fmt: skip


@pytest.mark.pairs
@every_backend
@every_encoding
@every_layout
def test_every_encoding(layout: str, name: str, backend: str) -> None:
    inputs, encoding = tensors(layout), ENCODINGS[name]()
    parameters = []
    if encoding is not None:
        encoding.double()
        parameters = list(encoding.parameters())
        with torch.no_grad():
            for parameter in parameters:
                parameter.normal_()
    arguments = {**inputs, **OPTIONS["all of them"](batch_of(layout)), "encoding": encoding}
    assert_folds(arguments, layout, backend, [*inputs.values(), *parameters])


@pytest.mark.pairs
@every_backend
@every_layout
@pytest.mark.parametrize("option", [option for option in OPTIONS if option != "all of them"])
def test_every_option(layout: str, backend: str, option: str) -> None:
    inputs, encoding = tensors(layout), ShawEmbedding(WIDTH, 2, num_heads=HEADS).double()
    arguments = {**inputs, **OPTIONS[option](batch_of(layout)), "encoding": encoding}
    assert_folds(arguments, layout, backend, [*inputs.values(), *encoding.parameters()])


def masks_of(batch: Axes) -> list[Axes]:
    """Every way to broadcast to [*batch, HEADS, LQ, LK]: fewer axes, and axes of 1."""
    full = (*batch, HEADS, LQ, LK)
    shapes = {full[start:] for start in range(len(full))} | {(), (1,) * len(full)}
    for axis in range(len(full)):
        shapes |= {(*full[:axis], 1, *full[axis + 1 :]), (1,) * axis + full[axis:]}
    return sorted(shapes)


@every_layout
@pytest.mark.parametrize("kind", ["boolean", "float"])
def test_every_mask_that_broadcasts(layout: str, kind: str) -> None:
    """Folded before a backend sees it."""
    inputs, encoding = tensors(layout), ShawEmbedding(WIDTH, 2).double()
    for size in masks_of(batch_of(layout)):
        mask = booleans(*size) if kind == "boolean" else normal(*size)
        leaves = list(inputs.values()) + ([mask] if kind == "float" else [])
        assert_folds({**inputs, "attn_mask": mask, "encoding": encoding}, layout, "dense", leaves)


@every_backend
@every_layout
def test_terms_with_the_callers_axes(layout: str, backend: str) -> None:
    """Rewritten queries and keys and relative queries of [*B, H, L, D]."""
    inputs, axes = tensors(layout), batch_of(layout)
    rewritten = {
        "query": normal(*axes, HEADS, LQ, WIDTH),
        "key": normal(*axes, KEY_HEADS, LK, WIDTH),
        "relative_query": normal(*axes, HEADS, LQ, 3),
    }
    tables = {
        "relative_keys": normal(HEADS, 9, 3),
        "relative_values": normal(1, 9, WIDTH),
        "bias": normal(HEADS, 9),
    }
    terms = ScoreTerms(**rewritten, **{name: OffsetTable(rows, -4, "clamp") for name, rows in tables.items()})
    arguments = {**inputs, "encoding": terms, "window": (3, 3)}
    assert_folds(arguments, layout, backend, [*inputs.values(), *rewritten.values(), *tables.values()])


@every_layout
def test_segments_of_one_tensor(layout: str) -> None:
    inputs, batch = tensors(layout), batch_of(layout)
    inputs["query"] = normal(*LAYOUTS[layout][0], HEADS, LK, WIDTH)
    one = ids(*batch, LK)
    ours = relative_attention(**inputs, segment_ids=one, enable_gqa=True)
    assert_equal(ours, relative_attention(**inputs, segment_ids=(one, one), enable_gqa=True))


@every_layout
def test_without_encoding_as_pytorch(layout: str) -> None:
    inputs = {name: tensor.detach() for name, tensor in tensors(layout).items()}
    query, key, value = (
        tensor.expand(*batch_of(layout), *tensor.shape[-3:]) for tensor in inputs.values()
    )  # PyTorch's enable_gqa broadcasts no batch
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    assert_equal(relative_attention(**inputs, is_causal=True, enable_gqa=True), expected, **EXACT)


@every_layout
def test_explained(layout: str) -> None:
    arguments = {**tensors(layout), "enable_gqa": True, "encoding": ShawEmbedding(WIDTH, 2).double()}
    explanation = explain(**arguments)
    assert explanation == explain(**folded_call(arguments, batch_of(layout)))


def test_one_head_and_one_batch_element_are_not_confused() -> None:
    """[H, L, D] are heads: neither a batch, nor the heads of a table for one."""
    query, key, value = (normal(HEADS, length, WIDTH) for length in (LQ, LK, LK))
    encoding = T5Bias(HEADS, num_buckets=8, max_distance=10).double()
    with torch.no_grad():
        encoding.bias.normal_()
    ours = relative_attention(query, key, value, encoding=encoding)
    assert_equal(ours, relative_attention(query[None], key[None], value[None], encoding=encoding)[0])
    with refused(ShapeError, "T5Bias num_heads: got 4; expected 1, the heads of query ...; make it..."):
        relative_attention(*(tensor.unsqueeze(1) for tensor in (query, key, value)), encoding=encoding)
