"""relattn.offsets against the papers' oracles, and the torch side of every encoding against relattn.offsets."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relattn import AlibiBias, RotaryEmbedding, T5Bias, TransformerXLEmbedding
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.offsets import alibi_slopes, inverse_frequencies, rope_frequencies, sinusoids, t5_buckets
from relattn.positions.positions import Positions
from tests.oracle.alibi import slopes as oracle_slopes
from tests.oracle.rope import Rule
from tests.oracle.rope import angles as rope_angles
from tests.oracle.t5 import relative_position_bucket
from tests.oracle.transformer_xl import sinusoid

OFFSETS = np.arange(-700, 701)
T5_SIZES = [
    (num_buckets, max_distance, bidirectional)
    for bidirectional in (True, False)
    for num_buckets in (4, 8, 12, 32, 64)
    for max_distance in (20, 64, 100, 128, 256, 500)
    if max_distance > num_buckets // (4 if bidirectional else 2)
]
EPS = 2.0**-52


@pytest.mark.parametrize(("num_buckets", "max_distance", "bidirectional"), T5_SIZES)
def test_t5_buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    """Against whole-number arithmetic; torch, in the published code's float32, against the same."""
    settings = {"num_buckets": num_buckets, "max_distance": max_distance, "bidirectional": bidirectional}
    exact = relative_position_bucket(OFFSETS, **settings)
    np.testing.assert_array_equal(t5_buckets(OFFSETS, **settings), exact)
    encoding = T5Bias(2, **settings)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        torch_buckets = encoding.to(dtype).buckets(torch.from_numpy(OFFSETS))
        np.testing.assert_array_equal(torch_buckets.numpy(), exact)


def test_t5_buckets_keep_the_shape_and_the_sign() -> None:
    """d > 0 is a key in the future, whose buckets are the upper half; not bidirectional, the future is bucket 0."""
    offsets = np.array([[-3, 0], [3, 200]])
    assert t5_buckets(offsets).tolist() == [[3, 0], [19, 31]]
    assert t5_buckets(offsets, bidirectional=False).tolist() == [[3, 0], [0, 0]]


def slopes_of(encoding: AlibiBias, dtype: torch.dtype = torch.float64) -> np.ndarray:
    """What the encoding takes off the key before the query, by head."""
    query = torch.zeros(1, encoding.num_heads, 1, 2, dtype=dtype)
    table = encoding.terms(
        query, query, Positions(ContiguousPositions(1), ContiguousPositions(0), 1, 1, query.device)
    ).bias
    assert table is not None
    assert table.values.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    return -table.values[:, -1 - table.first].detach().numpy()


GIVEN = [0.1, 0.7, 1 / 3]


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("slopes", [GIVEN, tuple(GIVEN), np.array(GIVEN), torch.tensor(GIVEN, dtype=torch.float64)])
def test_given_slopes(slopes: Any, learned: bool) -> None:
    """A float64 model has them to the last digit, and one in half precision too where they are not learned."""
    encoding = AlibiBias(3, slopes, learned=learned)
    if learned:
        assert encoding.slopes.dtype == torch.float32
        np.testing.assert_array_equal(slopes_of(encoding, torch.float32), np.float32(GIVEN))
        with torch.no_grad():
            encoding.double().slopes.copy_(torch.tensor(GIVEN, dtype=torch.float64))
        assert list(encoding.state_dict()) == ["slopes"]
    else:
        assert encoding.slopes == tuple(GIVEN)
        assert not encoding.state_dict()
        np.testing.assert_array_equal(slopes_of(encoding.half(), torch.float16), np.float32(GIVEN))
    np.testing.assert_array_equal(slopes_of(encoding), GIVEN)


def test_learned_slopes_start_where_they_are_given() -> None:
    """And at those of the paper without; reset_parameters brings them back."""
    for encoding, start in ((AlibiBias(3, GIVEN, learned=True), GIVEN), (AlibiBias(6, learned=True), alibi_slopes(6))):
        for _ in range(2):
            np.testing.assert_array_equal(encoding.slopes.detach().numpy(), np.float32(start))
            with torch.no_grad():
                encoding.slopes.fill_(9.0)
            encoding.reset_parameters()


def test_alibi_without_an_argument_has_no_state() -> None:
    assert not AlibiBias(4).state_dict()
    assert AlibiBias(4).slopes is None


