"""flex_score_mod: FlexAttention with it gives relative_attention's numbers; what is more than a bias is refused.

FlexAttention differentiates on a GPU only; on a CPU it does so eagerly for what a score_mod captures. So the gradients
of parameters go through it here, and those of query, key and value through the formula that it computes.
"""

import math

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import relattn
from relattn import AlibiBias, OffsetTable, RelativeEncoding, ScoreTerms, T5Bias
from relattn.checks.values import kind_of
from relattn.encodings.base import lower
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.offsets import alibi_slopes, t5_buckets
from relattn.positions.places import Places
from relattn.positions.positions import Positions
from tests import seeds
from tests.bad_input.refusal import ones, refused
from tests.contract.cases import Network

B, H, LQ, LK, D = 2, 6, 11, 17, 8

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.one_in(4),
]


class Windowed(RelativeEncoding):
    """Somebody else's encoding: one learned row of numbers for all heads, and nothing beyond it."""

    def __init__(self, beyond="zero"):
        super().__init__()
        self.numbers = torch.nn.Parameter(torch.randn(1, 5))
        self.beyond = beyond

    def terms(self, query, key, positions):
        return ScoreTerms(bias=OffsetTable(self.numbers, -2, self.beyond))


class Nothing(RelativeEncoding):
    """Adds nothing to the score equation."""

    def terms(self, query, key, positions):
        return ScoreTerms()


ENCODINGS = {
    "t5": lambda: T5Bias(H, num_buckets=8, max_distance=10),
    "t5, one direction": lambda: T5Bias(H, num_buckets=8, max_distance=10, bidirectional=False),
    "alibi": lambda: AlibiBias(H),
    "kerple": lambda: relattn.KerpleBias(H),
    "kerple, power": lambda: relattn.KerpleBias(H, "power"),
    "sandwich": lambda: relattn.SandwichBias(H, 6),
    "function": lambda: relattn.FunctionBias(Network(H), H),
    "zero beyond": Windowed,
    "clamped": lambda: Windowed("clamp"),
    "sum": lambda: T5Bias(H, num_buckets=8, max_distance=10) + AlibiBias(H) + Windowed(),
}
STARTS = {
    "no starts": {},
    "starts": {"query_position": 40, "key_position": 31},
    "tensor starts": {"query_position": torch.tensor(40), "key_position": torch.tensor(31, dtype=torch.int32)},
    "a start that would wrap": {"query_position": torch.tensor(100, dtype=torch.uint8)},
    "explicit": {"query_position": torch.arange(LQ).flip(0), "key_position": torch.randint(0, 20, (B, LK))},
}


def normal(*size, dtype=torch.float64, **options):
    return torch.randn(size, dtype=dtype, **options)


def inputs(heads=H, key_heads=H, dtype=torch.float64):
    return (normal(B, n, length, D, dtype=dtype) for n, length in ((heads, LQ), (key_heads, LK), (key_heads, LK)))


def made(name, dtype=torch.float64):
    seeds.start_torch(3)
    encoding = ENCODINGS[name]().to(dtype)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()  # far from the zeros that would hide a wrong row
    return encoding


def causal_mask(query_position, key_position):
    def is_past(b, h, i, j):
        return key_position + j <= query_position + i

    return create_block_mask(is_past, None, None, LQ, LK, device="cpu")


@pytest.mark.one_in(24)
@pytest.mark.parametrize("starts", STARTS)
@pytest.mark.parametrize("name", ENCODINGS)
def test_output_and_parameter_gradients_are_those_of_relative_attention(name, starts):
    query, key, value = inputs()
    encoding, positions, upstream = made(name), STARTS[starts], normal(B, H, LQ, D)
    expected = relattn.relative_attention(query, key, value, encoding=encoding, backend="dense", **positions)
    score_mod = relattn.flex_score_mod(encoding, query, key, **positions)
    output = flex_attention(query, key, value, score_mod=score_mod)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    parameters = list(encoding.parameters())
    if parameters:
        found = torch.autograd.grad(output, parameters, upstream)
        for one, other in zip(found, torch.autograd.grad(expected, parameters, upstream), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ENCODINGS)
def test_gradients_of_queries_keys_and_values(name):
    query, key, value = (t.requires_grad_() for t in inputs())
    encoding, upstream = made(name), normal(B, H, LQ, D)
    leaves = [query, key, value, *encoding.parameters()]
    score_mod = relattn.flex_score_mod(encoding, query, key, key_position=4)
    indices = torch.meshgrid(*(torch.arange(n) for n in (B, H, LQ, LK)), indexing="ij")
    scores = score_mod(query @ key.mT / math.sqrt(D), *indices)
    output = torch.softmax(scores, -1) @ value
    expected = relattn.relative_attention(query, key, value, encoding=encoding, key_position=4, backend="dense")
    for one, other in zip(
        torch.autograd.grad(output, leaves, upstream), torch.autograd.grad(expected, leaves, upstream), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["t5", "alibi"])
