"""A call of attention is checked, placed and lowered once, and written down as a `Request`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relattn.backends.base import Backend
from relattn.backends.select import Explanation, check_backend, explain_choice, select
from relattn.checks.autocast import narrowed, without_autocast
from relattn.checks.dtensors import refuse_context_parallel
from relattn.checks.tensors import check_attn_mask, check_key_mask, check_segments, check_tensors
from relattn.checks.terms import check_term_axes
from relattn.checks.values import check_flag, check_probability, check_scale, check_softcap, kind_of
from relattn.encodings.base import RelativeEncoding, lower, placed_terms, prepare
from relattn.equation.key_bias import check_key_bias
from relattn.equation.mask import Mask
from relattn.equation.problem import Axis, Part, Problem
from relattn.equation.sinks import check_sinks, share
from relattn.equation.terms import ScoreTerms
from relattn.interception import HAS_GRAPHS, refuse_graph, refuse_trace
from relattn.positions.places import Places
from relattn.positions.positions import SEQUENCE

Segments = Int[Tensor, "*B L"] | tuple[Int[Tensor, "*B Lq"], Int[Tensor, "*B Lk"]]
NOTHING = ScoreTerms()
"""The terms of attention without an encoding."""
AttentionMask = Bool[Tensor, "*#B #Hq #Lq #Lk"] | Float[Tensor, "*#B #Hq #Lq #Lk"]


class Request(NamedTuple):
    """A problem, the backend that the caller named, and the caller's axes before the heads."""

    problem: Problem
    backend: str
    batch: tuple[int, ...]

    def run(self) -> tuple[Float[Tensor, "*B Hq Lq Dv"], Float[Tensor, "*B Hq Lq"] | None]:
        """O and, where the problem asks for it, lse."""
        with without_autocast(self.problem.query):
            backend = select(self.backend, self.problem)
            output, lse = backend.run(self.problem) if self.problem.sinks is None else self._run_with_sinks(backend)
        return self.restore_batch(output), None if lse is None else self.restore_batch(lse)

    def _run_with_sinks(self, backend: Backend) -> tuple[Float[Tensor, "B Hq Lq Dv"], Float[Tensor, "B Hq Lq"] | None]:
        """O * sigmoid(lse - sink), rounded once, and lse of the keys alone."""
        problem = self.problem
        assert problem.sinks is not None
        output, lse = backend.run(problem.replace(return_lse=True, output_dtype=problem.score_dtype()))
        assert lse is not None
        output = (output * share(lse, problem.sinks)).to(problem.output_dtype)
        return output, lse if problem.return_lse else None

    def explain(self) -> Explanation:
        """Which backend runs it, and for each of the others why it does not."""
        return explain_choice(self.backend, self.problem)

    def with_dropout_origin(self, part: Part | None) -> Request:
        """The same request. Dropout counts its pairs and heads as part of a larger call, or with None by themselves."""
        return self if part is None else self._replace(problem=self.problem.replace(part=part))

    def restore_batch(self, answer: Float[Tensor, "B *rest"]) -> Float[Tensor, "*B *rest"]:
        """An answer with the caller's axes."""
        return answer if len(self.batch) == 1 else answer.reshape(*self.batch, *answer.shape[1:])


def checked(
    query: Float[Tensor, "*b Hq Lq D"],
    key: Float[Tensor, "*b Hk Lk D"],
    value: Float[Tensor, "*b Hk Lk Dv"],
    enable_gqa: bool,
) -> tuple[Float[Tensor, "B Hq Lq D"], Float[Tensor, "B Hk Lk D"], Float[Tensor, "B Hk Lk Dv"], tuple[int, ...]]:
    """q, k and v, checked, cast as autocast casts them, with one batch axis; and the caller's batch axes.

    Raises UnsupportedError: in a graph that this torch cannot make, under torch.jit.trace, and under torch's
    `context_parallel`. It also raises what `check_tensors` raises.
    """
    if not HAS_GRAPHS and torch.compiler.is_compiling():
        refuse_graph()
    refuse_trace()
    refuse_context_parallel()
    check_flag("enable_gqa", enable_gqa)
    query, key, value = narrowed(query, key, value)
    batch = check_tensors(query, key, value, enable_gqa)
    return _flatten_batch(query, batch), _flatten_batch(key, batch), _flatten_batch(value, batch), batch


