"""PyTorch's own samples of scaled_dot_product_attention, by the Triton kernels."""

import pytest
import torch

from tests.test_torch_samples import check_samples, samples

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_answers_and_gradients_are_pytorchs(dtype: torch.dtype) -> None:
    taken = samples(dtype)
    assert len(taken) >= 20
    check_samples("triton", taken, dtype)
