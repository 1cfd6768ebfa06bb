"""What the dense backend copies and widens: a decoder's token reads the cache and the tables, and writes neither."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import relattn
from relattn.backends.dense import products
from relattn.functional import lowered
from relattn.score.positions import Positions, RowMemo, Span

HEADS, WIDTH, KEYS, CAPACITY = 4, 16, 96, 128

ENCODINGS: dict[str, Callable[[], relattn.RelativeEncoding]] = {
    "relative": lambda: relattn.RelativeEmbedding(WIDTH, CAPACITY, causal=True),
    "relative, exactly full": lambda: relattn.RelativeEmbedding(WIDTH, KEYS, causal=True),
    "relative, a table a head": lambda: relattn.RelativeEmbedding(WIDTH, CAPACITY, num_heads=HEADS, causal=True),
    "relative, clamped": lambda: relattn.RelativeEmbedding(WIDTH, KEYS // 2, num_heads=HEADS, beyond="clamp"),
    "relative, zero": lambda: relattn.RelativeEmbedding(WIDTH, KEYS // 2, num_heads=HEADS, beyond="zero"),
    "shaw": lambda: relattn.ShawEmbedding(WIDTH, 5, num_heads=HEADS),
    "t5": lambda: relattn.T5Bias(HEADS, bidirectional=False),
    "alibi": lambda: relattn.AlibiBias(HEADS),
    "transformer-xl": lambda: relattn.TransformerXLEmbedding(HEADS, WIDTH),
    "rotary": lambda: relattn.RotaryEmbedding(WIDTH),
    "relative + t5": lambda: (
        relattn.RelativeEmbedding(WIDTH, CAPACITY, num_heads=HEADS, causal=True) + relattn.T5Bias(HEADS)
    ),
}


class Written(TorchDispatchMode):
    """The most elements that any operation writes into a tensor of its own, with its name."""

    def __init__(self) -> None:
        super().__init__()
        self.most: tuple[int, str] = 0, "nothing"

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        held = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, Tensor)}
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in held:
                self.most = max(self.most, (tensor.numel(), str(function)))
        return result


class Kept:
    """The rows of one span, computed once, as a cache keeps them."""

    def rows(self, owner: object, span: Span, compute: Callable[[Span], Tensor]) -> Tensor:
        if not hasattr(self, "kept"):
            self.kept = compute(span)
        return self.kept


def cached(batch: int, dtype: torch.dtype, key_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    """One query, and keys and values that lie in a cache with room for more."""
    held = torch.randn(2, batch, key_heads, CAPACITY, WIDTH).to(dtype)[:, :, :, :KEYS]
    return torch.randn(batch, HEADS, 1, WIDTH).to(dtype), held[0], held[1]


def decoded(encoding: relattn.RelativeEncoding, inputs: tuple[Tensor, Tensor, Tensor], memo: RowMemo) -> Tensor:
    """The attention of the newest token, as a module with a cache calls it."""
    query, key, value = inputs
    positions = Positions(KEYS - 1, 0, 1, KEYS, query.device, None, 0, memo)
    options: dict[str, Any] = {"is_causal": True, "query_position": KEYS - 1, "backend": "dense"}
    terms = lowered(encoding, query, key, positions)
    return relattn.relative_attention(query, key, value, encoding=terms, enable_gqa=True, **options)


@pytest.mark.parametrize("key_heads", [1, 2, HEADS])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ENCODINGS)
def test_one_token_copies_no_keys_and_no_table(name: str, batch: int, key_heads: int) -> None:
    encoding, inputs, memo = ENCODINGS[name](), cached(batch, torch.float32, key_heads), Kept()
    with torch.no_grad():
        decoded(encoding, inputs, memo)  # what the encoding computes once is kept from here on
        with Written() as written:
            decoded(encoding, inputs, memo)
    scores = batch * HEADS * KEYS
    assert written.most[0] <= scores < batch * HEADS * KEYS * WIDTH, written.most


def test_one_token_meets_relative_queries_in_linear_memory() -> None:
    """Every key meets its own row; a strip for all diagonals would be quadratic in the keys."""
    query, key, value = cached(2, torch.float32)
    table = relattn.OffsetTable(torch.randn(HEADS, CAPACITY, WIDTH), -(CAPACITY - 1))
    with torch.no_grad(), Written() as written:
        relattn.relative_attention(
            query, key, value, is_causal=True, query_position=KEYS - 1, backend="dense",
            encoding=relattn.ScoreTerms(relative_queries=table),
        )  # fmt: skip
    assert written.most[0] <= key.numel(), written.most


SHAPES = list(product((1, 3), (1, 2, 4), (1, 2)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("at_once", [0, 1, 2, 3, 5])
def test_widening_a_few_heads_at_a_time_changes_nothing(monkeypatch, dtype: torch.dtype, at_once: int) -> None:
    """Scores and sums, but for the order of sums; at_once: the heads' worth of bytes that may be widened."""
    for batch, key_heads, queries in SHAPES:
        query = torch.randn(batch, HEADS, queries, WIDTH)
        weights = torch.randn(batch, HEADS, queries, KEYS)
        held = torch.randn(batch, key_heads, CAPACITY, WIDTH).to(dtype)[:, :, :KEYS]
        for multiply, left in ((products.key_products, query), (products.value_sums, weights)):
            answers = []
            for allowed in (2**40, at_once * KEYS * WIDTH * 4):
                monkeypatch.setattr(products, "WIDENED", allowed)
                with torch.no_grad():
                    answers.append(multiply(left, held))
            whole, parts = answers
            eps = torch.finfo(whole.dtype).eps
            torch.testing.assert_close(parts, whole, rtol=eps, atol=KEYS * eps * float(whole.abs().max()))


@pytest.mark.parametrize("heads_at_once", [1, 2, 8])
def test_no_more_is_widened_than_allowed(monkeypatch, heads_at_once: int) -> None:
    query, key, value = cached(3, torch.bfloat16)
    allowed = heads_at_once * KEYS * WIDTH
    monkeypatch.setattr(products, "WIDENED", 4 * allowed)
    with torch.no_grad(), Written() as written:
        relattn.relative_attention(
            query, key, value, encoding=relattn.AlibiBias(HEADS), query_position=KEYS - 1, backend="dense"
        )
    assert written.most[0] <= max(allowed, 3 * HEADS * KEYS), written.most