def request(
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
    value: Float[Tensor, "B Hk Lk Dv"],
    batch: tuple[int, ...],
    places: Places,
    *,
    encoding: RelativeEncoding | ScoreTerms | None,
    keys_are_prepared: bool = False,
    attn_mask: AttentionMask | None = None,
    key_mask: Bool[Tensor, "*B Lk"] | None = None,
    segment_ids: Segments | None = None,
    key_bias: Float[Tensor, "*#B #Hq Lk"] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "Hq"] | Float[Tensor, "*B Hq Lq"] | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Request:
    """The request for attention at `places`; query, key, value and batch as `checked` returned them.

    Layers call it directly, because a cache places its keys itself.

    keys_are_prepared: whether `key` comes from a cache, as the encoding prepared it. The other arguments are as in
        `relative_attention`.
    """
    check_backend(backend)
    dropout_p, scale = check_probability("dropout_p", dropout_p), check_scale(scale)
    check_flag("return_lse", return_lse)
    check_key_mask(key_mask, batch, key)
    check_attn_mask(attn_mask, batch, query, key)
    segments = check_segments(segment_ids, batch, query, key)
    if len(batch) != 1:
        key_mask = None if key_mask is None else _one_batch_axis(key_mask)
        segments = None if segments is None else _segments_of_one_axis(*segments)
    if isinstance(encoding, ScoreTerms):
        terms = placed_terms(_flatten_terms(encoding, batch), query, key, value, places)
    elif encoding is None:
        terms = NOTHING
    elif isinstance(encoding, RelativeEncoding):
        if not keys_are_prepared and encoding.rewrites_keys:
            key = prepare(encoding, key, {axis: positions.key for axis, positions in places.by_axis.items()})
        terms = lower(encoding, query, key, value, places)
    else:
        raise TypeError(f"encoding: got {kind_of(encoding)}; expected a RelativeEncoding, ScoreTerms, or None")
    rewritten_from = None if terms.query is None else query  # the caller's own, before the encoding rewrote it
    axes = tuple(_axis(places, names, part, rewritten_from) for names, part in terms.by_axes().items())
    problem = Problem(
        query=query if terms.query is None else terms.query,
        key=key if terms.key is None else terms.key,
        value=value,
        axes=axes,
        mask=Mask(places.sequence, key_mask, segments, _flatten_mask(attn_mask, batch)),
        scale=1.0 / math.sqrt(query.shape[3]) if scale is None else scale,
        output_dtype=query.dtype,
        dropout_p=dropout_p,
        return_lse=return_lse,
        softcap=None if softcap is None else check_softcap(softcap, in_float64=query.dtype == torch.float64),
        key_bias=None if key_bias is None else check_key_bias(key_bias, batch, query, key),
        sinks=None if sinks is None else check_sinks(sinks, batch, query),
    )
    return Request(problem, backend, batch)


def _axis(
    places: Places, names: tuple[str, ...], terms: ScoreTerms, rewritten_from: Float[Tensor, "B Hq Lq D"] | None
) -> Axis:
    """An axis of the problem; r is the caller's query where an encoding rewrote it."""
    r = terms.relative_query
    if r is None and terms.relative_keys is not None:
        r = rewritten_from
    positions = places.sequence if names == (SEQUENCE,) else places.on(names, "encoding")
    tables = terms.relative_keys, terms.relative_queries, terms.relative_values, terms.bias
    return Axis(positions, r, *(None if table is None else table.rows_met_by(positions) for table in tables))


def _flatten_batch(tensor: Float[Tensor, "*b H L D"], batch: tuple[int, ...]) -> Float[Tensor, "B H L D"]:
    """The axes before the heads as one."""
    if tensor.dim() == 4 and len(batch) == 1 and tensor.shape[0] == batch[0]:
        return tensor
    return tensor.expand(*batch, *tensor.shape[-3:]).reshape(math.prod(batch), *tensor.shape[-3:])


def _one_batch_axis(per_element: Tensor) -> Tensor:
    """[*B, L] as [B, L]."""
    return per_element.reshape(math.prod(per_element.shape[:-1]), per_element.shape[-1])


def _segments_of_one_axis(
    of_queries: Int[Tensor, "*B Lq"], of_keys: Int[Tensor, "*B Lk"]
) -> tuple[Int[Tensor, "B Lq"], Int[Tensor, "B Lk"]]:
    """Both with one batch axis. If both are one tensor they stay one: then every query is known to see its own key."""
    folded = _one_batch_axis(of_queries)
    return folded, folded if of_keys is of_queries else _one_batch_axis(of_keys)


def _flatten_terms(terms: ScoreTerms, batch: tuple[int, ...]) -> ScoreTerms:
    """Terms whose tensors have the caller's axes."""
    if len(batch) == 1:
        return terms  # nothing to fold; `check_terms` compares the shapes
    folded = {}
    for field, name in (("query", "terms query"), ("key", "terms key"), ("relative_query", "relative_query")):
        tensor = getattr(terms, field)
        if tensor is not None:
            check_term_axes(name, tensor, batch)
            folded[field] = _flatten_batch(tensor, batch)
    return replace(terms, axes={names: _flatten_terms(part, batch) for names, part in terms.axes.items()}, **folded)


def _flatten_mask(mask: AttentionMask | None, batch: tuple[int, ...]) -> AttentionMask | None:
    """The mask with four axes; an axis that broadcasts has size 1."""
    if mask is None or (mask.dim() == 4 and len(batch) == 1):
        return mask
    mask = mask.reshape((1,) * (len(batch) + 3 - mask.dim()) + mask.shape)
    if all(size == 1 for size in mask.shape[:-3]):
        return mask.reshape(1, *mask.shape[-3:])
    return _flatten_batch(mask, batch)
