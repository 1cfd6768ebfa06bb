"""The kernels, run: by Triton's interpreter on a CPU, and as compiled code on a GPU.

A test that takes a `device` is two tests. The one on "cpu" carries the marker `triton`, is run by `make test-all` with
TRITON_INTERPRET=1 set (which Triton reads when a kernel is defined), and takes seconds for what a GPU does in
microseconds. The one on "cuda" carries the marker `gpu` and is run by `make test-gpu`.
"""

import pytest

INTERPRETED = pytest.param("cpu", marks=pytest.mark.triton)
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
everywhere = pytest.mark.parametrize("device", [INTERPRETED, GPU])
