"""The longest sequence as a setting."""

import pytest

from measure.settings import Settings


def test_what_cannot_be_measured_is_refused():
    assert Settings(device="cpu", max_length=0.5).max_length == 0.5
    with pytest.raises(ValueError, match=r"max_length: got -1\.0; expected a finite number above 0"):
        Settings(device="cpu", max_length=-1.0)
    with pytest.raises(ValueError, match="lengths: got 0; expected an int of at least 1"):
        Settings(device="cpu", lengths=(0,))
