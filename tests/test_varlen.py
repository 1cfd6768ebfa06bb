"""varlen_attention beside separate calls: kinds of encoding, lengths of its own on either side, gradients, errors."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from relattn import (
    DisentangledEmbedding,
    RelativeEmbedding,
    RotaryEmbedding,
    ShapeError,
    ShawEmbedding,
    T5Bias,
    TransformerXLEmbedding,
    relative_attention,
    varlen,
    varlen_attention,
)
from relattn.call import request_of

HEADS, WIDTH = 4, 8
LENGTHS = (5, 0, 9, 1, 70)
ENCODINGS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "relative": lambda: RelativeEmbedding(WIDTH, 90, num_heads=HEADS),
    "shaw": lambda: ShawEmbedding(WIDTH, 3),
    "t5": lambda: T5Bias(HEADS),
    "rope": lambda: RotaryEmbedding(WIDTH),
    "disentangled": lambda: DisentangledEmbedding(HEADS, WIDTH, max_distance=16),
    "rope and t5": lambda: RotaryEmbedding(WIDTH) + T5Bias(HEADS),
}
GRAPHS: dict[str, Callable[[], Any]] = {
    "relative": lambda: RelativeEmbedding(WIDTH, 16, num_heads=HEADS),
    "t5": ENCODINGS["t5"],
    "txl": lambda: TransformerXLEmbedding(HEADS, WIDTH),
}
every_encoding = pytest.mark.parametrize("name", ENCODINGS)


def starts_of(lengths: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def rows(total: int, heads: int = HEADS) -> Tensor:
    return torch.randn(total, heads, WIDTH, requires_grad=True)


def apart(
    inputs: Sequence[Tensor], lengths: Sequence[int], key_lengths: Sequence[int], encoding: Any, **asked: Any
) -> Tensor:
    """Each document by itself; the last query stands at the last key."""
    found = []
    parts = [one.split(list(its)) for one, its in zip(inputs, (lengths, key_lengths, key_lengths), strict=True)]
    for query, key, value in zip(*parts, strict=True):
        q, k, v = (one.transpose(0, 1)[None] for one in (query, key, value))
        more = key.shape[0] - query.shape[0]
        found.append(relative_attention(q, k, v, encoding=encoding, query_position=more, **asked)[0].transpose(0, 1))
    return torch.cat(found)


def assert_same(found: Tensor, expected: Tensor, leaves: Sequence[Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
    upstream = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(one, leaves, upstream) for one in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("asked", [{}, {"is_causal": True}, {"window": (4, 2), "softcap": 3.0}], ids=str)
@every_encoding
def test_it_is_each_document_alone(name: str, asked: dict[str, Any]) -> None:
    encoding, total = ENCODINGS[name](), sum(LENGTHS)
    inputs = rows(total), rows(total, 2), rows(total, 2)
    found = varlen_attention(*inputs, starts_of(LENGTHS), encoding=encoding, enable_gqa=True, **asked)
    assert found.is_contiguous()
    parameters = [] if encoding is None else list(encoding.parameters())
    expected = apart(inputs, LENGTHS, LENGTHS, encoding, enable_gqa=True, **asked)
    assert_same(found, expected, [*inputs, *parameters])


@pytest.mark.parametrize("asked", [{}, {"is_causal": True}, {"window": (4, 2)}], ids=str)
@every_encoding
def test_both_sides_have_lengths_of_their_own(name: str, asked: dict[str, Any]) -> None:
    """New tokens behind a cache, no new token, and more queries than keys."""
    encoding, lengths, key_lengths = ENCODINGS[name](), (1, 3, 0, 8), (70, 3, 6, 4)
    inputs = rows(sum(lengths)), rows(sum(key_lengths)), rows(sum(key_lengths))
    found = varlen_attention(*inputs, starts_of(lengths), starts_of(key_lengths), encoding=encoding, **asked)
    parameters = [] if encoding is None else list(encoding.parameters())
    assert_same(found, apart(inputs, lengths, key_lengths, encoding, **asked), [*inputs, *parameters])


def test_a_scaling_by_the_length_takes_that_of_the_longest_document() -> None:
    scaling = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 10}
    encoding, lengths = RotaryEmbedding(WIDTH, scaling=scaling), (20, 20)
    inputs = rows(40), rows(40), rows(40)
    found = varlen_attention(*inputs, starts_of(lengths), encoding=encoding)
    assert_same(found, apart(inputs, lengths, lengths, encoding), inputs)


def test_rows_for_the_longest_document_suffice() -> None:
    """The sentence names the offsets that documents have; a window leaves fewer."""
    inputs, starts = (rows(24), rows(24), rows(24)), starts_of([8, 8, 8])
    encoding = RelativeEmbedding(WIDTH, 8, num_heads=HEADS)
    assert_same(varlen_attention(*inputs, starts, encoding=encoding), apart(inputs, [8] * 3, [8] * 3, encoding), inputs)
    short = RelativeEmbedding(WIDTH, 7, num_heads=HEADS)
    with pytest.raises(ValueError, match=r"visible offsets -7\.\.7 and rows for -6\.\.6"):
        varlen_attention(*inputs, starts, encoding=short)
    assert varlen_attention(*inputs, starts, encoding=short, window=(6, 3)).shape == (24, HEADS, WIDTH)


def test_more_queries_in_one_document_and_more_keys_in_another() -> None:
    """The table needs rows for the offsets within documents: -99..99, though positions are -97..99 and 0..99."""
    lengths, key_lengths = (1, 100), (100, 3)
    inputs, encoding = (rows(101), rows(103), rows(103)), RelativeEmbedding(WIDTH, 100, num_heads=HEADS)
    found = varlen_attention(*inputs, starts_of(lengths), starts_of(key_lengths), encoding=encoding)
    assert_same(found, apart(inputs, lengths, key_lengths, encoding), inputs)


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the last call asked for, by the names of `request_of`."""
    asked: dict[str, Any] = {}

    def seen(*given: Any) -> Any:
        asked.update(inspect.signature(request_of).bind(*given).arguments)
        return request_of(*given)

    monkeypatch.setattr(varlen, "request_of", seen)
    return asked


