"""The checks of plain values: what they take, NumPy's integers among it, and what they give back."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from relattn import (
    AlibiBias,
    DisentangledEmbedding,
    KerpleBias,
    KeyQueryEmbedding,
    OffsetTable,
    RelativeEmbedding,
    RelativeEncoding,
    RotaryEmbedding,
    SandwichBias,
    ScoreTerms,
    ShawEmbedding,
    T5Bias,
    TransformerXLEmbedding,
    attention_weights,
    explain,
    relative_attention,
)
from relattn.checks.positions import check_window, position_of
from relattn.checks.values import (
    as_finite,
    as_int,
    came,
    check_base,
    check_buckets,
    check_positive,
    check_scale,
    check_sides,
    check_size,
    check_slopes,
)
from relattn.nn import KVCache, RelativeMultiheadAttention, RelPositionMultiHeadedAttention
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.offsets import alibi_slopes, inverse_frequencies, sinusoids, t5_buckets

INTEGERS = [np.int64, np.int8, np.uint16, int]


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_come_back_as_ints(kind: Any) -> None:
    for given in (check_size("n", kind(4)), as_int(kind(4)), check_positive("n", kind(4)), as_finite(kind(4))):
        assert type(given) is int
        assert given == 4
    assert check_buckets(kind(8), kind(16), True) == (8, 16)
    assert type(check_base(kind(16))) is float


@pytest.mark.parametrize("value", [True, np.bool_(True), 4.0, np.float64(4), "4", None, np.array(4), np.array([4])])
def test_what_is_no_integer(value: Any) -> None:
    assert as_int(value) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, -(10**400), True, "1", None, np.float32("inf")])
def test_what_is_no_finite_number(value: Any) -> None:
    assert as_finite(value) is None


def test_a_float_of_numpy_comes_back_as_a_float() -> None:
    for given in (as_finite(np.float32(0.5)), as_finite(np.float64(0.5))):
        assert type(given) is float
        assert given == 0.5


def test_how_a_message_shows_what_came() -> None:
    assert [came(one) for one in (4, "4", np.int64(4), 2**64 - 1)] == ["4", "'4'", repr(np.int64(4)), str(2**64 - 1)]
    assert [came(one) for one in (2**64, -(2**70), 10**5000)] == [
        "an int of 65 bits", "an int of 71 bits", "an int of 16610 bits",
    ]  # fmt: skip


ENCODINGS: dict[Any, dict[str, Any]] = {
    RelativeEmbedding: {"head_dim": 4, "max_length": 5, "num_heads": 2},
    ShawEmbedding: {"head_dim": 4, "max_distance": (2, 3), "num_heads": 2},
    TransformerXLEmbedding: {"num_heads": 2, "head_dim": 4, "embed_dim": 6},
    T5Bias: {"num_heads": 2, "num_buckets": 8, "max_distance": 20},
    AlibiBias: {"num_heads": 2},
    KerpleBias: {"num_heads": 2},
    SandwichBias: {"num_heads": 2, "width": 6},
    RotaryEmbedding: {"head_dim": 4, "rotary_dim": 2, "base": 100},
    KeyQueryEmbedding: {"head_dim": 4, "max_length": 5, "num_heads": 2},
    DisentangledEmbedding: {"num_heads": 2, "head_dim": 4, "embed_dim": 3, "max_distance": 7, "num_buckets": 4},
}


def of_numpy(value: Any) -> Any:
    return tuple(map(np.int64, value)) if isinstance(value, tuple) else np.int64(value)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_encodings_keep_plain_numbers(encoding: Any) -> None:
    """The same module as from ints, without a number of NumPy left in it."""
    plain = encoding(**ENCODINGS[encoding])
    made = encoding(**{name: of_numpy(value) for name, value in ENCODINGS[encoding].items()})
    assert repr(made) == repr(plain)
    assert not [name for name, value in vars(made).items() if isinstance(value, np.generic)]
    assert [p.shape for p in made.parameters()] == [p.shape for p in plain.parameters()]


def test_modules_and_caches_keep_plain_numbers() -> None:
    two, six = np.int64(2), np.int64(6)
    layer = RelativeMultiheadAttention(six, two, num_kv_heads=two, head_dim=two, kdim=six, vdim=six)
    conformer, cache = RelPositionMultiHeadedAttention(six, two), KVCache(six)
    x = torch.zeros(1, 3, 6)
    layer(x, cache=cache)
    cache.forget(np.int64(1))
    cache.truncate(np.int64(2))
    assert (cache.first_position, cache.next_position) == (1, 2)
    for made in (layer, layer.k_proj, layer.v_proj, conformer, conformer.linear_q, cache):
        assert not [name for name, value in vars(made).items() if isinstance(value, np.generic)]


@pytest.mark.parametrize("kind", INTEGERS)
def test_positions_and_windows(kind: Any) -> None:
    """A start and a side of the window of any integer kind, in the function, the layer and the explanation."""
    query, key = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    encoding, layer, x = ShawEmbedding(4, 2), RelativeMultiheadAttention(8, 2, AlibiBias(2)), torch.randn(1, 3, 8)
    plain: Any = {"query_position": 100, "key_position": 98, "window": (2, 1)}
    given: Any = {"query_position": kind(100), "key_position": kind(98), "window": (kind(2), kind(1))}
    for function in (relative_attention, attention_weights):
        expected = function(query, key, key, encoding=encoding, **plain)
        torch.testing.assert_close(function(query, key, key, encoding=encoding, **given), expected)
    assert explain(query, key, key, **given) == explain(query, key, key, **plain)
    torch.testing.assert_close(layer(x, **given), layer(x, **plain))
    torch.testing.assert_close(  # a window beside a cache, and a memory's start
        layer(x, is_causal=True, window=(kind(1), None), cache=KVCache()), layer(x, is_causal=True, window=(1, None))
    )
    memory = layer.remember(x, key_position=kind(98))
    assert type(memory.key_position) is int
    torch.testing.assert_close(
        layer(x, query_position=kind(100), cache=memory), layer(x, query_position=100, key=x, key_position=98)
    )
    run = position_of("query_position", kind(100), (1,), 3, query.device)
    assert isinstance(run, ContiguousPositions)
    assert type(run.start) is int
    window = check_window((kind(2), kind(1)))
    assert window == (2, 1)
    assert [type(side) for side in window] == [int, int]


@pytest.mark.parametrize(
    "kind", [np.float32, np.float64, np.int64, float, np.array, torch.tensor], ids=lambda kind: kind.__name__
)
def test_slopes_are_plain_floats(kind: Any) -> None:
    """Of a list of numbers of any kind, or of an array or a tensor of them."""
    slopes = kind([2, 1]) if kind in (np.array, torch.tensor) else [kind(2), kind(1)]
    for given in (
        check_slopes(slopes, 2),
        AlibiBias(2, slopes).slopes,
        AlibiBias(2, slopes, learned=True).given_slopes,
    ):
        assert given == (2.0, 1.0)
        assert [type(slope) for slope in given] == [float, float]


def test_sides_are_plain_ints() -> None:
    for given in (np.int64(2), (2, 2), [np.int32(2), 2]):
        sides = check_sides(given)
        assert sides == (2, 2)
        assert [type(side) for side in sides] == [int, int]


def test_scalings_keep_plain_numbers() -> None:
    scaling = {
        "rope_type": "longrope", "short_factor": [np.int64(1)], "long_factor": [np.float64(2)],
        "attention_factor": None, "original_max_position_embeddings": np.int64(8), "factor": np.float64(4),
    }  # fmt: skip
    kept = RotaryEmbedding(2, scaling=scaling).scaling
    assert kept == scaling
    assert repr(kept) == (
        "{'rope_type': 'longrope', 'short_factor': [1], 'long_factor': [2.0], 'attention_factor': None, "
        "'original_max_position_embeddings': 8, 'factor': 4.0}"
    )
    scaling["short_factor"][0] = 7  # the caller's list, no longer the encoding's
    assert kept["short_factor"] == [1]


def test_the_functions_of_an_offset() -> None:
    offsets, two = np.arange(-3, 4), np.int64(2)
    np.testing.assert_array_equal(alibi_slopes(two), alibi_slopes(2))
    np.testing.assert_array_equal(inverse_frequencies(two, np.int64(50)), inverse_frequencies(2, 50))
    np.testing.assert_array_equal(sinusoids(offsets, two), sinusoids(offsets, 2))
    given, plain = {"num_buckets": np.int64(8), "max_distance": np.int64(9)}, {"num_buckets": 8, "max_distance": 9}
    np.testing.assert_array_equal(t5_buckets(offsets, **given), t5_buckets(offsets, **plain))


def test_the_first_offset_of_a_table() -> None:
    """Also where the call records a gradient, and its numbers go through an operator."""
    values = torch.randn(1, 13, 8, requires_grad=True)
    table, same = OffsetTable(values, np.int64(-6)), OffsetTable(values, -6)  # pyright: ignore[reportArgumentType]
    assert type(table.first) is int
    tensors = [torch.randn(1, 2, 6, 8) for _ in range(3)]
    ours, expected = (
        relative_attention(*tensors, encoding=ScoreTerms(relative_keys=one), backend="blocks") for one in (table, same)
    )
    assert ours.requires_grad and torch.equal(ours, expected)


def test_a_scale_is_a_float() -> None:
    """Every finite int is one, also beyond 64 bits, where an operator takes it."""
    assert type(check_scale(2**70)) is float
    tensors = [torch.zeros(1, 2, 6, 8, requires_grad=True) for _ in range(3)]
    with FlopCounterMode(display=False):
        assert relative_attention(*tensors, scale=10**20, backend="blocks").count_nonzero() == 0


class Configured(RelativeEncoding):
    """An encoding that keeps an object without a text of its own."""

    def __init__(self, num_heads: int, config: object, *, kind: str = "a") -> None:
        super().__init__()
        self.num_heads, self.config, self.kind = num_heads, config, kind

    def terms(self, query: torch.Tensor, key: torch.Tensor, positions: Any) -> Any:
        raise AssertionError


def test_an_encoding_prints_what_prints_as_text() -> None:
    """No address: a copy of it prints the same, and takes a copy of its cache."""
    assert repr(Configured(2, object())) == "Configured(2, kind='a')"