def test_the_bias_is_the_papers(name):
    encoding = made(name)
    query, key, _ = inputs()
    score_mod = relattn.flex_score_mod(encoding, query, key, query_position=3)
    h, i, j = torch.meshgrid(torch.arange(H), torch.arange(LQ), torch.arange(LK), indexing="ij")
    offsets = (j - i - 3).numpy()
    if isinstance(encoding, T5Bias):
        buckets = t5_buckets(offsets, num_buckets=8, max_distance=10, bidirectional=True)
        expected = encoding.bias.detach().numpy()[buckets, h.numpy()]
    else:
        expected = -alibi_slopes(H)[h.numpy()] * np.abs(offsets)
    added = score_mod(torch.zeros(H, LQ, LK, dtype=torch.float64), torch.zeros_like(h), h, i, j)
    np.testing.assert_allclose(added.detach().numpy(), expected, rtol=1e-14)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ENCODINGS)
def test_causality_through_a_block_mask(name):
    query, key, value = inputs()
    encoding, starts = made(name), {"query_position": 6, "key_position": 0}
    expected = relattn.relative_attention(
        query, key, value, is_causal=True, encoding=encoding, backend="dense", **starts
    )
    score_mod = relattn.flex_score_mod(encoding, query, key, **starts)
    output = flex_attention(query, key, value, score_mod=score_mod, block_mask=causal_mask(**starts))
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)


def test_grouped_queries():
    query, key, value = inputs(key_heads=2)
    encoding = made("sum")
    expected = relattn.relative_attention(query, key, value, enable_gqa=True, encoding=encoding, backend="dense")
    output = flex_attention(query, key, value, score_mod=relattn.flex_score_mod(encoding, query, key), enable_gqa=True)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_bias_is_not_scaled(scale):
    query, key, value = inputs()
    encoding = made("t5")
    expected = relattn.relative_attention(query, key, value, scale=scale, encoding=encoding, backend="dense")
    output = flex_attention(query, key, value, score_mod=relattn.flex_score_mod(encoding, query, key), scale=scale)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ENCODINGS)
def test_narrower_dtypes(name, dtype):
    query, key, value = inputs(dtype=dtype)
    encoding = made(name, torch.float32)
    doubled = made(name, torch.float64).requires_grad_(False)
    truth = relattn.relative_attention(
        query.double(), key.double(), value.double(), encoding=doubled, backend="reference"
    )
    with torch.no_grad():
        ours = relattn.relative_attention(query, key, value, encoding=encoding, backend="dense")
        output = flex_attention(query, key, value, score_mod=relattn.flex_score_mod(encoding, query, key))
    assert output.dtype == dtype
    error, floor = ((t.double() - truth).abs().max() for t in (output, ours))
    # both round the weights or the output to the dtype once
    assert error <= 2 * floor + 4 * torch.finfo(dtype).eps * value.abs().max()


@pytest.mark.graphs
@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "alibi", "sum"])
def test_compiled(name):
    torch.compiler.reset()
    query, key, value = inputs(dtype=torch.float32)
    encoding, starts = made(name, torch.float32), {"query_position": 6, "key_position": 0}
    mask = causal_mask(**starts)
    attend = torch.compile(flex_attention)
    with torch.no_grad():
        expected = relattn.relative_attention(query, key, value, is_causal=True, encoding=encoding, **starts)
        for _ in range(2):  # made anew, as in every forward pass
            score_mod = relattn.flex_score_mod(encoding, query, key, **starts)
            output = attend(query, key, value, score_mod=score_mod, block_mask=mask)
            torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


def test_training_sees_the_parameters_of_the_moment():
    query, key, value = inputs()
    encoding = made("t5")
    before = relattn.flex_score_mod(encoding, query, key)
    with torch.no_grad():
        encoding.bias.add_(normal(*encoding.bias.shape))
    expected = relattn.relative_attention(query, key, value, encoding=encoding)
    after = relattn.flex_score_mod(encoding, query, key)
    torch.testing.assert_close(flex_attention(query, key, value, score_mod=after), expected, rtol=1e-12, atol=1e-12)
    assert (flex_attention(query, key, value, score_mod=before) - expected).abs().max() > 1e-3


def test_terms_that_are_a_bias():
    """By hand, or as an encoding lowered them: the function of the encoding, and relative_attention's numbers."""
    query, key, value = inputs()
    encoding = made("sum")
    positions = Positions(ContiguousPositions(0), ContiguousPositions(0), LQ, LK, query.device)
    terms = lower(encoding, query, key, value, Places(positions))
    assert terms.bias is not None
    ours = flex_attention(query, key, value, score_mod=relattn.flex_score_mod(terms, query, key))
    expected = flex_attention(query, key, value, score_mod=relattn.flex_score_mod(encoding, query, key))
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    by_hand = ScoreTerms(bias=OffsetTable(normal(1, 5), -2, "clamp"))
    ours = flex_attention(query, key, value, score_mod=relattn.flex_score_mod(by_hand, query, key))
    expected = relattn.relative_attention(query, key, value, encoding=by_hand)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def table(*size, first=-9):
    return OffsetTable(ones(*size), first)


