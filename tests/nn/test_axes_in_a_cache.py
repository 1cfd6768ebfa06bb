"""Positions on other axes through a cache, in chunks of any sizes: the numbers of one full pass."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import (
    GridBias,
    GridEmbedding,
    GridPositions,
    LogGridBias,
    RelativeEmbedding,
    RelativeEncoding,
    RotaryEmbedding,
    ShawEmbedding,
    T5Bias,
    TransformerXLEmbedding,
    grid,
)
from relattn.nn import KVCache, RelativeMultiheadAttention
from tests.bad_input.refusal import refused
from tests.contract.calls import assert_equal, chunk_sizes, gradients

BATCH, HEADS, WIDTH, FEATURES = 2, 2, 4, 6
SIZES, PREFIX_TOKENS = (3, 4), 2
LENGTH = PREFIX_TOKENS + 12

ENCODINGS: dict[str, Callable[[], RelativeEncoding]] = {
    "grid_bias": lambda: GridBias((9, 9), HEADS, extra=3),
    "grid_embedding": lambda: GridEmbedding(WIDTH, (9, 9), num_heads=HEADS),
    "log_grid": lambda: LogGridBias(SIZES, HEADS, hidden=4),
    "decomposed": lambda: RelativeEmbedding(WIDTH, 9).on("y") + RelativeEmbedding(WIDTH, 9).on("x"),
    "rope on x": lambda: RotaryEmbedding(WIDTH).on("x"),
    "txl on y": lambda: TransformerXLEmbedding(HEADS, WIDTH).on("y") + ShawEmbedding(WIDTH, 2).on("x"),
    "all of them": lambda: (
        RelativeEmbedding(WIDTH, 20)
        + GridBias((9, 9), HEADS, extra=3)
        + ShawEmbedding(WIDTH, 1).on("y")
        + T5Bias(HEADS).on("x")
    ),
}
every_encoding = pytest.mark.parametrize("name", ENCODINGS)


def layer_of(name: str, backend: str = "dense") -> RelativeMultiheadAttention:
    """A layer of float64 whose tables are random numbers of size 1."""
    layer = RelativeMultiheadAttention(FEATURES, HEADS, ENCODINGS[name](), head_dim=WIDTH, backend=backend).double()
    with torch.no_grad():
        for parameter in layer.encoding.parameters():
            parameter.normal_()
    return layer


def inputs(length: int = LENGTH, **keywords: Any) -> Tensor:
    return torch.randn(BATCH, length, FEATURES, dtype=torch.float64, **keywords)


Where = Callable[[int, int], Mapping[str, Any]]
"""Where the tokens first .. first + length - 1 stand."""


def on_a_grid(first: int, length: int) -> Mapping[str, Any]:
    return grid(*SIZES, prefix_tokens=PREFIX_TOKENS, first=first, length=length)


def explicit(rng: np.random.Generator, *batch: int) -> Where:
    """Any explicit positions."""
    positions = {axis: torch.from_numpy(rng.integers(0, 6, (*batch, LENGTH))) for axis in ("y", "x")}
    return lambda first, length: {axis: every[..., first : first + length] for axis, every in positions.items()}


def of_one_each(rng: np.random.Generator) -> Where:
    """Explicit positions per batch element on y, digits on x, the sequence by its name."""
    on_y = explicit(rng, BATCH)
    x = GridPositions(((1, 2, 5),), start=1)

    def where(first: int, length: int) -> Mapping[str, Any]:
        return {"y": on_y(first, length)["y"], "x": x.part(slice(first, first + length))}

    return where


WHERES: dict[str, Callable[[np.random.Generator], Where]] = {
    "grid": lambda rng: on_a_grid,
    "explicit": explicit,
    "explicit per batch": lambda rng: explicit(rng, BATCH),
    "one of each": of_one_each,
}


def decode(
    layer: RelativeMultiheadAttention, x: Tensor, sizes: list[int], cache: KVCache, where: Where, **keywords: Any
) -> Tensor:
    """The layer over x in chunks, through the cache; x starts at the cache's next slot."""
    pieces, begun = [], cache.next_position
    for size in sizes:
        first = cache.next_position
        chunk = x[:, first - begun : first - begun + size]
        pieces.append(layer(chunk, is_causal=True, cache=cache, query_position=where(first, size), **keywords))
    return torch.cat(pieces, dim=1)


