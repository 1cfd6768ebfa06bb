"""PyTorch's own samples of scaled_dot_product_attention, by the Triton kernels."""

import pytest
import torch

from tests.test_torch_samples import check_samples, samples

pytestmark = pytest.mark.triton


@pytest.mark.parametrize(("dtype", "each"), [(torch.float32, 1), (torch.bfloat16, 3), (torch.float16, 3)], ids=str)
def test_answers_and_gradients_are_pytorchs(dtype: torch.dtype, each: int) -> None:
    """All of them in float32, and every third in half precision: the interpreter computes the same in float32."""
    taken = samples(dtype)
    assert len(taken) >= 20
    check_samples("triton", taken[::each], dtype)
