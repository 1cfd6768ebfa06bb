"""The published numbers (`vectors/`) by the kernels."""

import pytest

from tests.test_vectors import FILES, check_call

PADDED = "left_padding"  # positions of each row's own, which the kernels do not take


@pytest.mark.triton
@pytest.mark.parametrize("name", FILES)
def test_the_kernels_agree_with_the_file(name: str) -> None:
    for call in FILES[name].cases:
        if call != PADDED:
            check_call(name, call, "triton", "float32")
