"""Tensors that encodings make once: never one of a watched call, never one that gradients refuse."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from relattn import RotaryEmbedding, T5Bias, grid, relative_attention
from relattn.encodings import alibi, t5, turns
from relattn.encodings.constants import MOST, constant
from relattn.encodings.turns import Turns
from relattn.score.position import Run
from relattn.score.positions import Span

CPU = torch.device("cpu")


def counted(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device)


def test_made_once() -> None:
    """Equal arguments give the same tensor, other arguments another one."""
    made = constant(MOST)(counted)
    assert made(5, CPU) is made(5, CPU)
    assert made(6, CPU).tolist() == [0, 1, 2, 3, 4, 5]


def test_no_other_device_keeps_any() -> None:
    made = constant(MOST)(counted)
    assert made(5, torch.device("meta")) is not made(5, torch.device("meta"))


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (t5._buckets_of, (Span(-7, 8), CPU, 12, 41, True)),
        (alibi._paper_slopes, (12, CPU)),
        (alibi._given_slopes, ((0.5, 0.1), CPU)),
        (turns._kept, (Turns(8, 10000.0), (Run(3),), 5, torch.float32, CPU)),
    ],
)
def test_the_encodings_keep_theirs(make: Callable[..., Tensor], key: tuple[Any, ...]) -> None:
    assert make(*key) is make(*key)


@pytest.mark.parametrize(
    ("encoding", "place"),
    [
        (RotaryEmbedding(8, base=77.0), 5),
        (RotaryEmbedding(8, base=77.0, scaling={"rope_type": "linear", "factor": 3.0}), 5),
        (RotaryEmbedding(8, base=77.0, sections={"y": 2, "x": 2}), grid(3, 4, leading=1)),
    ],  # a base that no other test has
)
def test_rotations_turn_once(encoding: RotaryEmbedding, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls at the same positions; the angles of both, of queries and keys alike, are computed once."""
    made, compute = [], turns._cos_sin
    monkeypatch.setattr(turns, "_cos_sin", lambda *given: made.append(1) or compute(*given))
    query, key, value = (torch.randn(1, 2, 13, 8) for _ in range(3))
    for _ in range(2):
        relative_attention(query, key, value, encoding=encoding, query_position=place, key_position=place)
    assert len(made) == 1


def test_a_watched_call_keeps_nothing() -> None:
    """Under a mode the function makes a tensor of that mode, before and after a plain one was kept."""
    made = constant(MOST)(counted)
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
