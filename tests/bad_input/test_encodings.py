"""Encodings and lowered terms that do not fit the call, sums that are refused, encodings that break the contract."""

import re

import pytest
import torch

import relattn
from relattn import (
    AlibiBias,
    FunctionBias,
    KerpleBias,
    OffsetTable,
    RelativeEmbedding,
    RelativeEncoding,
    RotaryEmbedding,
    SandwichBias,
    ScoreTerms,
    ShapeError,
    ShawEmbedding,
    T5Bias,
    TransformerXLEmbedding,
    UnsupportedError,
    attention_weights,
    explain,
    relative_attention,
)
from relattn.checks.values import kind_of
from tests.bad_input.refusal import call, ones, refused

TERMS = ("relative_keys", "relative_queries", "relative_values", "bias")
FITS_KEYS = "expected 8, the width of the relative query; make the encoding with head_dim=8"


def term(name: str, heads: int = 1, width: int = 8, **kind) -> ScoreTerms:
    size = (heads, 21) if name == "bias" else (heads, 21, width)
    return ScoreTerms(**{name: OffsetTable(ones(*size, **kind), -10)})


@pytest.mark.parametrize("function", [relative_attention, attention_weights, explain])
@pytest.mark.parametrize("came", ["rope", 1, True, AlibiBias, [AlibiBias(4)], torch.nn.Linear(2, 2)], ids=str)
def test_no_encoding(function, came):
    said = f"encoding: got {kind_of(came)}; expected a RelativeEncoding, ScoreTerms, or None"
    with refused(TypeError, said):
        call(function, encoding=came)


HEADS = (
    "{0}: got {1} heads ([{1}, {2}]); expected 4, the query's; make the encoding for 4 heads, or for one head shared "
    "by all"
)
MISFITS = [
    (
        AlibiBias(3),
        "AlibiBias num_heads: got 3; expected 4, the heads of query [2, 4, 5, 8]; make it with num_heads=4",
    ),
    (
        TransformerXLEmbedding(2, 8),
        "TransformerXLEmbedding num_heads: got 2; expected 4, the heads of query [2, 4, 5, 8]; make it with "
        "num_heads=4",
    ),
    (
        TransformerXLEmbedding(4, 6),
        "TransformerXLEmbedding head_dim: got 6; expected 8, the width of query [2, 4, 5, 8]; make it with head_dim=8",
    ),
    (
        RotaryEmbedding(6),
        "RotaryEmbedding head_dim: got 6; expected 8, the width of key [2, 4, 6, 8]; make it with head_dim=8",
    ),
    (
        KerpleBias(3),
        "KerpleBias num_heads: got 3; expected 4, the heads of query [2, 4, 5, 8]; make it with num_heads=4",
    ),
    (
        SandwichBias(3),
        "SandwichBias num_heads: got 3; expected 4, the heads of query [2, 4, 5, 8]; make it with num_heads=4",
    ),
    (
        FunctionBias(torch.cos, 3),
        "FunctionBias num_heads: got 3; expected 4, the heads of query [2, 4, 5, 8]; make it with num_heads=4",
    ),
    (T5Bias(3), "T5Bias num_heads: got 3; expected 4, the heads of query [2, 4, 5, 8]; make it with num_heads=4"),
    (ShawEmbedding(8, 3, num_heads=2), HEADS.format("relative_keys", 2, "7, 8")),
    (RelativeEmbedding(8, 9, num_heads=8), HEADS.format("relative_keys", 8, "17, 8")),
    (ShawEmbedding(7, 3), f"relative_keys: got width 7 ([1, 7, 7]); {FITS_KEYS}"),
    (RelativeEmbedding(16, 9), f"relative_keys: got width 16 ([1, 17, 16]); {FITS_KEYS}"),
]


@pytest.mark.parametrize(("encoding", "said"), MISFITS)
def test_for_other_heads_or_width(encoding, said):
    for alone_or_in_a_sum in (encoding, encoding + AlibiBias(4), AlibiBias(4) + encoding):
        with refused(ShapeError, said):
            call(encoding=alone_or_in_a_sum)


