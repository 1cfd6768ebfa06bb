"""The kernels' gradients of some of the keys of a call."""

import pytest

from tests.test_parts_of_a_call import ENCODINGS, check

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("name", ENCODINGS)
def test_parts_add_up(name: str) -> None:
    check("triton", name)