def full(layer: RelativeMultiheadAttention, x: Tensor, where: Where, **keywords: Any) -> Tensor:
    places = where(0, x.shape[1])
    return layer(x, is_causal=True, query_position=places, key_position=places, **keywords)


@pytest.mark.one_in(8)
@every_encoding
@pytest.mark.parametrize("kind", WHERES)
@pytest.mark.parametrize("grad", [True, False])
def test_chunks_are_the_full_pass(name: str, kind: str, grad: bool, rng: np.random.Generator) -> None:
    layer, x, where = layer_of(name), inputs(requires_grad=grad), WHERES[kind](rng)
    with torch.set_grad_enabled(grad):
        whole = full(layer, x, where)
        for sizes in ([LENGTH], [1] * LENGTH, chunk_sizes(rng, LENGTH)):
            cache = KVCache()
            chunked = decode(layer, x, sizes, cache, where)
            assert_equal(chunked, whole)
            assert cache.length == LENGTH
    if grad:
        leaves = [x, *layer.parameters()]
        assert_equal(gradients((chunked,), leaves), gradients((whole,), leaves))


def test_chunks_in_tiles(rng: np.random.Generator) -> None:
    layer, x = layer_of("all of them", "blocks"), inputs()
    for kind in WHERES:
        where = WHERES[kind](rng)
        assert_equal(decode(layer, x, chunk_sizes(rng, LENGTH), KVCache(), where), full(layer, x, where))


def test_a_grid_is_kept_as_digits_and_anything_else_as_a_list(rng: np.random.Generator) -> None:
    layer, x, cache = layer_of("grid_bias"), inputs(), KVCache()
    with torch.no_grad():
        decode(layer, x, [3, 4, 2, 5], cache, on_a_grid)
        assert cache.beside == {
            axis: GridPositions(d.terms, prefix_tokens=PREFIX_TOKENS) for axis, d in grid(*SIZES).items()
        }
        assert cache.key_position == {"sequence": 0, **cache.beside}
        another = KVCache()
        where = explicit(rng)
        decode(layer, x, [3, 4, 7], another, where)
    for axis, place in another.beside.items():
        assert torch.equal(place.expand(LENGTH, x.device), where(0, LENGTH)[axis].expand(BATCH, -1))


def test_explicit_positions_after_digits_make_all_explicit(rng: np.random.Generator) -> None:
    """Of a grid without prefix tokens: the digits so far are written down."""
    layer, x = layer_of("all of them"), inputs(9)
    explicit = torch.from_numpy(rng.integers(0, 5, (2, BATCH, 5)))
    first = grid(2, 2)
    rest = {"y": explicit[0], "x": explicit[1]}
    whole = {
        axis: torch.cat([first[axis].expand(4, x.device).expand(BATCH, -1), rest[axis]], dim=1) for axis in ("y", "x")
    }
    with torch.no_grad():
        cache = KVCache()
        pieces = [layer(x[:, :4], is_causal=True, cache=cache, query_position=first)]
        pieces.append(layer(x[:, 4:], is_causal=True, cache=cache, query_position=rest))
        expected = layer(x, is_causal=True, query_position=whole, key_position=whole)
    assert_equal(torch.cat(pieces, dim=1), expected)


def test_another_grid_after_a_grid(rng: np.random.Generator) -> None:
    """Two pictures in one text: the second grid starts anew, and nobody takes it for a part of the first."""
    layer, x = layer_of("decomposed"), inputs(8)
    whole = {axis: torch.cat([d.expand(4, x.device)] * 2) for axis, d in grid(2, 2).items()}
    with torch.no_grad():
        cache = KVCache()
        pieces = [layer(c, is_causal=True, cache=cache, query_position=grid(2, 2)) for c in x.split(4, dim=1)]
        expected = layer(x, is_causal=True, query_position=whole, key_position=whole)
    assert_equal(torch.cat(pieces, dim=1), expected)