def test_relative_values_are_as_wide_as_the_values():
    said = (
        "relative_values: got width 8 ([1, 7, 8]); expected 5, the width of the values; make values as wide as the keys"
    )
    with refused(ShapeError, said):
        call(value=ones(2, 4, 6, 5), encoding=ShawEmbedding(8, 3))


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("relative_keys", RelativeEmbedding(8, 9)), ("relative_keys", ShawEmbedding(8, 3)), ("bias", T5Bias(4)),
        ("...", TransformerXLEmbedding(4, 8)), ("r1", KerpleBias(4)),
        ("function.weight", FunctionBias(torch.nn.Linear(1, 4), 4)),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("made", "called"),
    [(torch.float64, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.float64)],
    ids=str,
)
def test_of_another_dtype(name, encoding, made, called):
    inputs = {which: ones(2, 4, 6, 8, dtype=called) for which in ("query", "key", "value")}
    said = f"{name}: got dtype {made}; expected {called}, the query's; convert the encoding with .to({called})"
    with refused(TypeError, said):
        call(encoding=encoding.to(made), **inputs)


def test_a_sum_of_narrow_and_float32_tables():
    """Each is allowed beside a bfloat16 query; AlibiBias has no parameter that could be converted."""
    narrow = {which: ones(2, 4, 6, 8, dtype=torch.bfloat16) for which in ("query", "key", "value")}
    bias = T5Bias(4).bfloat16() + AlibiBias(4)
    keys = RelativeEmbedding(8, 9).bfloat16() + RelativeEmbedding(8, 9) + TransformerXLEmbedding(4, 8)
    assert call(encoding=bias + keys, **narrow).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("relative_keys", RelativeEmbedding(8, 9)), ("relative_keys", ShawEmbedding(8, 3)), ("T5Bias", T5Bias(4)),
        ("TransformerXLEmbedding", TransformerXLEmbedding(4, 8)),
        ("TransformerXLEmbedding", TransformerXLEmbedding(4, 8, max_length=9)), ("KerpleBias", KerpleBias(4)),
        ("function.weight", FunctionBias(torch.nn.Linear(1, 4), 4)),
    ],
    ids=str,
)  # fmt: skip
def test_on_another_device(name, encoding):
    with refused(ValueError, f"{name}: got device meta; expected cpu, the query's; move the encoding with .to()"):
        call(encoding=encoding.to("meta"))


NO_ROWS = [
    (lambda d: d.numpy(), TypeError, "FunctionBias function: returned ndarray; expected a tensor"),
    (lambda d: None, TypeError, "FunctionBias function: returned NoneType; expected a tensor"),
    (
        lambda d: d,
        ShapeError,
        "FunctionBias function: returned shape [10] for 10 offsets; expected [4, 10], a number per head and offset",
    ),
    (
        lambda d: d.expand(3, -1),
        ShapeError,
        "FunctionBias function: returned shape [3, 10] for 10 offsets; expected [4, 10], a number per head and offset",
    ),
    (
        lambda d: d.expand(4, -1).T,
        ShapeError,
        "FunctionBias function: returned shape [10, 4] for 10 offsets; expected [4, 10], a number per head and offset",
    ),
    (
        lambda d: d.expand(1, 4, -1),
        ShapeError,
        "FunctionBias function: returned shape [1, 4, 10] for 10 offsets; expected [4, 10], a number per head and "
        "offset",
    ),
    (
        lambda d: d.expand(4, -1).double(),
        TypeError,
        "FunctionBias function: returned dtype torch.float64; expected torch.float32, that of the offsets",
    ),
    (
        lambda d: d.expand(4, -1).bfloat16(),
        TypeError,
        "FunctionBias function: returned dtype torch.bfloat16; expected torch.float32, that of the offsets",
    ),
    (
        lambda d: d.expand(4, -1).to("meta"),
        ValueError,
        "FunctionBias function: returned a tensor on meta; expected cpu, the device of the offsets",
    ),
]


@pytest.mark.parametrize(("function", "kind", "said"), NO_ROWS)
def test_a_function_that_returns_no_rows(function, kind, said):
    """Whatever backend would run it, alone and in a sum."""
    for encoding in (FunctionBias(function, 4), FunctionBias(function, 4) + AlibiBias(4)):
        with refused(kind, said):
            call(encoding=encoding)