@pytest.mark.parametrize("num_heads", [*range(1, 34), 40, 64, 71, 112])
def test_alibi_slopes(num_heads: int) -> None:
    """The powers of two to a rounding of the power; as many as there are heads."""
    expected = oracle_slopes(num_heads)
    np.testing.assert_allclose(alibi_slopes(num_heads), expected, rtol=2 * EPS)
    np.testing.assert_allclose(slopes_of(AlibiBias(num_heads)), expected, rtol=2 * EPS)


@settings(max_examples=30)
@given(st.integers(1, 40), st.booleans(), st.integers(-5000, 5000), st.integers(1, 60))
def test_sinusoids(half: int, interleaved: bool, first: int, count: int) -> None:
    """The papers' formula; a frequency's rounding moves the angle by eps of itself."""
    distances = np.arange(first, first + count)
    exact = sinusoid(distances, 2 * half, interleaved)
    allowed = 4 * EPS * (1.0 + np.abs(distances).max())
    np.testing.assert_allclose(sinusoids(distances, 2 * half, interleaved=interleaved), exact, rtol=0, atol=allowed)


def table_of(encoding: TransformerXLEmbedding, queries: int, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """The offsets of the rows that the encoding makes for a call, and the rows [H, count, D]."""
    positions = Positions(
        ContiguousPositions(3), ContiguousPositions(1), queries, keys, torch.device("cpu"), None, None
    )
    query = torch.zeros(1, encoding.num_heads, queries, encoding.head_dim).to(encoding.pos_bias_u.dtype)
    table = encoding.terms(query, query, positions).relative_keys
    assert table is not None
    return np.arange(table.first, table.first + table.num_rows), table.values.detach().numpy()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [2, 6, 16])
def test_transformer_xl_sinusoids(width: int, interleaved: bool) -> None:
    """With the identity for W the rows are the sinusoids of the distance, which is minus the offset."""
    encoding = TransformerXLEmbedding(1, width, interleaved=interleaved).double()
    with torch.no_grad():
        encoding.linear_pos.weight.copy_(torch.eye(width))
    offsets, rows = table_of(encoding, 40, 50)
    expected = sinusoids(-offsets, width, interleaved=interleaved)
    np.testing.assert_allclose(rows[0], expected, rtol=0, atol=4 * EPS * (1.0 + np.abs(offsets).max()))
    assert {-41, 47} <= set(offsets.tolist()), "first key - last query, and last key - first query"


LENGTHS = {"original_max_position_embeddings": 4096}
SCALINGS: dict[str, tuple[dict | None, float, Rule | None]] = {
    "none": (None, 1.0, None),
    "linear": ({"rope_type": "linear", "factor": 4.0}, 4.0, None),
    "linear, shorter": ({"rope_type": "linear", "factor": 0.5}, 0.5, None),
    "yarn": ({"rope_type": "yarn", "factor": 8, **LENGTHS}, 8, Rule("yarn_code", 4096, 1, 32, 0.1 * np.log(8) + 1)),
    "yarn, not rounded": (
        {"rope_type": "yarn", "factor": 32.0, "truncate": False, **LENGTHS},
        32.0,
        Rule("yarn_code_exact", 4096, 1, 32, 0.1 * np.log(32) + 1),
    ),
    "yarn, the paper's ramp": (
        {"rope_type": "yarn", "factor": 16, "ramp": "rotations", "beta_fast": 20, "beta_slow": 2, **LENGTHS},
        16,
        Rule("yarn", 4096, 2, 20, 0.1 * np.log(16) + 1),
    ),
    "yarn, a short text": (
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 24, "attention_factor": 1.25},
        2.0,
        Rule("yarn_code", 24, 1, 32, 1.25),
    ),
    "yarn, no longer": ({"rope_type": "yarn", "factor": 1, **LENGTHS}, 1, Rule("yarn_code", 4096, 1, 32, 1.0)),
    "llama3": (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **LENGTHS},
        8.0,
        Rule("llama3", 4096, 1.0, 4.0),
    ),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0, **LENGTHS}, 2.0, Rule("dynamic", 4096)),
    "dynamic, by its length alone": ({"rope_type": "dynamic", "factor": 1, **LENGTHS}, 1.0, Rule("dynamic", 4096)),
}
BASES = [10000.0, 500000.0, 50.0]


LONGEST = 4096 * 5


