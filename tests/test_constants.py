"""Tensors that encodings make once: never one of a watched call, never one that gradients refuse."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from relattn import (
    AlibiBias,
    DisentangledEmbedding,
    KerpleBias,
    RelativeEncoding,
    RotaryEmbedding,
    SandwichBias,
    T5Bias,
    TransformerXLEmbedding,
    grid,
    relative_attention,
)
from relattn.encodings import alibi, angles, constants, disentangled, kerple, sandwich, t5, transformer_xl
from relattn.encodings.angles import Angles
from relattn.encodings.constants import LONG_TENSORS, SMALL_TENSORS, lru_tensor_cache
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.positions import Span

CPU = torch.device("cpu")


def counted(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device)


def test_made_once() -> None:
    """Equal arguments give the same tensor, other arguments another one."""
    made = lru_tensor_cache(SMALL_TENSORS)(counted)
    assert made(5, CPU) is made(5, CPU)
    assert made(6, CPU).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_rounded_span_has_all_offsets_and_serves_many_tokens(rng: np.random.Generator) -> None:
    """At most twice as many and one, and a few spans for a thousand tokens."""
    for _ in range(300):
        first, count = int(rng.integers(-3000, 3000)), int(rng.integers(1, 3000))
        wider = Span(first, count).rounded()
        assert isinstance(wider.first, int)
        assert wider.first <= first and first + count <= wider.first + wider.count
        assert wider.count <= 2 * count + 1
        assert wider.rounded() == wider
    assert len({Span(-token, token + 1).rounded() for token in range(1000)}) == 12
    start = torch.tensor(-7)
    assert Span(start, 8).rounded().first is start


def test_no_other_device_keeps_any() -> None:
    made = lru_tensor_cache(SMALL_TENSORS)(counted)
    assert made(5, torch.device("meta")) is not made(5, torch.device("meta"))


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (t5._buckets_of, (Span(-7, 8), CPU, 12, 41, True)),
        (alibi._paper_slopes, (12, CPU)),
        (alibi._given_slopes, ((0.5, 0.1), CPU)),
        (angles._cached_cos_sin, (Angles(8, 10000.0), (ContiguousPositions(3),), 5, (), torch.float32, CPU)),
        (disentangled._delta_of, (Span(-7, 8), CPU, 12, None, 24)),
    ],
)
def test_the_encodings_keep_theirs(make: Callable[..., Tensor], key: tuple[Any, ...]) -> None:
    assert make(*key) is make(*key)


@pytest.mark.parametrize(
    ("make", "rest", "most"),
    [
        (alibi._fixed_rows, (4, range(4), False, torch.float32, CPU), LONG_TENSORS),
        (alibi._distances, (False, CPU), LONG_TENSORS),
        (sandwich._rows, (6, 4, range(4), torch.float32, CPU), LONG_TENSORS),
        (kerple._distances, (torch.float32, CPU), LONG_TENSORS),
        (transformer_xl._sinusoids_of, (8, False, torch.float32, CPU), 1),
    ],
)
def test_few_rows_of_long_spans_are_kept(make: Callable[..., Tensor], rest: tuple[Any, ...], most: int) -> None:
    """A decoder asks for a longer span at every token: only the last ones stay in memory."""
    rows = [weakref.ref(make(-count, count, *rest)) for count in range(30, 40)]
    assert [row() is not None for row in rows] == [False] * (10 - most) + [True] * most


def of_no_parameter(encoding: RelativeEncoding, **where: Any) -> int:
    """How many tensors of positions, angles and buckets a call makes."""
    query, key, value = (torch.randn(1, 4, 12, 8) for _ in range(3))
    made: Counter[str] = Counter()

    def count(frame: Any, event: str, function: Any) -> None:
        made[getattr(function, "__name__", "")] += event == "c_call"

    sys.setprofile(count)
    try:
        relative_attention(query, key, value, encoding=encoding, **where)
    finally:
        sys.setprofile(None)
    return sum(made[name] for name in ("arange", "logspace", "bucketize", "cos", "sin"))


ON_GRID = {"query_position": grid(3, 4), "key_position": grid(3, 4)}
BY_LENGTH = {"factor": 2.0, "original_max_position_embeddings": 7}


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: AlibiBias(4), {}),
        (lambda: AlibiBias(4, slopes=[0.1, 0.2, 0.3, 0.4], signed=True), {}),
        (lambda: AlibiBias(4, learned=True), {}),
        (lambda: AlibiBias(4).on("y"), ON_GRID),
        (lambda: SandwichBias(4), {}),
        (lambda: KerpleBias(4), {}),
        (lambda: T5Bias(4), {}),
        (lambda: DisentangledEmbedding(4, 8, max_distance=9), {}),
        (lambda: DisentangledEmbedding(4, 8, max_distance=30, num_buckets=6), {}),
        (lambda: TransformerXLEmbedding(4, 8), {}),
        (lambda: RotaryEmbedding(8), {}),
        (lambda: RotaryEmbedding(8, scaling={"rope_type": "dynamic", **BY_LENGTH}), {}),
        (
            lambda: RotaryEmbedding(
                8, scaling={"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0] * 4, **BY_LENGTH}
            ),
            {},
        ),
        (lambda: RotaryEmbedding(8, sections={"y": 2, "x": 2}), ON_GRID),
    ],
)
def test_the_layers_of_a_model_make_them_once(
    make: Callable[[], RelativeEncoding], where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first layer the others make none, with encodings of their own or with that of the first."""
    first, second = make(), make()
    with monkeypatch.context() as patch:
        patch.setattr(constants, "is_intercepted", lambda tensors: True)
        assert of_no_parameter(first, **where) > 0, "the count sees them where nothing is kept"
    of_no_parameter(first, **where)
    assert [of_no_parameter(layer, **where) for layer in (second, first)] == [0, 0]