@pytest.mark.parametrize("name", TERMS)
def test_terms_of_other_heads(name):
    with refused(ShapeError, HEADS.format(name, 3, "21" if name == "bias" else "21, 8")):
        call(encoding=term(name, heads=3))


@pytest.mark.parametrize("name", TERMS)
def test_terms_of_as_many_heads_as_the_keys(name):
    """With grouped queries a table has the query's heads, not the keys'."""
    grouped = {"key": ones(2, 2, 6, 8), "value": ones(2, 2, 6, 8), "enable_gqa": True}
    with refused(ShapeError, HEADS.format(name, 2, "21" if name == "bias" else "21, 8")):
        call(encoding=term(name, heads=2), **grouped)


WIDTH_OF = {"relative_keys": "relative query", "relative_queries": "keys", "relative_values": "values"}


@pytest.mark.parametrize("name", WIDTH_OF)
def test_terms_of_another_width(name):
    way_out = "make values as wide as the keys" if name == "relative_values" else "make the encoding with head_dim=8"
    expected = f"expected 8, the width of the {WIDTH_OF[name]}; {way_out}"
    with refused(ShapeError, f"{name}: got width 7 ([1, 21, 7]); {expected}"):
        call(encoding=term(name, width=7))


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool, torch.complex64], ids=str)
def test_terms_of_another_dtype(name, dtype):
    said = (
        f"{name}: got dtype {dtype}; expected torch.float32, the query's; convert the encoding with .to(torch.float32)"
    )
    with refused(TypeError, said):
        call(encoding=term(name, dtype=dtype))


@pytest.mark.parametrize("name", TERMS)
def test_terms_on_another_device(name):
    with refused(ValueError, f"{name}: got device meta; expected cpu, the query's; move the encoding with .to()"):
        call(encoding=term(name, device="meta"))


REWRITTEN = {"terms query": (2, 4, 5, 8), "terms key": (2, 4, 6, 8), "relative_query": (2, 4, 5, 8)}


def rewritten(name: str, *size: int, **kind) -> ScoreTerms:
    """Terms whose query, key or relative query is a tensor of this size and kind."""
    if name == "relative_query":
        return ScoreTerms(relative_query=ones(*size, **kind), relative_keys=OffsetTable(ones(1, 21, size[-1]), -10))
    return ScoreTerms(**{name.removeprefix("terms "): ones(*size, **kind)})


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("terms query", (2, 4, 5, 7), "; expected [2, 4, 5, 8], for a rewritten query keeps the shape"),
        ("terms query", (4, 5, 8), "; expected [2, 4, 5, 8], for a rewritten query keeps the shape"),
        ("terms key", (2, 4, 5, 8), "; expected [2, 4, 6, 8], for a rewritten key keeps the shape"),
        ("relative_query", (4, 5, 8), " beside query [2, 4, 5, 8]; expected [2, 4, 5] and any width"),
        ("relative_query", (2, 4, 6, 8), " beside query [2, 4, 5, 8]; expected [2, 4, 5] and any width"),
        ("relative_query", (2, 1, 5, 8), " beside query [2, 4, 5, 8]; expected [2, 4, 5] and any width"),
    ],
)
def test_rewritten_to_another_shape(name, size, said):
    with refused(ShapeError, f"{name}: got shape {list(size)}{said}"):
        call(encoding=rewritten(name, *size))


@pytest.mark.parametrize("name", REWRITTEN)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("backend", ["auto", "dense"])
def test_rewritten_to_another_dtype(name, dtype, backend):
    said = (
        f"{name}: got dtype {dtype}; expected torch.float32, the query's; convert the encoding with .to(torch.float32)"
    )
    with refused(TypeError, said):
        call(encoding=rewritten(name, *REWRITTEN[name], dtype=dtype), backend=backend)


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten_on_another_device(name):
    with refused(ValueError, f"{name}: got device meta; expected cpu, the query's; move the encoding with .to()"):
        call(encoding=rewritten(name, *REWRITTEN[name], device="meta"))


