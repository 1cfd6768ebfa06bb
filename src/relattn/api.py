"""relative_attention, attention_and_lse, attention_weights and explain: the score equation, by one signature."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from relattn.backends.dense import DenseBackend
from relattn.backends.select import Explanation
from relattn.call import Options, request_of
from relattn.checks.autocast import without_autocast
from relattn.encodings.base import RelativeEncoding
from relattn.equation.mask import AttentionMask, Segments
from relattn.equation.terms import ScoreTerms
from relattn.equation.visible_blocks import VisibleBlocks
from relattn.errors import UnsupportedError
from relattn.plan import attend
from relattn.positions.position import PositionsLike
from relattn.positions.positions import Window


def relative_attention(
    query: Float[Tensor, "*B Hq Lq D"],
    key: Float[Tensor, "*B Hk Lk D"],
    value: Float[Tensor, "*B Hk Lk Dv"],
    attn_mask: AttentionMask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    encoding: RelativeEncoding | ScoreTerms | None = None,
    query_position: PositionsLike = 0,
    key_position: PositionsLike = 0,
    window: Window | None = None,
    key_mask: Bool[Tensor, "*B Lk"] | None = None,
    segment_ids: Segments | None = None,
    visible_blocks: VisibleBlocks | None = None,
    key_bias: Float[Tensor, "*#B #Hq Lk"] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "Hq"] | Float[Tensor, "*B Hq Lq"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*B Hq Lq Dv"]:
    """S_ij = scale * (q_i . k_j + sum_c (r_c,i . RK_c[d_c] + RQ_c[d_c] . k_j)) + sum_c b_c[d_c]
    S'_ij = softcap * tanh(S_ij / softcap) + a_j + mask
    O_i = sum_j softmax(S')_ij * (v_j + sum_c RV_c[d_c])

    d_c = key position - query position on axis c, negative in the past. c is only the sequence, unless positions
    are given by name. The first eight arguments are those of torch.nn.functional.scaled_dot_product_attention, in
    the same order and with the same meaning. With encoding=None the answers are the same too.

    query [*B, Hq, Lq, D], key [*B, Hk, Lk, D], value [*B, Hk, Lk, Dv]: float64, float32, bfloat16 or float16, of
        one dtype, which is also the output's. Scores and sums are float32, or float64 for float64. *B: any number
        of batch axes, also none. They broadcast, and the answer has them.
    attn_mask: boolean, True where a pair attends, or float, added to the scores; broadcastable to [*B, Hq, Lq, Lk].
    dropout_p: the share of softmax weights to drop; the caller passes 0 outside of training.
    is_causal: a query sees keys at its own position and before. May be combined with every other mask.
    scale: 1 / sqrt(D) when None.
    enable_gqa: Hk may divide Hq; each group of Hq / Hk neighbouring query heads shares a key head.
    encoding: the source of RK, RQ, RV and b: a RelativeEncoding, or ScoreTerms that are already lowered, with a key
        that the encoding has already prepared.
    query_position, key_position: the position of the first query and key (int or 0-d integer tensor), or the
        positions of all of them, [L] or [*B, L], or GridPositions. Offsets, causality and window compare positions. A
        mapping gives them on several axes by name, such as relattn.grid(height, width) for "y" and "x"; both sides
        name the same axes. A position without a name is on "sequence". If the mapping leaves "sequence" out, it
        starts at 0. Only "sequence" decides causality and window.
    window: (left, right) keeps offsets -left..right; None on a side sets no limit there.
    key_mask [*B, Lk]: True keeps a key.
    segment_ids: integers [*B, L], or a pair ([*B, Lq], [*B, Lk]); attention stays among equal ids (packed
        documents).
    visible_blocks: VisibleBlocks of the call's masks, where several calls share them; a long call without them finds
        them for itself.
    key_bias a: [*B, Hq, Lk], with 1 where batch elements or heads share it, in float32 or the query's dtype. Finite
        numbers, not scaled; use key_mask to drop keys. Prefix sums may grow with the length: their differences keep
        their digits.
    softcap: a number above 0 that no score, with the encoding's terms, exceeds; None: no cap. a and masks are not
        capped.
    sinks [Hq] or [*B, Hq, Lq], any float: one more logit, without a value, in each query's softmax.
    backend: "auto", or the name of a backend, which then runs or raises.

    A query with nothing to attend to gives output 0 and gradient 0.

    Raises ShapeError, TypeError, ValueError: for an argument that does not fit, named in the message;
    UnsupportedError: where the named backend cannot run the request; RuntimeError: by the device, where positions
    given as tensors leave a table that refuses them.
    """
    options = Options(
        attn_mask=attn_mask, key_mask=key_mask, segment_ids=segment_ids, visible_blocks=visible_blocks, window=window,
        key_bias=key_bias, softcap=softcap, sinks=sinks, dropout_p=dropout_p, scale=scale, backend=backend,
    )  # fmt: skip
    return attend(query, key, value, is_causal, enable_gqa, encoding, query_position, key_position, options, None)


def attention_and_lse(
    query: Float[Tensor, "*B Hq Lq D"],
    key: Float[Tensor, "*B Hk Lk D"],
    value: Float[Tensor, "*B Hk Lk Dv"],
    attn_mask: AttentionMask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    encoding: RelativeEncoding | ScoreTerms | None = None,
    query_position: PositionsLike = 0,
    key_position: PositionsLike = 0,
    window: Window | None = None,
    key_mask: Bool[Tensor, "*B Lk"] | None = None,
    segment_ids: Segments | None = None,
    visible_blocks: VisibleBlocks | None = None,
    key_bias: Float[Tensor, "*#B #Hq Lk"] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "Hq"] | Float[Tensor, "*B Hq Lq"] | None = None,
    backend: str = "auto",
) -> tuple[Float[Tensor, "*B Hq Lq Dv"], Float[Tensor, "*B Hq Lq"]]:
    """O, and lse_i = log sum_j exp(S'_ij), the sum over the keys without the sink: what merges attention over parts of
    the keys.

    lse [*B, Hq, Lq]: float32, or float64 for float64; differentiable. A query with nothing to attend to has lse -inf.

    query, key, value, scale, enable_gqa, encoding, query_position, key_position: as in `relative_attention`.
    attn_mask, is_causal, window, key_mask, segment_ids, visible_blocks, key_bias, softcap, sinks: as there.
    dropout_p: as there; lse is that of all weights. backend: as there; "sdpa" returns no lse.

    It raises what `relative_attention` raises.
    """
    options = Options(
        attn_mask=attn_mask, key_mask=key_mask, segment_ids=segment_ids, visible_blocks=visible_blocks, window=window,
        key_bias=key_bias, softcap=softcap, sinks=sinks, dropout_p=dropout_p, scale=scale, backend=backend,
    )  # fmt: skip
    output, lse = request_of(
        query, key, value, is_causal, enable_gqa, encoding, query_position, key_position, options, return_lse=True
    ).run()
    assert lse is not None
    return output, lse


def attention_weights(
    query: Float[Tensor, "*B Hq Lq D"],
    key: Float[Tensor, "*B Hk Lk D"],
    value: Float[Tensor, "*B Hk Lk Dv"],
    attn_mask: AttentionMask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    encoding: RelativeEncoding | ScoreTerms | None = None,
    query_position: PositionsLike = 0,
    key_position: PositionsLike = 0,
    window: Window | None = None,
    key_mask: Bool[Tensor, "*B Lk"] | None = None,
    segment_ids: Segments | None = None,
    visible_blocks: VisibleBlocks | None = None,
    key_bias: Float[Tensor, "*#B #Hq Lk"] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "Hq"] | Float[Tensor, "*B Hq Lq"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*B Hq Lq Lk"]:
    """softmax(S), the weights that `relative_attention` gives the values, in the dtype of the query.

    The dense backend computes the weights, in O(Lq Lk) memory. A row with nothing to attend to is zero, and a row with
    a sink sums to less than 1.

    query, key, value, scale, enable_gqa, encoding, query_position, key_position: as in `relative_attention`.
    attn_mask, is_causal, window, key_mask, segment_ids, visible_blocks, key_bias, softcap, sinks: as there.
    dropout_p: 0. backend: "auto" or "dense".

    Raises ValueError: for dropout_p above 0, which has no meaning here; UnsupportedError: for a backend other than
    "auto" or "dense". It also raises what `relative_attention` raises.
    """
    options = Options(
        attn_mask=attn_mask, key_mask=key_mask, segment_ids=segment_ids, visible_blocks=visible_blocks, window=window,
        key_bias=key_bias, softcap=softcap, sinks=sinks, dropout_p=dropout_p, scale=scale, backend=backend,
    )  # fmt: skip
    request = request_of(query, key, value, is_causal, enable_gqa, encoding, query_position, key_position, options)
    problem = request.problem
    if problem.dropout_p > 0.0:
        raise ValueError(
            f"dropout_p: got {problem.dropout_p}; expected 0, for attention_weights gives the weights before any is "
            "dropped"
        )
    if backend not in ("auto", "dense"):
        raise UnsupportedError(
            f"backend: got {backend!r}, which does not keep the attention weights; expected 'dense', which does, or "
            "'auto'",
            {backend: ["it does not keep the attention weights"]},
        )
    with without_autocast(problem.query):
        return request.restore_batch(DenseBackend().weights(problem))


def explain(
    query: Float[Tensor, "*B Hq Lq D"],
    key: Float[Tensor, "*B Hk Lk D"],
    value: Float[Tensor, "*B Hk Lk Dv"],
    attn_mask: AttentionMask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    encoding: RelativeEncoding | ScoreTerms | None = None,
    query_position: PositionsLike = 0,
    key_position: PositionsLike = 0,
    window: Window | None = None,
    key_mask: Bool[Tensor, "*B Lk"] | None = None,
    segment_ids: Segments | None = None,
    visible_blocks: VisibleBlocks | None = None,
    key_bias: Float[Tensor, "*#B #Hq Lk"] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "Hq"] | Float[Tensor, "*B Hq Lq"] | None = None,
    backend: str = "auto",
) -> Explanation:
    """Which backend `relative_attention` takes for these arguments, and for each of the others why not.

    `attention_and_lse` takes the same one, but in place of "sdpa", which returns no lse, the first of the others that
    is called usable.

    Only the encoding's terms are computed. `print` the answer, or read its `chosen` and `others`.

    query, key, value, scale, enable_gqa, encoding, query_position, key_position: as in `relative_attention`.
    attn_mask, is_causal, window, key_mask, segment_ids, visible_blocks, key_bias, softcap, sinks: as there.
    dropout_p, backend: as there.
    """
    options = Options(
        attn_mask=attn_mask, key_mask=key_mask, segment_ids=segment_ids, visible_blocks=visible_blocks, window=window,
        key_bias=key_bias, softcap=softcap, sinks=sinks, dropout_p=dropout_p, scale=scale, backend=backend,
    )  # fmt: skip
    return request_of(
        query, key, value, is_causal, enable_gqa, encoding, query_position, key_position, options
    ).explain()