def test_starts_of_runs(rng: np.random.Generator) -> None:
    """An int or a 0-d tensor for each chunk, counted on from within it."""
    layer, x = layer_of("decomposed"), inputs(7)
    starts = [(0, torch.tensor(3), 3), (2, 0, 4)]
    whole = {
        "y": torch.cat([torch.arange(n) + int(y) for y, _, n in starts]),
        "x": torch.cat([torch.arange(n) + int(x) for _, x, n in starts]),
    }
    with torch.no_grad():
        cache, pieces = KVCache(), []
        for chunk, (a, b, _) in zip(x.split([3, 4], dim=1), starts, strict=True):
            pieces.append(layer(chunk, is_causal=True, cache=cache, query_position={"y": a, "x": b}))
        expected = layer(x, is_causal=True, query_position=whole, key_position=whole)
    assert_equal(torch.cat(pieces, dim=1), expected)


@pytest.mark.one_in(6)
@every_encoding
@pytest.mark.parametrize("kind", WHERES)
def test_a_rolling_cache_is_a_window(name: str, kind: str, rng: np.random.Generator) -> None:
    layer, x, where = layer_of(name), inputs(), WHERES[kind](rng)
    with torch.no_grad():
        for max_length in (1, 4, LENGTH):
            cache, sizes = KVCache(max_length), chunk_sizes(rng, LENGTH)
            whole = full(layer, x, where, window=(max_length - 1, 0))
            assert_equal(decode(layer, x, sizes, cache, where), whole)
            assert cache.length <= max_length - 1 + sizes[-1]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", WHERES)
def test_what_was_truncated_comes_again(kind: str, rng: np.random.Generator) -> None:
    """Speculative decoding: a draft is taken back, its tokens stood elsewhere."""
    layer, x, where = layer_of("all of them"), inputs(), WHERES[kind](rng)
    with torch.no_grad():
        whole = full(layer, x, where)
        for length in (0, 1, 5, 9):
            cache = KVCache()
            decode(layer, x[:, :9], [4, 5], cache, where)
            cache.truncate(length)
            assert_equal(decode(layer, x[:, length:], [2, LENGTH - length - 2], cache, where), whole[:, length:])


@pytest.mark.one_in(8)
@pytest.mark.parametrize("kind", WHERES)
def test_what_was_forgotten_is_gone(kind: str, rng: np.random.Generator) -> None:
    layer, x, where = layer_of("all of them"), inputs(), WHERES[kind](rng)
    with torch.no_grad():
        for first in (1, 2, 6, 9):
            cache = KVCache()
            decode(layer, x[:, :9], [9], cache, where)
            cache.forget(first)
            found = decode(layer, x[:, 9:], [2, 3], cache, where)
            hidden = torch.arange(LENGTH) >= first
            assert_equal(found, full(layer, x, where, key_mask=hidden.expand(BATCH, -1))[:, 9:])


@pytest.mark.parametrize("kind", WHERES)
def test_rows_of_a_batch_move(kind: str, rng: np.random.Generator) -> None:
    """Beams: their positions move with them."""
    layer, x, where = layer_of("all of them"), inputs(), WHERES[kind](rng)
    index = torch.tensor([1, 1, 0])

    def moved(first: int, length: int) -> Mapping[str, Any]:
        places = where(first, length)
        return {a: p[index] if isinstance(p, Tensor) and p.dim() == 2 else p for a, p in places.items()}

    with torch.no_grad():
        cache = KVCache()
        decode(layer, x[:, :6], [6], cache, where)
        cache.reorder(index)
        found = decode(layer, x[index, 6:], [1, 7], cache, moved)
        assert_equal(found, full(layer, x[index], moved)[:, 6:])


@pytest.mark.one_in(4)
@every_encoding
def test_a_memory_is_what_it_is_without_a_cache(name: str, rng: np.random.Generator) -> None:
    """remember: the memory stands on a grid, the queries on its cells or anywhere."""
    layer, memory, x = layer_of(name), inputs(), inputs(5)
    for where in (on_a_grid, explicit(rng, BATCH)):
        for query_position in (grid(*SIZES, first=4, length=5), explicit(rng, BATCH)(0, 5)):
            places = where(0, LENGTH)
            cache = layer.remember(memory, key_position=places)
            expected = layer(x, memory, query_position=query_position, key_position=places)
            for _ in range(2):
                assert_equal(layer(x, cache=cache, query_position=query_position), expected)