@pytest.mark.parametrize("again", [lambda starts: starts, Tensor.clone], ids=["the same tensor", "the same numbers"])
def test_starts_given_twice_cost_no_explicit_positions(again: Callable[[Tensor], Tensor], came: dict[str, Any]) -> None:
    """FlashAttention's callers give the starts of both sides. Contiguous positions take less time."""
    starts, inputs = starts_of(LENGTHS), [rows(sum(LENGTHS)) for _ in range(3)]
    found = varlen_attention(*inputs, starts, again(starts), encoding=T5Bias(HEADS))
    assert (came["query_position"], came["key_position"]) == (0, 0) and found.shape == inputs[0].shape


def test_every_argument_goes_on(came: dict[str, Any]) -> None:
    """But the window: no document is longer than 4."""
    inputs, encoding = [rows(9) for _ in range(3)], T5Bias(HEADS)
    said: dict[str, Any] = {
        "softcap": 3.0,
        "sinks": torch.randn(HEADS),
        "dropout_p": 0.5,
        "scale": 0.25,
        "backend": "dense",
    }
    others: dict[str, Any] = {"is_causal": True, "enable_gqa": True, "encoding": encoding}
    varlen_attention(*inputs, starts_of([4, 2, 3]), window=(2, None), **said, **others)
    options = vars(came["options"])
    assert {name: options[name] for name in said} == said and {name: came[name] for name in others} == others
    assert options["window"] == (2, 3) and options["segment_ids"].tolist() == [[0] * 4 + [1] * 2 + [2] * 3]


def test_nothing_waits_for_a_device() -> None:
    """Numbers that are not there to be read are not read."""
    inputs, starts = [torch.empty(12, HEADS, WIDTH, device="meta") for _ in range(3)], starts_of([4, 8]).to("meta")
    assert varlen_attention(*inputs, starts, starts.clone(), is_causal=True).shape == (12, HEADS, WIDTH)


def test_nothing_at_all() -> None:
    assert varlen_attention(rows(0), rows(0), rows(0), starts_of([]), max_seqlen_q=0).shape == (0, HEADS, WIDTH)
    assert varlen_attention(rows(3), rows(0), rows(0), starts_of([3]), starts_of([0])).eq(0).all()


