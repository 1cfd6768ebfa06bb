"""Plans: what a call decides from metadata alone is decided once, for all calls whose metadata are the same.

Metadata are shapes, strides, dtypes, flags, numbers that are no tensors, and settings of the process: whatever is read
until the kernel starts. No value of a tensor is read. A plan holds no tensor and no address, so nothing needs to tell
it that a module has changed: the encoding is lowered in every call, once, and its tables' metadata are in the key.

A call has a plan where nothing watches it, its tensors are ordinary ones [B, H, L, D] on a CPU or on CUDA, its
positions are starts, and it has no mask but causality and window, no key bias, no sinks, no dropout, and no terms of
the caller's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.base import Backend, PreparingBackend
from relattn.backends.problem_operator import keep
from relattn.backends.select import select
from relattn.call import NOTHING, Options, Request, request, request_of
from relattn.encodings.base import RelativeEncoding, lowered, prepare
from relattn.equation.mask import Mask
from relattn.equation.problem import Axis, Part, Problem
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.interception import is_watched, read_of
from relattn.positions.places import Places
from relattn.positions.position import PositionsLike
from relattn.positions.positions import SEQUENCE

MOST_TERMS = 16
"""Kept at a time for a call: kinds of terms."""
WHOLE = (int, type(None))
NUMBERS = (float, *WHOLE)
DEVICES = "cpu", "cuda"
Tables = tuple[OffsetTable | None, ...]


class Plan(NamedTuple):
    """The decisions of a call.

    rows: for each of the tables, the first offset and the number of the rows that visible pairs meet; None without it.
    straight: O from q, k, v, r and the tables, where the backend has prepared its kernel; else None.
    """

    backend: Backend
    mask: Mask
    scale: float
    output_dtype: torch.dtype
    softcap: float | None
    rows: tuple[tuple[int, int] | None, ...]
    straight: Callable[..., Float[Tensor, "B Hq Lq Dv"]] | None

    @classmethod
    def of(cls, asked: Request, tables: Tables) -> Plan:
        """The plan of a request whose encoding has these tables, not yet narrowed."""
        problem = asked.problem
        backend = select(asked.backend, problem)
        rows, starts = [], []
        for table, met in zip(tables, problem.axes[0][2:], strict=True):
            starts.append(0 if table is None or met is None else met.first - table.first)
            rows.append(None if met is None else (met.first, met.num_rows))
        straight = backend.prepared(problem, starts) if isinstance(backend, PreparingBackend) else None
        return cls(backend, problem.mask, problem.scale, problem.output_dtype, problem.softcap, tuple(rows), straight)

    def run(self, query: Tensor, key: Tensor, value: Tensor, r: Tensor | None, tables: Tables) -> Tensor:
        """O, of q and k as the encoding left them."""
        if self.straight is not None:
            return self.straight(query, key, value, r, *(None if table is None else table.values for table in tables))
        met = []
        for table, rows in zip(tables, self.rows, strict=True):
            met.append(None if table is None or rows is None else table.narrowed(*rows))
        axis = Axis(self.mask.positions, r, *met)
        problem = Problem(query, key, value, (axis,), self.mask, self.scale, self.output_dtype, softcap=self.softcap)
        return self.backend.run(problem)[0]


class Known(NamedTuple):
    """A call that was checked: its places, and a plan for each kind of terms that an encoding made of it."""

    places: Places
    plans: dict[Hashable, Plan]


KNOWN: dict[Hashable, Known] = {}
"""By what is read of a call before its encoding is asked."""


def attend(
    query: Float[Tensor, "*B Hq Lq D"],
    key: Float[Tensor, "*B Hk Lk D"],
    value: Float[Tensor, "*B Hk Lk Dv"],
    is_causal: bool,
    enable_gqa: bool,
    encoding: RelativeEncoding | ScoreTerms | None,
    query_position: PositionsLike,
    key_position: PositionsLike,
    options: Options,
    part: Part | None,
) -> Float[Tensor, "*B Hq Lq Dv"]:
    """O of the arguments of `relative_attention`: by their plan, or as `request_of` does it.

    part: of which larger call dropout counts the pairs.
    """
    read = None
    if not torch.compiler.is_compiling():  # a graph has no plan, and would keep a guard for each function on the way
        read = _read_of_call(query, key, value, is_causal, enable_gqa, encoding, query_position, key_position, options)
    known = None if read is None else KNOWN.get(read)
    if known is not None:
        return _planned(known, query, key, value, encoding, options)
    asked = request_of(query, key, value, is_causal, enable_gqa, encoding, query_position, key_position, options)
    output = asked.with_dropout_origin(part).run()[0]
    if read is not None:
        keep(KNOWN, read, Known(Places(asked.problem.mask.positions), {}))
    return output


def _planned(known: Known, query: Tensor, key: Tensor, value: Tensor, encoding: Any, options: Options) -> Tensor:
    """O by a plan, which is made where there is none, and kept where the encoding's terms can have one."""
    terms, given = NOTHING, key
    if encoding is not None:
        key = prepare(encoding, key, {SEQUENCE: known.places.sequence.key})
        terms = encoding(lowered, query, key, value, known.places)
    tables = terms.relative_keys, terms.relative_queries, terms.relative_values, terms.bias
    read = _read_of_terms(None if key is given else key, terms, tables)
    plan = None if read is None else known.plans.get(read)
    if plan is None:
        asked = request(query, key, value, query.shape[:1], known.places, terms, options)
        if read is None:
            return asked.run()[0]
        plan = Plan.of(asked, tables)
        keep(known.plans, read, plan, MOST_TERMS)
    r = terms.relative_query
    if terms.query is not None:
        r, query = query if r is None and terms.relative_keys is not None else r, terms.query
    return plan.run(query, key if terms.key is None else terms.key, value, r, tables)


