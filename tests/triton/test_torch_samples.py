"""PyTorch's own samples of scaled_dot_product_attention, by the Triton kernels."""

import pytest
import torch

from tests.test_torch_samples import Sample, check_samples, samples

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_answers_and_gradients_are_pytorchs(dtype: torch.dtype) -> None:
    taken = [sample for sample in samples(dtype) if not has_float_mask(sample)]
    assert len(taken) >= 20
    check_samples("triton", taken, dtype)


def has_float_mask(sample: Sample) -> bool:
    """Whether the kernels refuse it."""
    mask = sample[1].get("attn_mask")
    return mask is not None and mask.dtype != torch.bool
