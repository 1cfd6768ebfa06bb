"""The published numbers (`vectors/`) by the kernels."""

import pytest

from tests.test_vectors import FILES, calls_of, check_call


@pytest.mark.triton
@pytest.mark.parametrize("name", [name for name in FILES if calls_of(name, "triton")])
def test_the_kernels_agree_with_the_file(name: str) -> None:
    for call in calls_of(name, "triton"):
        check_call(name, call, "triton", "float32")