def test_appending_by_hand(rng: np.random.Generator) -> None:
    """Without a layer: the cache gives key_position as a call takes it."""
    from relattn import relative_attention

    encoding = GridBias(SIZES, HEADS)
    with torch.no_grad():
        encoding.bias.normal_()
    query, key, value = torch.randn(3, BATCH, HEADS, 12, WIDTH).unbind(0)
    whole = grid(*SIZES)
    cache = KVCache()
    for first, length in ((0, 5), (5, 7)):
        place = grid(*SIZES, first=first, length=length)
        keys, values = cache.append(key[:, :, first : first + length], value[:, :, first : first + length], place)
    assert cache.key_position == {"sequence": 0, **{axis: GridPositions(d.terms) for axis, d in whole.items()}}
    found = relative_attention(
        query, keys, values, encoding=encoding, query_position=whole, key_position=cache.key_position
    )
    expected = relative_attention(query, key, value, encoding=encoding, query_position=whole, key_position=whole)
    torch.testing.assert_close(found, expected)


def test_copies_keep_the_places(rng: np.random.Generator) -> None:
    layer, x = layer_of("all of them"), inputs()
    for kind in WHERES:
        where = WHERES[kind](rng)
        with torch.no_grad():
            cache = KVCache()
            decode(layer, x[:, :6], [3, 3], cache, where)
            other = copy.deepcopy(cache)
            later = decode(layer, x[:, 6:], [LENGTH - 6], cache, where)
            assert_equal(decode(layer, x[:, 6:], [1, LENGTH - 7], other, where), later)


# --- what is refused, and leaves the cache as it was


def test_other_axes_than_before_are_refused() -> None:
    layer, x, cache = layer_of("decomposed"), inputs(), KVCache()
    with torch.no_grad():
        layer(x[:, :4], is_causal=True, cache=cache, query_position=on_a_grid(0, 4))
        for more, said in (
            ({"y": 0, "x": 0, "t": 0}, "['t', 'x', 'y']"),
            ({"y": 0}, "['y']"),
            (None, "[]"),
        ):
            with refused(
                ValueError,
                f"query_position: got the axes {said} for the new tokens, and the cache holds keys on ['x', 'y']; "
                "expected the same axes with every chunk; start a new cache for others",
            ):
                layer(x[:, 4:6], is_causal=True, cache=cache, query_position=more)
            assert (cache.length, cache.next_position) == (4, 4)
        found = decode(layer, x[:, 4:], [LENGTH - 4], cache, on_a_grid)
    assert_equal(found, full(layer, x, on_a_grid)[:, 4:])


def test_a_grid_with_prefix_tokens_goes_on_as_it_began() -> None:
    layer, x, cache = layer_of("decomposed"), inputs(), KVCache()
    with torch.no_grad():
        layer(x[:, :4], is_causal=True, cache=cache, query_position=on_a_grid(0, 4))
        for more in (on_a_grid(5, 2), {"y": 1, "x": 0}, grid(1, 2)):
            with refused(
                ValueError,
                "query_position['y']: got positions that do not go on where the cache's grid ended, which has tokens "
                "before it; expected the next part of that grid: relattn.grid(..., first=, length=)",
            ):
                layer(x[:, 4:6], is_causal=True, cache=cache, query_position=more)
        found = decode(layer, x[:, 4:], [LENGTH - 4], cache, on_a_grid)
    assert_equal(found, full(layer, x, on_a_grid)[:, 4:])


def test_a_memory_and_queries_on_other_axes_are_refused() -> None:
    layer = layer_of("decomposed")
    cache = layer.remember(inputs(), key_position=on_a_grid(0, LENGTH))
    said = "query_position: got no axis 'y', which the other side has; expected both sides on the same axes; give it "
    with refused(ValueError, said + "to both, or to neither"):
        layer(inputs(3), cache=cache)