def _read_of_call(
    query: Tensor, key: Tensor, value: Tensor, is_causal: object, enable_gqa: object, encoding: object,
    query_position: object, key_position: object, options: Options,
) -> Hashable | None:  # fmt: skip
    """What is read of a call before its encoding is asked; None where the call has no plan."""
    window, settings = options.window, read_of_settings(encoding, options)
    if settings is None or not (
        type(is_causal) is type(enable_gqa) is bool
        and type(query_position) is type(key_position) is int
        and (window is None or (type(window) is tuple and all(type(side) in WHOLE for side in window)))
    ):
        return None
    tensors = read_of((query, key, value))
    if tensors is None or None in tensors or not query.dim() == key.dim() == value.dim() == 4:
        return None
    if not query.shape[0] == key.shape[0] == value.shape[0] or query.device.type not in DEVICES:
        return None
    return tensors, is_causal, enable_gqa, query_position, key_position, window, settings


def read_of_settings(encoding: object, options: Options) -> Hashable | None:
    """What is read beside tensors and positions: numbers, and settings of the process; None where there is no plan."""
    softcap, scale, backend = options.softcap, options.scale, options.backend
    if is_watched() or not (
        options.attn_mask is options.key_mask is options.segment_ids is options.visible_blocks is None
        and options.key_bias is options.sinks is None
        and type(options.dropout_p) is float
        and options.dropout_p == 0.0
        and type(scale) in NUMBERS
        and scale != 0.0  # its sign would be in no key
        and type(softcap) in NUMBERS
        and type(backend) is str
        and (encoding is None or isinstance(encoding, RelativeEncoding))
    ):
        return None
    is_interpreted = backend == "triton" and os.environ.get("TRITON_INTERPRET")
    return softcap, scale, backend, torch.is_grad_enabled(), torch.get_num_threads(), is_interpreted


def _read_of_terms(key: Tensor | None, terms: ScoreTerms, tables: Tables) -> Hashable | None:
    """What is read of terms, and of the key if the encoding prepared another; None where the call has no plan."""
    if type(terms) is not ScoreTerms or terms.axes:
        return None
    tensors, rules = [key, terms.query, terms.key, terms.relative_query], []
    for table in tables:
        if table is not None:
            if type(table) is not OffsetTable or type(table.first) is not int:
                return None
            rules.append((table.first, table.beyond))
        tensors.append(None if table is None else table.values)
    of_tensors = read_of(tensors)
    return None if of_tensors is None else (of_tensors, *rules)
