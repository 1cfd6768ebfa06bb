"""What the dense backend copies and widens: a decoder's token reads the cache and the tables, and writes neither."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import relattn
from relattn import call
from relattn.backends import dense
from relattn.backends.dense import products
from relattn.nn.kept_rows import KeptRows
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.places import Places
from relattn.positions.positions import Positions, RowMemo, Span
from tests.contract.cases import CASES
from tests.contract.check import check
from tests.contract.settings import Setting
from tests.contract.subject import make_subject
from tests.made import Made

pytest_plugins = ["tests.contract.fresh"]

HEADS, WIDTH, KEYS, CAPACITY = 4, 16, 96, 128

POSITIONS: dict[str, dict[str, Any]] = {
    "starts": {"query_position": 7, "key_position": 0},
    "explicit": {
        "query_position": np.array([9, 3, 12, 6]),
        "key_position": np.array([[0, 2, 3, 1, 4, 7, 5, 6, 11, 9, 8], [1, 0, 4, 2, 6, 3, 7, 5, 8, 12, 10]]),
    },
}

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


def cached(batch: int, dtype: torch.dtype, key_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    """One query, and keys and values that lie in a cache with room for more."""
    held = torch.randn(2, batch, key_heads, CAPACITY, WIDTH).to(dtype)[:, :, :, :KEYS]
    return torch.randn(batch, HEADS, 1, WIDTH).to(dtype), held[0], held[1]


def decoded(encoding: relattn.RelativeEncoding, inputs: tuple[Tensor, Tensor, Tensor], memo: RowMemo) -> Tensor:
    """The attention of the newest token, as a module with a cache calls it."""
    query, key, value = inputs
    positions = Positions(ContiguousPositions(KEYS - 1), ContiguousPositions(0), 1, KEYS, query.device, None, 0, memo)
    tensors = call.checked(query, key, value, enable_gqa=True)
    options = call.Options(backend="dense")
    return call.request(*tensors, Places(positions), encoding, options, keys_are_prepared=True).run()[0]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("key_heads", [1, 2, HEADS])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ENCODINGS)
def test_one_token_copies_no_keys_and_no_table(name: str, batch: int, key_heads: int) -> None:
    encoding, inputs, memo = ENCODINGS[name](), cached(batch, torch.float32, key_heads), KeptRows()
    with torch.no_grad():
        decoded(encoding, inputs, memo)  # what the encoding computes once is kept from here on
        with Made() as written:
            decoded(encoding, inputs, memo)
    scores, rows = batch * HEADS * KEYS, HEADS * Span(1 - KEYS, KEYS).rounded().count  # a token asks for rounded spans
    assert written.most[0] <= max(scores, rows) < batch * HEADS * KEYS * WIDTH, written.most


def test_one_token_meets_relative_queries_in_linear_memory() -> None:
    """Every key meets its own row; a strip for all diagonals would be quadratic in the keys."""
    query, key, value = cached(2, torch.float32)
    table = relattn.OffsetTable(torch.randn(HEADS, CAPACITY, WIDTH), -(CAPACITY - 1))
    with torch.no_grad(), Made() as written:
        relattn.relative_attention(
            query, key, value, is_causal=True, query_position=KEYS - 1, backend="dense",
            encoding=relattn.ScoreTerms(relative_queries=table),
        )  # fmt: skip
    assert written.most[0] <= key.numel(), written.most


@pytest.mark.one_in(4)
@pytest.mark.parametrize("place", ["starts", "explicit"])
@pytest.mark.parametrize("queries", [2, 31])
def test_few_queries_meet_relative_queries_in_linear_memory(queries: int, place: str) -> None:
    """Four times the keys: four times the elements, in the backward pass as well."""
    most = []
    for keys in (512, 2048):
        tensors = [torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for length in (queries, keys, keys)]
        values = torch.randn(HEADS, keys, WIDTH, requires_grad=True)
        explicit = {"query_position": torch.arange(keys - queries, keys), "key_position": torch.arange(keys)}
        positions: dict[str, Any] = explicit if place == "explicit" else {"query_position": keys - queries}
        encoding = relattn.ScoreTerms(relative_queries=relattn.OffsetTable(values, -(keys - 1)))
        with Made() as written:
            output = relattn.relative_attention(
                *tensors, is_causal=True, encoding=encoding, backend="dense", **positions
            )
            output.sum().backward()
        most.append(written.most)
    assert most[1][0] <= 4 * most[0][0], most


@pytest.mark.one_in(3)
@pytest.mark.parametrize("place", POSITIONS)
@pytest.mark.parametrize("name", ["terms_all", "terms_all_error", "key_query", "disentangled"])
def test_keys_that_come_a_block_at_a_time_have_the_same_scores(
    name: str, place: str, rng: np.random.Generator, monkeypatch
) -> None:
    """Four queries and eleven keys, whose last block is a shorter one: against the oracles, gradients included."""
    monkeypatch.setattr(dense, "KEYS_AT_ONCE", 4)
    setting = Setting(
        batch=2, num_heads=4, num_kv_heads=2, query_length=4, key_length=11, head_dim=4, value_dim=3, is_causal=True,
        seed=int(rng.integers(2**32)), **POSITIONS[place],
    )  # fmt: skip
    widths = []
    strip = dense._strip_products

    def watched(key, table, positions):
        widths.append(key.shape[2])
        return strip(key, table, positions)

    monkeypatch.setattr(dense, "_strip_products", watched)
    check(make_subject(CASES[name], setting), "dense", "float64")
    assert widths[:3] == [4, 4, 3]


SHAPES = list(product((1, 3), (1, 2, 4), (1, 2)))


@pytest.mark.one_in(5)
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
    with torch.no_grad(), Made() as written:
        relattn.relative_attention(
            query, key, value, encoding=relattn.AlibiBias(HEADS), query_position=KEYS - 1, backend="dense"
        )
    assert written.most[0] <= max(allowed, 3 * HEADS * KEYS), written.most


@pytest.mark.parametrize("grad", [True, False])
def test_no_key_in_reach_gives_zeros(grad: bool) -> None:
    """The strip of biases has a column, though no key is left."""
    query, key = torch.randn(1, 4, 24, 8, requires_grad=grad), torch.randn(1, 4, 17, 8)
    with torch.set_grad_enabled(grad):
        output = relattn.relative_attention(
            query, key, key, encoding=relattn.T5Bias(4), is_causal=True, key_position=37, backend="dense"
        )
    assert output.eq(0).all()