def longrope(width: int, **more: Any) -> tuple[dict[str, Any], Rule]:
    """A scaling with another factor for every pair, up to a length of 4096 and beyond, and the oracle's rule."""
    short, long = (tuple(first + 0.01 * t for t in range(width // 2)) for first in (1.0, 3.0))
    scaling = {"rope_type": "longrope", "short_factor": list(short), "long_factor": long, **LENGTHS, "factor": 4}
    root = more.get("attention_factor", np.sqrt(1.0 + np.log(4.0) / np.log(4096.0)))
    return {**scaling, **more}, Rule("longrope", 4096, root=root, short=short, long=long)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("length", [0, 4096, 4097, LONGEST])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("width", [2, 8, 64, 128])
@pytest.mark.parametrize("name", [*SCALINGS, "longrope", "longrope, its own temperature"])
def test_rope_frequencies(name: str, width: int, base: float, length: int) -> None:
    """The papers' frequencies, pair by pair; the ramp's steepness passes on the rounding of its ends."""
    if name in SCALINGS:
        scaling, factor, rule = SCALINGS[name]
    else:
        scaling, rule = longrope(width, **({} if name == "longrope" else {"attention_factor": 1.5}))
        factor = 4.0
    frequencies, attention_factor = rope_frequencies(width, base, scaling, length)
    expected = rope_angles(1, width, base, factor, rule, length)
    np.testing.assert_allclose(frequencies, expected, rtol=200 * EPS)
    assert attention_factor == pytest.approx(1.0 if rule is None else rule.root, rel=2 * EPS)


@settings(max_examples=60)
@given(st.integers(1, 32), st.sampled_from(BASES), st.sampled_from(sorted(SCALINGS)), st.data())
def test_rotary_angles(half: int, base: float, name: str, data: st.DataObject) -> None:
    """A key (1, 0) in each pair turns to (cos, sin) of position * rope_frequencies, times the attention factor."""
    width, start = 2 * half, data.draw(st.integers(-1000, 100_000))
    scaling = SCALINGS[name][0]
    encoding = RotaryEmbedding(width, base=base, scaling=scaling, interleaved=True)
    key = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(half).expand(1, 1, 5, width)
    turned = encoding.prepare_keys(key, ContiguousPositions(start))[0, 0].numpy()
    frequencies, root = rope_frequencies(width, base, scaling, max(start + 5, 0))
    angles = np.arange(start, start + 5)[:, None] * frequencies
    allowed = 16 * EPS * (1.0 + np.abs(angles).max())
    np.testing.assert_allclose(turned[:, 0::2], root * np.cos(angles), rtol=0, atol=allowed)
    np.testing.assert_allclose(turned[:, 1::2], root * np.sin(angles), rtol=0, atol=allowed)


@pytest.mark.parametrize("start", [0, 4091, 4092, 20_000])
def test_longrope_angles(start: int) -> None:
    """As above, from 5 positions that end below, at and beyond the original length."""
    scaling, _ = longrope(8)
    encoding = RotaryEmbedding(8, scaling=scaling, interleaved=True)
    key = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(4).expand(1, 1, 5, 8)
    frequencies, root = rope_frequencies(8, 10000.0, scaling, start + 5)
    expected = root * np.cos(np.arange(start, start + 5)[:, None] * frequencies)
    explicit = torch.arange(start, start + 5)
    for position in (
        ContiguousPositions(start),
        ContiguousPositions(torch.tensor(start)),
        ExplicitPositions(explicit),
        ExplicitPositions(explicit[None]),
    ):
        turned = encoding.prepare_keys(key, position)[0, 0].numpy()
        np.testing.assert_allclose(turned[:, 0::2], expected, rtol=0, atol=16 * EPS * (start + 6))


def test_the_paper_s_ramp_is_not_that_of_its_code() -> None:
    """Both leave the fastest pairs alone and interpolate the slowest; between, they differ by a multiple."""
    paper, code = (
        rope_frequencies(128, 10000.0, {"rope_type": "yarn", "factor": 16, "ramp": ramp, **LENGTHS})[0]
        for ramp in ("rotations", "pairs")
    )
    theta = inverse_frequencies(128)
    for found in (paper, code):
        np.testing.assert_allclose(found[:20], theta[:20], rtol=4 * EPS)
        np.testing.assert_allclose(found[46:], theta[46:] / 16, rtol=4 * EPS)
    assert (code / paper).max() > 2.0


def test_inverse_frequencies() -> None:
    """theta_i = base^(-2i/width): falling from 1, the last one base^(-1 + 2/width)."""
    np.testing.assert_allclose(inverse_frequencies(4), [1.0, 0.01], rtol=1e-15)
    np.testing.assert_allclose(inverse_frequencies(6, base=8.0), [1.0, 0.5, 0.25], rtol=1e-15)
