"""DisentangledEmbedding: its oracle against DeBERTa's published numbers, its buckets, its arguments."""

import numpy as np
import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from relattn import DisentangledEmbedding
from relattn.encodings.disentangled import disentangled_table
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.positions import Positions
from tests.bad_input.refusal import refused
from tests.oracle.disentangled import bucket_of, delta

BUCKETS = [(256, 512), (32, 128), (64, 4096), (8, 16), (6, 6)]
"""(num_buckets, max_distance), the first those of DeBERTa-v2 and v3 as published."""


@pytest.mark.parametrize(("num_buckets", "max_distance"), BUCKETS)
def test_the_oracle_s_buckets_are_those_of_the_published_code(num_buckets, max_distance):
    """The oracle decides them in whole numbers, the code in float32."""
    relative = np.arange(-max_distance + 1, max_distance)
    published = make_log_bucket_position(torch.from_numpy(relative), num_buckets, max_distance).numpy()
    assert [bucket_of(int(one), num_buckets, max_distance) for one in relative] == published.tolist()


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(None, 7), *BUCKETS])
def test_every_offset_has_the_row_delta(num_buckets, max_distance):
    """Up to three times the largest distance, so that the rows beyond the table are read, too."""
    length = 3 * max_distance
    k = num_buckets or max_distance
    numbers = torch.arange(2.0 * k).reshape(1, -1, 1)
    positions = Positions(ContiguousPositions(0), ContiguousPositions(0), length, length, torch.device("cpu"))
    table = disentangled_table(numbers, max_distance, num_buckets, positions)
    offsets = np.arange(-length + 1, length)
    rows = table.rows(-length + 1, 2 * length - 1)[0, :, 0]
    assert rows.tolist() == delta(-offsets, k, max_distance if num_buckets else None).tolist()


def test_row_0_is_the_most_distant_future():
    """Equation 3: delta = 0 for i - j <= -k, that is where the key lies k or more ahead."""
    assert delta(np.array([-9, -4, -3, 0, 3, 4, 9]), 4, None).tolist() == [0, 0, 1, 4, 7, 7, 7]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_buckets_do_not_depend_on_the_default_dtype(dtype):
    """Positions never pass through a half precision."""
    length = 600
    positions = Positions(ContiguousPositions(0), ContiguousPositions(0), length, length, torch.device("cpu"))
    numbers = torch.arange(512.0).reshape(1, -1, 1)
    expected = disentangled_table(numbers, 512, 256, positions).values
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(disentangled_table(numbers, 512, 256, positions).values, expected)
    finally:
        torch.set_default_dtype(before)


def make(**changes):
    return DisentangledEmbedding(**{"num_heads": 4, "head_dim": 8, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_heads": 0}, "num_heads: got 0; expected an int of at least 1"),
        ({"head_dim": 8.0}, "head_dim: got 8.0; expected an int of at least 1"),
        ({"embed_dim": -1}, "embed_dim: got -1; expected an int of at least 1"),
        ({"max_distance": 1}, "max_distance: got 1; expected an int of at least 2"),
        ({"num_buckets": 2}, "num_buckets: got 2; expected an int of at least 4"),
        (
            {"num_buckets": 31, "max_distance": 64},
            "num_buckets: got 31 with max_distance=64; expected an even number below 126, half of it for exact "
            "distances",
        ),
        (
            {"num_buckets": 126, "max_distance": 64},
            "num_buckets: got 126 with max_distance=64; expected an even number below 126, half of it for exact "
            "distances",
        ),
        ({"c2p": False, "p2c": False}, "c2p, p2c: got False for both; expected at least one of the terms"),
    ],
)
def test_arguments(changes, said):
    with refused(ValueError, said):
        make(**changes)


@pytest.mark.parametrize("name", ["c2p", "p2c"])
def test_flags(name):
    with refused(TypeError, f"{name}: got 1; expected True or False"):
        make(**{name: 1})