@pytest.mark.parametrize("name", ["terms query", "terms key"])
def test_rewritten_in_float32_beside_narrow_floats(name):
    """An encoding with float32 parameters widens a bfloat16 query: "auto" runs it, sdpa says why it cannot."""
    narrow = {which: ones(2, 4, 6, 8, dtype=torch.bfloat16) for which in ("query", "key", "value")}
    encoding = rewritten(name, 2, 4, 6, 8)
    assert call(encoding=encoding, **narrow).dtype == torch.bfloat16
    with refused(UnsupportedError, "backend='sdpa' cannot run this: its query, key and value are of one dtype; use..."):
        call(encoding=encoding, backend="sdpa", **narrow)


class RelativeQueries(RelativeEncoding):
    def terms(self, query, key, positions):
        return ScoreTerms(relative_queries=OffsetTable(ones(1, 3, 8), -1, "zero"))


def test_two_rotations():
    said = "sum of encodings: two operands rotate the queries and keys; no paper defines that, keep one of them"
    with refused(UnsupportedError, said):
        (AlibiBias(4) + RotaryEmbedding(8)) + (ShawEmbedding(8, 3) + RotaryEmbedding(8, base=500.0))


@pytest.mark.parametrize(
    "encoding", [RotaryEmbedding(8) + RelativeQueries(), RelativeQueries() + AlibiBias(4) + RotaryEmbedding(8)]
)
def test_rotation_and_relative_queries(encoding):
    said = (
        "sum of encodings: a rotation and relative queries; the relative queries would meet rotated keys, which no "
        "paper defines"
    )
    with refused(UnsupportedError, said) as caught:
        call(encoding=encoding)
    assert caught.value.reasons == {}


@pytest.mark.parametrize("other", [TransformerXLEmbedding(4, 8), RotaryEmbedding(8)])
def test_two_rewritings(other):
    said = "sum of encodings: both operands rewrite the query; no paper defines that, keep one of them"
    for encoding in (TransformerXLEmbedding(4, 8) + other, other + TransformerXLEmbedding(4, 8)):
        with refused(UnsupportedError, said):
            call(encoding=encoding)


@pytest.mark.parametrize(
    ("other", "came"),
    [
        (1, "int"), (None, "NoneType"), ("rope", "str"), (ScoreTerms(), "ScoreTerms"),
        (T5Bias, "the class T5Bias and no instance, T5Bias(...)"),
    ],
    ids=["1", "None", "str", "terms", "class"],
)  # fmt: skip
def test_sum_with_something_else(other, came):
    with refused(TypeError, f"sum of encodings: got {came}; expected a RelativeEncoding"):
        AlibiBias(4) + other
    if not isinstance(other, ScoreTerms):  # whose own sum is asked first
        with refused(TypeError, f"sum of encodings: got {came}; expected a RelativeEncoding"):
            other + AlibiBias(4)


class Returns(RelativeEncoding):
    """An encoding whose methods return what it was given."""

    def __init__(self, key=None, terms=None):
        super().__init__()
        self.returned_key, self.returned_terms = key, terms

    def prepare_keys(self, key, key_position):
        return self.returned_key

    def terms(self, query, key, positions):
        return self.returned_terms


@pytest.mark.parametrize("sum_or_not", [lambda e: e, lambda e: e + AlibiBias(4), lambda e: AlibiBias(4) + e])
def test_a_broken_encoding(sum_or_not):
    key = ones(2, 4, 6, 8)
    with refused(TypeError, "Returns.terms: returned NoneType; expected ScoreTerms"):
        call(encoding=sum_or_not(Returns(key, None)))
    with refused(TypeError, "Returns.prepare_keys: returned NoneType; expected a tensor"):
        call(encoding=sum_or_not(Returns(None, ScoreTerms())))
    said = "Returns.prepare_keys: returned shape [2, 4, 6, 3] for a key of [2, 4, 6, 8]; expected the same shape"
    with refused(ShapeError, said):
        call(encoding=sum_or_not(Returns(key[..., :3], ScoreTerms())))


def test_a_class_in_place_of_an_instance_is_named() -> None:
    q = torch.randn(1, 2, 4, 8)
    said = (
        "encoding: got the class T5Bias and no instance, T5Bias(...); expected a RelativeEncoding, ScoreTerms, or None"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        relattn.relative_attention(q, q, q, encoding=relattn.T5Bias)  # pyright: ignore[reportArgumentType]
