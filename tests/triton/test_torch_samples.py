"""PyTorch's own samples of scaled_dot_product_attention, by the Triton kernels."""

import pytest
import torch

from tests.test_torch_samples import Sample, check_samples, samples

pytestmark = pytest.mark.triton


@pytest.mark.parametrize(("dtype", "each"), [(torch.float32, 1), (torch.bfloat16, 3), (torch.float16, 3)], ids=str)
def test_answers_and_gradients_are_pytorchs(dtype: torch.dtype, each: int) -> None:
    """All of them in float32. In half precision every third: four of each shape and causality differ in dropout, which
    is left out, and in whether heads may share keys, which none do.
    """
    every = samples(dtype)
    assert len(every) >= 20
    taken = every[::each]
    assert kinds_of(taken) == kinds_of(every)
    check_samples("triton", taken, dtype)


def kinds_of(several: list[Sample]) -> set[tuple[object, ...]]:
    """Shapes, causality, and whether there is a mask."""
    return {(inputs[0].shape, keywords.get("is_causal"), "attn_mask" in keywords) for inputs, keywords in several}
