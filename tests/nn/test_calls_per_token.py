"""Decoding one token asks once: one place, one Positions, one parse of each argument, one check of each encoding."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch

from relattn import (
    AlibiBias,
    FunctionBias,
    KerpleBias,
    RelativeEmbedding,
    RelativeEncoding,
    RotaryEmbedding,
    SandwichBias,
    ShawEmbedding,
    T5Bias,
    TransformerXLEmbedding,
)
from relattn.checks.positions import check_window, position_of
from relattn.checks.terms import check_terms
from relattn.nn import KVCache, RelativeMultiheadAttention, RelPositionMultiHeadedAttention
from relattn.positions.positions import Positions, limits

HEADS, WIDTH, PROMPT, BATCH = 2, 8, 5, 2
COUNTED: dict[str, Callable[..., Any]] = {
    "place": KVCache.place,
    "Positions": Positions.__init__,
    "limits": limits,
    "check_window": check_window,
    "position_of": position_of,
    "check_terms": check_terms,
}
ENCODINGS: dict[str, tuple[Callable[[], RelativeEncoding | None], int]] = {
    "none": (lambda: None, 0),
    "relative": (lambda: RelativeEmbedding(WIDTH, 40), 1),
    "shaw": (lambda: ShawEmbedding(WIDTH, 3), 1),
    "transformer-xl": (lambda: TransformerXLEmbedding(HEADS, WIDTH), 1),
    "t5": (lambda: T5Bias(HEADS), 1),
    "rotary": (lambda: RotaryEmbedding(WIDTH), 1),
    "kerple": (lambda: KerpleBias(HEADS), 1),
    "sandwich": (lambda: SandwichBias(HEADS), 1),
    "function": (lambda: FunctionBias(lambda offsets: offsets.cos().expand(HEADS, -1), HEADS), 1),
    "two": (lambda: ShawEmbedding(WIDTH, 3) + AlibiBias(HEADS), 2),
    "three": (lambda: T5Bias(HEADS) + (RotaryEmbedding(WIDTH) + AlibiBias(HEADS)), 3),
}
CACHES: dict[str, Callable[[], KVCache]] = {"growing": KVCache, "rolling": lambda: KVCache(max_length=3)}

every_encoding = pytest.mark.parametrize("name", ENCODINGS)
every_cache = pytest.mark.parametrize("cache", CACHES)


@contextmanager
def calls() -> Iterator[Counter[str]]:
    """How often each of COUNTED runs inside, from wherever it is called: the interpreter itself tells of every call.

    The parts of Positions that a backend takes, where a window leaves keys out of reach, are reused, not recreated.
    """
    names = {function.__code__: name for name, function in {**COUNTED, "part": Positions.part}.items()}
    counts = Counter[str]()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in names:
            counts[names[frame.f_code]] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(before)
        counts["Positions"] -= counts.pop("part", 0)
        if not counts["Positions"]:
            del counts["Positions"]


def once(**others: int) -> dict[str, int]:
    """Each once, but for `others` and the check of a window that is not given; what is never called is not in it."""
    expected = {**dict.fromkeys(COUNTED, 1), "check_window": 0, **others}
    return {name: count for name, count in expected.items() if count}


def layer(encoding: RelativeEncoding | None) -> RelativeMultiheadAttention:
    return RelativeMultiheadAttention(HEADS * WIDTH, HEADS, encoding)


def tokens(count: int = 1) -> torch.Tensor:
    return torch.randn(BATCH, count, HEADS * WIDTH)


@torch.no_grad()
@every_cache
@every_encoding
@pytest.mark.parametrize("window", [None, (4, 0)], ids=str)
def test_a_token_whose_place_follows(name: str, cache: str, window: tuple[int, int] | None) -> None:
    """No position is given, so none is parsed."""
    make, encodings = ENCODINGS[name]
    attention, held = layer(make()), CACHES[cache]()
    for count in (PROMPT, 1, 1):  # a plan is made
        attention(tokens(count), is_causal=True, window=window, cache=held)
    for _ in range(3):
        with calls() as counts:
            attention(tokens(), is_causal=True, window=window, cache=held)
        assert counts == once(position_of=0, check_terms=encodings, check_window=int(window is not None))


@torch.no_grad()
@every_cache
@every_encoding
def test_a_token_at_explicit_positions(name: str, cache: str) -> None:
    make, encodings = ENCODINGS[name]
    attention, held = layer(make()), CACHES[cache]()
    lengths = torch.tensor([[PROMPT], [PROMPT - 2]])
    attention(tokens(PROMPT), is_causal=True, query_position=torch.arange(PROMPT), cache=held)
    for step in range(3):
        with calls() as counts:
            attention(tokens(), is_causal=True, query_position=lengths + step, cache=held)
        assert counts == once(check_terms=encodings)


@torch.no_grad()
@every_encoding
@pytest.mark.parametrize("explicit", [False, True], ids=["start", "explicit"])
def test_a_token_that_attends_to_a_memory(name: str, explicit: bool) -> None:
    """The cache is full, so that nothing is placed in it; the query's own position is parsed."""
    make, encodings = ENCODINGS[name]
    attention = layer(make())
    memory = attention.remember(tokens(PROMPT))
    for step in range(2):  # a plan is made
        attention(tokens(), query_position=step, cache=memory)
    for step in range(3):
        with calls() as counts:
            attention(tokens(), query_position=torch.tensor([step]) if explicit else step, cache=memory)
        assert counts == once(place=0, check_terms=encodings)


@torch.no_grad()
@every_cache
def test_a_token_through_the_conformers_layer(cache: str) -> None:
    attention, held = RelPositionMultiHeadedAttention(HEADS * WIDTH, HEADS), CACHES[cache]()
    attention(tokens(PROMPT), is_causal=True, cache=held)
    with calls() as counts:
        attention(tokens(), is_causal=True, cache=held)
    assert counts == once(position_of=0)


@torch.no_grad()
@every_encoding
def test_a_pass_without_a_cache(name: str) -> None:
    """Both positions are starts, which need no parsing."""
    make, encodings = ENCODINGS[name]
    attention = layer(make())
    with calls() as counts:
        attention(tokens(PROMPT), is_causal=True, window=(3, 0))
    assert counts == once(place=0, position_of=0, check_terms=encodings, check_window=1)


@torch.no_grad()
def test_every_call_is_counted() -> None:
    """What is asked a second time is seen, whoever asks."""
    attention, held = layer(ShawEmbedding(WIDTH, 3)), KVCache()
    positions = torch.arange(PROMPT)
    with calls() as counts:
        for start in (0, PROMPT):
            attention(tokens(PROMPT), is_causal=True, window=(9, 0), query_position=positions + start, cache=held)
    assert counts == dict.fromkeys(COUNTED, 2)
    with calls() as counts:
        limits(True, check_window((2, 0)))
        check_window(None)
    assert counts == {"limits": 1, "check_window": 2}
