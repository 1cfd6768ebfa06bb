"""relative_attention, attention_weights and explain: the score equation as functions."""

from __future__ import annotations

import contextlib
import math
from typing import Literal, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relattn.arguments import check_flag, check_probability, check_scale
from relattn.backends.dense import DenseBackend
from relattn.backends.select import Explanation, check_backend, explain_choice, select
from relattn.encodings.base import RelativeEncoding, lower, prepare
from relattn.errors import UnsupportedError
from relattn.score import checks
from relattn.score.check_terms import check_terms
from relattn.score.mask import Mask
from relattn.score.positions import Position, Positions, int64_start, limits
from relattn.score.problem import Problem
from relattn.score.terms import ScoreTerms

Window = tuple[int | None, int | None]
Segments = Int[Tensor, "B L"] | tuple[Int[Tensor, "B Lq"], Int[Tensor, "B Lk"]]
AttentionMask = Bool[Tensor, "#B #Hq #Lq #Lk"] | Float[Tensor, "#B #Hq #Lq #Lk"]


@overload
def relative_attention(
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
    value: Float[Tensor, "B Hk Lk Dv"],
    attn_mask: AttentionMask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    encoding: RelativeEncoding | ScoreTerms | None = None,
    query_position: Position = 0,
    key_position: Position = 0,
    window: Window | None = None,
    key_mask: Bool[Tensor, "B Lk"] | None = None,
    segment_ids: Segments | None = None,
    backend: str = "auto",
    return_lse: Literal[False] = False,
) -> Float[Tensor, "B Hq Lq Dv"]: ...


@overload
def relative_attention(
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
    value: Float[Tensor, "B Hk Lk Dv"],
    attn_mask: AttentionMask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    encoding: RelativeEncoding | ScoreTerms | None = None,
    query_position: Position = 0,
    key_position: Position = 0,
    window: Window | None = None,
    key_mask: Bool[Tensor, "B Lk"] | None = None,
    segment_ids: Segments | None = None,
    backend: str = "auto",
    return_lse: Literal[True],
) -> tuple[Float[Tensor, "B Hq Lq Dv"], Float[Tensor, "B Hq Lq"]]: ...