WAY_OUT = (
    "; a score_mod can only add a bias to a score, so use relattn.relative_attention, which computes every encoding"
)


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        (relattn.RotaryEmbedding(8), "RotaryEmbedding, which rewrites the queries and rewrites the keys"),
        (relattn.RelativeEmbedding(8, 20), "RelativeEmbedding, which multiplies queries with relative keys"),
        (relattn.ShawEmbedding(8, 3, values=False), "ShawEmbedding, which multiplies queries with relative keys"),
        (
            relattn.ShawEmbedding(8, 3),
            "ShawEmbedding, which multiplies queries with relative keys and adds relative values to the output",
        ),
        (
            relattn.TransformerXLEmbedding(4, 8),
            "TransformerXLEmbedding, which rewrites the queries and multiplies queries with relative keys",
        ),
        (AlibiBias(4) + relattn.RotaryEmbedding(8), "EncodingSum, which rewrites the queries and rewrites the keys"),
        (Nothing(), "Nothing, which has no bias"),
        (ScoreTerms(), "ScoreTerms, which has no bias"),
        (ScoreTerms(query=ones(2, 4, 5, 8), bias=table(4, 19)), "ScoreTerms, which rewrites the queries"),
        (ScoreTerms(key=ones(2, 4, 6, 8), bias=table(4, 19)), "ScoreTerms, which rewrites the keys"),
        (
            ScoreTerms(relative_keys=table(1, 19, 8), relative_queries=table(1, 19, 8), bias=table(4, 19)),
            "ScoreTerms, which multiplies queries with relative keys and multiplies keys with relative queries",
        ),
        (
            ScoreTerms(relative_values=table(1, 19, 8), bias=table(4, 19)),
            "ScoreTerms, which adds relative values to the output",
        ),
    ],
)
def test_more_than_a_bias_is_refused(encoding, said):
    with refused(relattn.UnsupportedError, f"encoding: got {said}{WAY_OUT}"):
        relattn.flex_score_mod(encoding, ones(2, 4, 5, 8), ones(2, 4, 6, 8))


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"encoding": None}, TypeError, "encoding: got NoneType; expected a RelativeEncoding or ScoreTerms"),
        (
            {"encoding": T5Bias},
            TypeError,
            f"encoding: got {kind_of(T5Bias)}; expected a RelativeEncoding or ScoreTerms",
        ),
        (
            {"encoding": AlibiBias(3)},
            relattn.ShapeError,
            "AlibiBias num_heads: got 3; expected 4, the heads of query [2, 4, 5, 8]; make it with num_heads=4",
        ),
        (
            {"encoding": T5Bias(4).double()},
            TypeError,
            "bias: got dtype torch.float64; expected torch.float32, the query's; convert the encoding with "
            ".to(torch.float32)",
        ),
        (
            {"encoding": Windowed("error")},
            ValueError,
            "bias: got visible offsets -4..5 and rows for -2..2; expected rows for every visible offset; use "
            "beyond='clamp' or 'zero', or give more rows",
        ),
        (
            {"encoding": ScoreTerms(bias=table(4, 9, first=-4))},
            ValueError,
            "bias: got visible offsets -4..5 and rows for -4..4; expected rows for every visible offset; use "
            "beyond='clamp' or 'zero', or give more rows",
        ),
        (
            {"encoding": ScoreTerms(bias=table(3, 19))},
            relattn.ShapeError,
            "bias: got 3 heads ([3, 19]); expected 4, the query's; make the encoding for 4 heads, or for one head "
            "shared by all",
        ),
        (
            {"query": ones(4, 5, 8)},
            relattn.ShapeError,
            "query: got shape [4, 5, 8]; expected four axes [batch, heads, length, width], as FlexAttention takes them",
        ),
        (
            {"query": ones(1, 2, 4, 5, 8)},
            relattn.ShapeError,
            "query: got shape [1, 2, 4, 5, 8]; expected four axes ...",
        ),
        ({"key": ones(4, 6, 8)}, relattn.ShapeError, "key: got shape [4, 6, 8]; expected four axes ..."),
        (
            {"key": ones(2, 3, 6, 8)},
            relattn.ShapeError,
            "key: got 3 heads ...; expected a divisor of 4 ...",
        ),
        ({"query_position": 1.5}, TypeError, "query_position: got 1.5; expected an int, or an integer tensor ..."),
        (
            {"key_position": torch.zeros(3, dtype=torch.int64)},
            relattn.ShapeError,
            "key_position: got shape [3]; expected a start, [6] or [2, 6]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes, error, said):
    good = {"encoding": AlibiBias(4), "query": ones(2, 4, 5, 8), "key": ones(2, 4, 6, 8)}
    with refused(error, said):
        relattn.flex_score_mod(**{**good, **changes})