def test_a_start_that_is_a_tensor_keeps_nothing() -> None:
    """Its number may change."""
    make = lru_tensor_cache(SMALL_TENSORS)(lambda first, count, device: Span(first, count).offsets(device))
    start = torch.tensor(3)
    assert make(start, 2, CPU).tolist() == [3, 4]
    assert make(start.add_(1), 2, CPU).tolist() == [4, 5]


@pytest.mark.parametrize(
    ("encoding", "place"),
    [
        (RotaryEmbedding(8, base=77.0), 5),
        (RotaryEmbedding(8, base=77.0, scaling={"rope_type": "linear", "factor": 3.0}), 5),
        (RotaryEmbedding(8, base=77.0, sections={"y": 2, "x": 2}), grid(3, 4, prefix_tokens=1)),
    ],  # a base that no other test has
)
def test_rotations_turn_once(encoding: RotaryEmbedding, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls at the same positions; the angles of both, of queries and keys alike, are computed once."""
    made, compute = [], Angles.frequencies
    monkeypatch.setattr(Angles, "frequencies", lambda *given: made.append(1) or compute(*given))
    query, key, value = (torch.randn(1, 2, 13, 8) for _ in range(3))
    for _ in range(2):
        relative_attention(query, key, value, encoding=encoding, query_position=place, key_position=place)
    assert len(made) == 1


def test_a_watched_call_keeps_nothing() -> None:
    """Under a mode the function makes a tensor of that mode, before and after a plain one was kept."""
    made = lru_tensor_cache(SMALL_TENSORS)(counted)
    with FakeTensorMode():
        assert type(made(5, CPU)) is FakeTensor
    assert type(made(5, CPU)) is torch.Tensor
    with FakeTensorMode():
        assert type(made(5, CPU)) is FakeTensor


def test_inference_mode_before_training() -> None:
    """What the first call made in inference mode, a training step may save for its gradients."""
    encoding = T5Bias(2, num_buckets=12, max_distance=41)  # sizes that no other test has
    query, key, value = (torch.randn(1, 2, 50, 8) for _ in range(3))
    with torch.inference_mode():
        expected = relative_attention(query, key, value, encoding=encoding)
    output = relative_attention(query, key, value, encoding=encoding)
    output.sum().backward()
    torch.testing.assert_close(output, expected)
    assert encoding.bias.grad is not None