@pytest.mark.slow
@pytest.mark.parametrize("behind_a_cache", [False, True], ids=["one side", "both sides"])
@pytest.mark.parametrize("name", GRAPHS)
def test_one_graph_serves_every_document(name: str, behind_a_cache: bool) -> None:
    """Its longest lengths are hints there: tables are checked for them, and sinusoids are made for them."""
    torch.compiler.reset()
    inputs = rows(24), rows(24), rows(24)
    encoding = GRAPHS[name]()

    def attend(starts: Tensor) -> Tensor:
        return varlen_attention(
            *inputs, starts, starts.clone() if behind_a_cache else None, encoding=encoding, is_causal=True,
            max_seqlen_q=16, max_seqlen_k=16,
        )  # fmt: skip

    graphs: list[torch.fx.GraphModule] = []

    def counted(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(attend, fullgraph=True, backend=counted)
    for lengths in ((8, 8, 8), (16, 0, 8), (1, 15, 8)):
        expected = apart(inputs, lengths, lengths, encoding, is_causal=True)
        torch.testing.assert_close(compiled(starts_of(lengths)), expected, rtol=2e-5, atol=2e-5)
    assert len(graphs) == 1
    with pytest.raises(RuntimeError, match="cu_seqlens: expected 0, then numbers that never go back"):
        compiled(starts_of([17, 7, 0]))


ROWS = torch.zeros(12, HEADS, WIDTH)


def given(*numbers: float, **more: Any) -> dict[str, Tensor]:
    return {"cu_seqlens": torch.tensor(numbers, **more)}


def of_keys(*numbers: int) -> dict[str, Tensor]:
    return {"key_cu_seqlens": torch.tensor(numbers)}


def test_a_graph_refuses_numbers_that_wrap() -> None:
    """Their differences leave int32."""
    torch.compiler.reset()
    compiled = torch.compile(lambda starts: varlen_attention(ROWS, ROWS, ROWS, starts), fullgraph=True, backend="eager")
    with pytest.raises(RuntimeError, match="cu_seqlens: expected 0, then numbers that never go back"):
        compiled(torch.tensor([0, 2**31 - 1, -2, 12], dtype=torch.int32))


JAGGED = torch.nested.nested_tensor([torch.randn(3, 4, 8), torch.randn(9, 4, 8)], layout=torch.jagged)
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a batch": (
        {"query": torch.randn(1, 2, 12, 8)}, ShapeError,
        "query: got shape [1, 2, 12, 8]; expected [total, heads, width], one document after the other; a batch [batch, "
        "heads, length, width] goes to relative_attention",
    ),
    "a nested tensor": (
        {"key": JAGGED}, TypeError,
        "key: got a nested tensor; expected [total, heads, width]; pass key.values(), and key.offsets() as cu_seqlens",
    ),
    "rows in a list": ({"query": [1.0]}, TypeError, "query: got list; expected a tensor [total, heads, width]"),
    "a list": (
        {"cu_seqlens": [0, 12]}, TypeError, "cu_seqlens: got list; expected a tensor [documents + 1] of int32 or int64"
    ),
    "floats": (
        given(0.0, 12.0), TypeError,
        "cu_seqlens: got dtype torch.float32; expected int32 or int64; convert it with .to(torch.int32)",
    ),
    "no number": (
        given(dtype=torch.int32), ShapeError,
        "cu_seqlens: got shape [0]; expected [documents + 1], the starts and the total",
    ),
    "two axes": (
        {"cu_seqlens": torch.tensor([[0, 12]])}, ShapeError,
        "cu_seqlens: got shape [1, 2]; expected [documents + 1], the starts and the total",
    ),
    "another device": (
        given(0, 12, device="meta"), ValueError,
        "cu_seqlens: got device meta; expected cpu, that of the rows; move it with .to()",
    ),
    "another beginning": (
        given(1, 12), ValueError, "cu_seqlens: got 1 at its beginning; expected 0, where the first document begins"
    ),
    "back": (
        given(0, 8, 5, 12), ValueError, "cu_seqlens: got 5 after 8 at place 2; expected numbers that never go back"
    ),
    "short": (given(0, 8), ValueError, "cu_seqlens: got 8 at its end; expected 12, the number of rows of query"),
    "keys too far": (
        of_keys(0, 13), ValueError, "key_cu_seqlens: got 13 at its end; expected 12, the number of rows of key"
    ),
    "other documents": (
        of_keys(0, 4, 12), ShapeError, "key_cu_seqlens: got 2 documents beside 1 in cu_seqlens; expected as many"
    ),
    "a short hint": (
        {"max_seqlen_q": 11}, ValueError,
        "max_seqlen_q: got 11 beside a document of 12 in cu_seqlens; expected 12 or more, or None",
    ),
    "no hint": ({"max_seqlen_k": 1.5}, ValueError, "max_seqlen_k: got 1.5; expected an int"),
    "fewer keys": (
        {"key": torch.zeros(11, 4, 8), "value": torch.zeros(11, 4, 8)}, ValueError,
        "cu_seqlens: got 12 at its end; expected 11, the number of rows of key",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_refused_in_a_sentence(kind: str) -> None:
    changed, error, said = REFUSED[kind]
    asked = {"query": ROWS, "key": ROWS, "value": ROWS} | given(0, 12) | changed
    with pytest.raises(error) as caught:
        varlen_attention(**asked)
    assert str(caught.value).startswith(said)
