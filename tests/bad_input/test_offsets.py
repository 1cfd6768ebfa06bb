"""The NumPy functions of an offset, and a strip whose rows do not fit."""

import numpy as np
import pytest

from relattn.backends.dense import skew
from relattn.positions.offsets import alibi_slopes, inverse_frequencies, rope_frequencies, sinusoids, t5_buckets
from tests.bad_input.refusal import ones, refused

OFFSETS = np.arange(-3, 4)
NAN = float("nan")


@pytest.mark.parametrize("came", [0, -3, 2.5, "4", None, True], ids=repr)
def test_alibi_slopes(came):
    with refused(ValueError, f"num_heads: got {came!r}; expected an int of at least 1"):
        alibi_slopes(came)


@pytest.mark.parametrize("came", [0, 1, 7, -2, 4.0, "4", None, True], ids=repr)
def test_width(came):
    expected = "an even int, a sine and a cosine for each frequency" if came == 7 else "an int of at least 2"
    said = f"width: got {came!r}; expected {expected}"
    with refused(ValueError, said):
        inverse_frequencies(came)
    with refused(ValueError, said):
        sinusoids(OFFSETS, came)


@pytest.mark.parametrize("came", [0, 1.0, -2.0, NAN, float("inf"), "10000", None, True], ids=repr)
def test_base(came):
    with refused(ValueError, f"base: got {came!r}; expected a finite number above 1"):
        inverse_frequencies(8, came)


def test_a_base_that_no_float_holds():
    with refused(ValueError, "base: got an int of 1329 bits; expected a finite number above 1"):
        inverse_frequencies(8, 10**400)


SCALINGS = {
    "dynamic": {"factor": 2.0},
    "longrope": {"factor": 2.0, "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]},
}


@pytest.mark.parametrize("kind", SCALINGS)
def test_length(kind):
    scaling = {"rope_type": kind, "original_max_position_embeddings": 8, **SCALINGS[kind]}
    said = f"length: got None; expected the largest position of the call + 1 for rope_type {kind!r}"
    with refused(ValueError, said):
        rope_frequencies(4, scaling=scaling)
    for came in (-1, 2.0, True):
        with refused(ValueError, f"length: got {came!r}; expected an int of at least 0"):
            rope_frequencies(4, scaling=scaling, length=came)


@pytest.mark.parametrize(
    ("bidirectional", "num_buckets", "said"),
    [
        (True, 3, "expected an int of at least 4"),
        (True, 7, "expected a multiple of four, to be split evenly"),
        (False, 1, "expected an int of at least 2"),
        (False, 7, "expected a multiple of two, to be split evenly"),
        (True, 32.0, "expected an int of at least 4"),
    ],
)
def test_num_buckets(bidirectional, num_buckets, said):
    with refused(ValueError, f"num_buckets: got {num_buckets!r}; {said}"):
        t5_buckets(OFFSETS, num_buckets=num_buckets, bidirectional=bidirectional)


@pytest.mark.parametrize("came", [8, 4, 0, -1, 128.0, None, 2**62], ids=repr)
def test_max_distance(came):
    own = "the distances that have a bucket of their own, and below 2**60"
    said = f"max_distance: got {came!r}; expected an int above 8, {own}"
    with refused(ValueError, said):
        t5_buckets(OFFSETS, max_distance=came)


@pytest.mark.parametrize(("function", "name"), [(t5_buckets, "offsets"), (lambda d: sinusoids(d, 4), "distances")])
@pytest.mark.parametrize("dtype", [np.float64, np.bool_], ids=str)
def test_no_integers(function, name, dtype):
    came = OFFSETS.astype(dtype)
    with refused(TypeError, f"{name}: got {came.dtype}; expected integers"):
        function(came)


def test_a_strip():
    """Without a gradient one row less is enough."""
    strip = ones(2, 4, 5, 6)
    skew.strided_view(strip, 6)
    with refused(ValueError, "strided_view: got 6 rows for 7 keys; expected at least 7"):
        skew.strided_view(strip, 7)
    with refused(ValueError, "strided_view: got 6 rows for 6 keys; expected at least 7"):
        skew.strided_view(strip.requires_grad_(), 6)
