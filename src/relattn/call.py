"""A call of attention is checked, placed and lowered once, and written down as a `Request`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relattn.backends.base import Backend
from relattn.backends.select import BACKENDS, Explanation, check_backend, explain_choice, select
from relattn.checks.autocast import narrowed, without_autocast
from relattn.checks.positions import check_window, places_of
from relattn.checks.tensors import check_attn_mask, check_key_mask, check_segments, check_tensors
from relattn.checks.terms import check_term_axes
from relattn.checks.values import check_flag, check_probability, check_scale, check_softcap, kind_of
from relattn.encodings.base import RelativeEncoding, lower, placed_terms, prepare
from relattn.equation.key_bias import check_key_bias
from relattn.equation.mask import AttentionMask, Mask, Segments
from relattn.equation.problem import Axis, Part, Problem
from relattn.equation.sinks import check_sinks, share
from relattn.equation.terms import ScoreTerms
from relattn.equation.visibility import within_segments
from relattn.equation.visible_blocks import Blocks, VisibleBlocks
from relattn.interception import HAS_GRAPHS, refuse_context_parallel, refuse_graph, refuse_trace
from relattn.positions.places import Places
from relattn.positions.position import PositionsLike
from relattn.positions.positions import Positions, Window, limits

NOTHING = ScoreTerms()
"""The terms of attention without an encoding."""
LONG = 512
"""The queries, and the keys, of a long row of documents."""


@dataclass(frozen=True)
class Request:
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
        return self if part is None else replace(self, problem=self.problem.replace(part=part))

    def restore_batch(self, answer: Float[Tensor, "B *rest"]) -> Float[Tensor, "*B *rest"]:
        """An answer with the caller's axes."""
        return answer if len(self.batch) == 1 else answer.reshape(*self.batch, *answer.shape[1:])


@dataclass
class Options:
    """What a call is told beside its tensors, encoding and positions; each as in `relative_attention`."""

    attn_mask: AttentionMask | None = None
    key_mask: Bool[Tensor, "*B Lk"] | None = None
    segment_ids: Segments | None = None
    visible_blocks: VisibleBlocks | None = None
    window: Window | None = None
    key_bias: Float[Tensor, "*#B #Hq Lk"] | None = None
    softcap: float | None = None
    sinks: Float[Tensor, "Hq"] | Float[Tensor, "*B Hq Lq"] | None = None
    dropout_p: float = 0.0
    scale: float | None = None
    backend: str = "auto"


def request_of(
    query: Float[Tensor, "*B Hq Lq D"],
    key: Float[Tensor, "*B Hk Lk D"],
    value: Float[Tensor, "*B Hk Lk Dv"],
    is_causal: bool,
    enable_gqa: bool,
    encoding: RelativeEncoding | ScoreTerms | None,
    query_position: PositionsLike,
    key_position: PositionsLike,
    options: Options,
    *,
    return_lse: bool = False,
) -> Request:
    """The arguments of `relative_attention`: all checked, the positions parsed, the encoding lowered."""
    query, key, value, batch = checked(query, key, value, enable_gqa)
    if not isinstance(is_causal, bool):
        check_flag("is_causal", is_causal)
    within = limits(is_causal, None if options.window is None else check_window(options.window))
    lengths = query.shape[2], key.shape[2]
    places = places_of(query_position, key_position, batch, lengths, query.device, within)
    return request(query, key, value, batch, places, encoding, options, keys_are_prepared=False, return_lse=return_lse)


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
    if not isinstance(enable_gqa, bool):
        check_flag("enable_gqa", enable_gqa)
    query, key, value = narrowed(query, key, value)
    batch = check_tensors(query, key, value, enable_gqa)
    if (
        len(batch) != 1
        or not query.dim() == key.dim() == value.dim()
        or not query.shape[0] == key.shape[0] == value.shape[0]
    ):
        query, key, value = (_flatten_batch(tensor, batch) for tensor in (query, key, value))
    return query, key, value, batch


