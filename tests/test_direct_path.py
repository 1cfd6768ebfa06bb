"""Where no gradient is recorded and nothing watches, a call goes to its kernels past autograd and the dispatcher."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from measure.frames import without_gpu
from relattn import RelativeEmbedding, relative_attention


@pytest.mark.parametrize("backend", ["native", "blocks", "triton"])
def test_neither_autograd_nor_the_dispatcher_is_asked(backend: str) -> None:
    pytest.importorskip("triton", reason="Triton is a package for Linux")
    encoding = RelativeEmbedding(8, max_length=32)
    query, key, value = (torch.randn(1, 2, 20, 8) for _ in range(3))

    @without_gpu
    def call() -> torch.Tensor:
        return relative_attention(query, key, value, encoding=encoding, is_causal=True, backend=backend)

    def entries() -> set[str]:
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            call()
        return {event.key for event in seen.key_averages() if event.key.startswith(("relattn::", "PlainAutograd"))}

    assert entries() == {"PlainAutograd"}  # the table has a gradient
    with torch.no_grad():
        assert not entries()
    encoding.requires_grad_(False)
    assert not entries()
