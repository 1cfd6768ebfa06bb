"""The kernels, run: by Triton's interpreter on a CPU, and as compiled code on a GPU.

A test that takes a `device` is two tests. The one on "cpu" carries the marker `triton`, is run by `make test-all` with
TRITON_INTERPRET=1 set (which Triton reads when a kernel is defined), and takes seconds for what a GPU does in
microseconds. The one on "cuda" carries the marker `gpu` and is run by `make test-gpu`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

INTERPRETED = pytest.param("cpu", marks=pytest.mark.triton)
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
everywhere = pytest.mark.parametrize("device", [INTERPRETED, GPU])


@contextmanager
def one_order(device: str) -> Iterator[None]:
    """On a GPU programs run side by side: atomic additions have another order each time. In the interpreter one runs
    after another.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(device == "cuda", warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