def request(
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
    value: Float[Tensor, "B Hk Lk Dv"],
    batch: tuple[int, ...],
    places: Places,
    encoding: RelativeEncoding | ScoreTerms | None,
    options: Options,
    *,
    keys_are_prepared: bool = False,
    return_lse: bool = False,
) -> Request:
    """The request for attention at `places`; query, key, value and batch as `checked` returned them.

    Layers call it directly, because a cache places its keys itself.

    options: its window stands in `places` already. keys_are_prepared: whether `key` comes from a cache, as the encoding
        prepared it.
    """
    scale, dropout_p, backend = options.scale, options.dropout_p, options.backend
    if type(backend) is not str or (backend != "auto" and backend not in BACKENDS):
        check_backend(backend)
    if type(dropout_p) is not float or not 0.0 <= dropout_p <= 1.0:
        dropout_p = check_probability("dropout_p", dropout_p)
    scale = 1.0 / math.sqrt(query.shape[3]) if scale is None else check_scale(scale)
    mask = _mask(options, places.sequence, batch, query, key)
    if mask.segments is not None and encoding is not None and _are_long(*mask.segments):
        closest = within_segments(mask) or mask.positions
        places, mask = Places(closest, places.others), replace(mask, positions=closest)
    terms, callers_key, closer = NOTHING, key, None
    try:
        if isinstance(encoding, ScoreTerms):
            terms = placed_terms(_flatten_terms(encoding, batch), query, key, value, places)
        elif isinstance(encoding, RelativeEncoding):
            if not keys_are_prepared and encoding.rewrites_keys:
                key = prepare(encoding, key, {axis: positions.key for axis, positions in places.by_axis.items()})
            terms = lower(encoding, query, key, value, places)
        elif encoding is not None:
            raise TypeError(f"encoding: got {kind_of(encoding)}; expected a RelativeEncoding, ScoreTerms, or None")
    except ValueError:  # a table may be long enough for every segment; to know it, their ids are read
        closer = within_segments(mask)
        if closer is None:
            raise
    if closer is not None:
        return request(
            query, callers_key, value, batch, Places(closer, places.others), encoding, options,
            keys_are_prepared=keys_are_prepared, return_lse=return_lse,
        )  # fmt: skip
    rewritten_from = None if terms.query is None else query  # the caller's own, before the encoding rewrote it
    axes = []
    for names, part in (((), terms), *terms.axes.items()):
        positions = places.on(names, "encoding") if names else places.sequence
        r, tables = part.relative_query, []
        if r is None and part.relative_keys is not None:
            r = rewritten_from
        for table in (part.relative_keys, part.relative_queries, part.relative_values, part.bias):
            tables.append(None if table is None else table.rows_met_by(positions))
        axes.append(Axis(positions, r, *tables))
    softcap, key_bias, sinks = options.softcap, options.key_bias, options.sinks
    problem = Problem(
        query=query if terms.query is None else terms.query,
        key=key if terms.key is None else terms.key,
        value=value,
        axes=tuple(axes),
        mask=mask,
        scale=scale,
        output_dtype=query.dtype,
        dropout_p=dropout_p,
        return_lse=return_lse,
        softcap=None if softcap is None else check_softcap(softcap, in_float64=query.dtype == torch.float64),
        key_bias=None if key_bias is None else check_key_bias(key_bias, batch, query, key),
        sinks=None if sinks is None else check_sinks(sinks, batch, query),
    )
    return Request(problem, backend, batch)


def _mask(
    options: Options,
    sequence: Positions,
    batch: tuple[int, ...],
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
) -> Mask:
    """The masks of a call, checked, with one batch axis."""
    key_mask, segment_ids, attn_mask = options.key_mask, options.segment_ids, options.attn_mask
    if key_mask is not None:
        check_key_mask(key_mask, batch, key)
        key_mask = _one_batch_axis(key_mask)
    if attn_mask is not None:
        check_attn_mask(attn_mask, batch, query, key)
        attn_mask = _flatten_mask(attn_mask, batch)
    segments = None if segment_ids is None else _segments_of_one_axis(*check_segments(segment_ids, batch, query, key))
    blocks = None if options.visible_blocks is None else _blocks(options, batch)
    return Mask(sequence, key_mask, segments, attn_mask, blocks)


def _are_long(query_ids: Int[Tensor, "B Lq"], key_ids: Int[Tensor, "B Lk"]) -> bool:
    """Whether a look at the ids, on a CPU, costs little beside the pairs, and may leave out rows of tables."""
    if torch.compiler.is_compiling() or key_ids.device.type != "cpu":
        return False
    return min(query_ids.shape[1], key_ids.shape[1]) >= LONG


def _blocks(options: Options, batch: tuple[int, ...]) -> Blocks | None:
    """What the caller found, with one batch axis; None where something watches the call, which then finds it itself."""
    given = options.visible_blocks
    if not isinstance(given, VisibleBlocks):
        raise TypeError(f"visible_blocks: got {kind_of(given)}; expected relattn.VisibleBlocks, or None")
    found = given.of(options.attn_mask, options.key_mask, options.segment_ids)
    if found is None:
        return None
    keys, key_ids, pairs = found
    return Blocks(
        None if keys is None else _one_batch_axis(keys),
        None if key_ids is None else key_ids.reshape(-1, *key_ids.shape[-2:]),
        None if pairs is None else _flatten_mask(pairs, batch),
    )


def _flatten_batch(tensor: Float[Tensor, "*b H L D"], batch: tuple[int, ...]) -> Float[Tensor, "B H L D"]:
    """The axes before the heads as one."""
    return tensor.expand(*batch, *tensor.shape[-3:]).reshape(math.prod(batch), *tensor.shape[-3:])


def _one_batch_axis(per_element: Tensor) -> Tensor:
    """[*B, L] as [B, L]."""
    if per_element.dim() == 2:
        return per_element
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


def _flatten_mask(mask: AttentionMask, batch: tuple[int, ...]) -> AttentionMask:
    """The mask with four axes; an axis that broadcasts has size 1."""
    if mask.dim() == 4 and len(batch) == 1:
        return mask
    mask = mask.reshape((1,) * (len(batch) + 3 - mask.dim()) + mask.shape)
    if all(size == 1 for size in mask.shape[:-3]):
        return mask.reshape(1, *mask.shape[-3:])
    return _flatten_batch(mask, batch)