def relative_attention(
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
    value: Float[Tensor, "B Hk Lk Dv"],
    attn_mask: AttentionMask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    encoding: RelativeEncoding | ScoreTerms | None = None,
    query_position: Position = 0,
    key_position: Position = 0,
    window: Window | None = None,
    key_mask: Bool[Tensor, "B Lk"] | None = None,
    segment_ids: Segments | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Float[Tensor, "B Hq Lq Dv"] | tuple[Float[Tensor, "B Hq Lq Dv"], Float[Tensor, "B Hq Lq"]]:
    """S_ij = scale * (q_i . k_j + r_i . RK[d] + RQ[d] . k_j) + b[d] + mask;  O_i = sum_j softmax(S)_ij * (v_j + RV[d]).

    d = key position - query position, negative in the past. The first eight arguments are those of
    torch.nn.functional.scaled_dot_product_attention, in its order and with its meaning; with encoding=None the answers
    are the same too.

    query [B, Hq, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv]: float64, float32, bfloat16 or float16, of one
        dtype, which is the output's. Scores and sums are float32, or float64 for float64.
    attn_mask: boolean, True where a pair attends, or float, added to the scores; broadcastable to [B, Hq, Lq, Lk].
    dropout_p: the share of softmax weights to drop; the caller passes 0 outside of training.
    is_causal: a query sees keys at its own position and before. May be combined with every other mask.
    scale: 1 / sqrt(D) when None.
    enable_gqa: Hk may divide Hq; each group of Hq / Hk neighbouring query heads shares a key head.
    encoding: where RK, RQ, RV and b come from: a RelativeEncoding, or ScoreTerms already lowered, whose key the
        encoding has already prepared.
    query_position, key_position: the position of the first query and key (int or 0-d integer tensor), or the positions
        of all of them, [L] or [B, L]. Offsets, causality and window compare positions.
    window: (left, right) keeps offsets -left..right; None on a side sets no limit there.
    key_mask [B, Lk]: True keeps a key.
    segment_ids: integers [B, L], or a pair ([B, Lq], [B, Lk]); attention stays among equal ids (packed documents).
    backend: "auto", or a name, which then runs or raises.
    return_lse: also return lse [B, Hq, Lq], the log of the sum of exp(S) over the keys, float32 or wider,
        differentiable.

    A query with nothing to attend to gives output 0, lse -inf, and gradient 0.

    Raises ShapeError, TypeError or ValueError for an argument that does not fit, named in the message; UnsupportedError
    where the named backend cannot run the request; RuntimeError, raised by the device, where positions given as tensors
    leave a table that refuses them.
    """
    problem = _problem(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, encoding, query_position, key_position,
        window, key_mask, segment_ids, backend, return_lse,
    )  # fmt: skip
    with _without_autocast(query):
        output, lse = select(backend, problem).run(problem)
    if not return_lse:
        return output
    assert lse is not None
    return output, lse


def attention_weights(
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
    value: Float[Tensor, "B Hk Lk Dv"],
    attn_mask: AttentionMask | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    encoding: RelativeEncoding | ScoreTerms | None = None,
    query_position: Position = 0,
    key_position: Position = 0,
    window: Window | None = None,
    key_mask: Bool[Tensor, "B Lk"] | None = None,
    segment_ids: Segments | None = None,
    backend: str = "auto",
) -> Float[Tensor, "B Hq Lq Lk"]:
    """softmax(S), the weights that `relative_attention` gives the values, in the dtype of the query.

    Arguments as there, less dropout_p and return_lse. The dense backend computes them, O(Lq Lk) memory; a row with
    nothing to attend to is zero. Raises UnsupportedError for another backend than "auto" or "dense".
    """
    problem = _problem(
        query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa, encoding, query_position, key_position,
        window, key_mask, segment_ids, backend, False,
    )  # fmt: skip
    if backend not in ("auto", "dense"):
        raise UnsupportedError(
            f"backend={backend!r} does not keep the attention weights; use 'dense', which does, or 'auto'",
            {backend: ["it does not keep the attention weights"]},
        )
    with _without_autocast(query):
        return DenseBackend().weights(problem)


def explain(
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
    value: Float[Tensor, "B Hk Lk Dv"],
    attn_mask: AttentionMask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    encoding: RelativeEncoding | ScoreTerms | None = None,
    query_position: Position = 0,
    key_position: Position = 0,
    window: Window | None = None,
    key_mask: Bool[Tensor, "B Lk"] | None = None,
    segment_ids: Segments | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Explanation:
    """Which backend `relative_attention` takes for these arguments, and why not each of the others.

    Nothing is computed but the encoding's terms. `print` the answer, or read its `chosen` and `others`.
    """
    problem = _problem(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, encoding, query_position, key_position,
        window, key_mask, segment_ids, backend, return_lse,
    )  # fmt: skip
    return explain_choice(backend, problem)


def prepared(
    encoding: RelativeEncoding, key: Float[Tensor, "B Hk Lk D"], key_position: Position
) -> Float[Tensor, "B Hk Lk D"]:
    """The keys as attention and caches hold them, in the encoding's own dtype under autocast too."""
    with _without_autocast(key):
        return prepare(encoding, key, key_position)


def lowered(
    encoding: RelativeEncoding,
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
    positions: Positions,
) -> ScoreTerms:
    """The encoding's terms for these queries and prepared keys, in its own dtype under autocast too."""
    with _without_autocast(query):
        return lower(encoding, query, key, positions)


def _problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    encoding: RelativeEncoding | ScoreTerms | None,
    query_position: Position,
    key_position: Position,
    window: Window | None,
    key_mask: Tensor | None,
    segment_ids: Segments | None,
    backend: str,
    return_lse: bool,
) -> Problem:
    """Check every argument, lower the encoding, and write down the problem."""
    check_backend(backend)
    query, key, value = _autocast(query, key, value)
    checks.check_tensors(query, key, value, enable_gqa)
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa), ("return_lse", return_lse)):
        check_flag(name, flag)
    check_probability("dropout_p", dropout_p)
    check_scale(scale)
    checks.check_position("query_position", query_position, query.shape[0], query.shape[2], query.device)
    checks.check_position("key_position", key_position, key.shape[0], key.shape[2], key.device)
    checks.check_window(window)
    checks.check_key_mask(key_mask, key)
    checks.check_attn_mask(attn_mask, query, key)
    segments = checks.check_segments(segment_ids, query, key)

    lowest, highest = limits(is_causal, window)
    query_position, key_position = int64_start(query_position), int64_start(key_position)
    positions = Positions(query_position, key_position, query.shape[2], key.shape[2], query.device, lowest, highest)
    if encoding is None:
        terms = ScoreTerms()
    elif isinstance(encoding, ScoreTerms):
        terms = encoding
    elif isinstance(encoding, RelativeEncoding):
        key = prepared(encoding, key, key_position)
        terms = lowered(encoding, query, key, positions)
    else:
        raise TypeError(f"encoding: got {type(encoding).__name__}; expected a RelativeEncoding, ScoreTerms, or None")
    check_terms(terms, query, key, value, positions)

    relative_query = None
    if terms.relative_keys is not None:
        relative_query = query if terms.relative_query is None else terms.relative_query
    explicit = None if attn_mask is None else attn_mask.reshape((1,) * (4 - attn_mask.dim()) + attn_mask.shape)
    return Problem(
        query=query if terms.query is None else terms.query,
        key=key if terms.key is None else terms.key,
        value=value,
        positions=positions,
        mask=Mask(positions, key_mask, segments, explicit),
        scale=1.0 / math.sqrt(query.shape[3]) if scale is None else scale,
        output_dtype=query.dtype,
        relative_query=relative_query,
        relative_keys=terms.relative_keys,
        relative_queries=terms.relative_queries,
        relative_values=terms.relative_values,
        bias=terms.bias,
        dropout_p=dropout_p,
        return_lse=return_lse,
    )


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What torch.autocast does to the inputs of scaled_dot_product_attention."""
    if not isinstance(tensors[0], Tensor) or not is_autocast(tensors[0]):
        return tensors
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    narrowed = (torch.float32, torch.bfloat16, torch.float16)
    return tuple(t.to(dtype) if isinstance(t, Tensor) and t.dtype in narrowed else t for t in tensors)


def _without_autocast(tensor: Tensor) -> contextlib.AbstractContextManager:
    """No autocast inside: the equation's own dtypes hold (scores and sums in float32)."""
    if not is_autocast(tensor):
        return contextlib.nullcontext()
    return torch.autocast(tensor.device.type, enabled=False)


def is_autocast(tensor: Tensor) -> bool:
    """Whether torch.autocast is on for the tensor's device."""
    device = tensor.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
