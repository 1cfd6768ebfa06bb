"""Tensors that encodings make once: never one of a watched call, never one that gradients refuse."""

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from relattn import T5Bias, relative_attention
from relattn.encodings.constants import constant


def test_made_once() -> None:
    """Equal arguments give the same tensor, other arguments another one."""
    made = constant(torch.arange)
    assert made(5) is made(5)
    assert made(6).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_watched_call_keeps_nothing() -> None:
    """Under a mode the function makes a tensor of that mode, before and after a plain one was kept."""
    made = constant(lambda count: torch.arange(count))
    with FakeTensorMode():
        assert type(made(5)) is FakeTensor
    assert type(made(5)) is torch.Tensor
    with FakeTensorMode():
        assert type(made(5)) is FakeTensor


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
