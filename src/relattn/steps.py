"""Plans of steps: few queries beside the keys of a cache, whose number grows, as when a token is decoded.

As in `plan`, what follows from metadata is decided once. Here the numbers of keys and of a table's rows, the offset of
the first key, and the strides of keys and values are arguments of a plan. Where a decision depends on them it is in the
key itself: the limits that hide a pair, and which bounds of `PAIRS` the call reaches.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Hashable

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends import select
from relattn.backends.base import SteppingBackend
from relattn.backends.cpu import operator
from relattn.backends.problem_operator import keep
from relattn.call import NOTHING, Options, Request, checked, request
from relattn.encodings.base import RelativeEncoding, lowered
from relattn.equation.problem import Part
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.interception import read_of
from relattn.plan import MOST_TERMS, Tables, read_of_settings
from relattn.positions.places import Places

PAIRS = sorted({
    select.PLAIN_PAIRS, select.PLAIN_PAIRS_IF_CAUSAL, select.PLAIN_PAIRS_IF_FEW_QUERIES, select.PLAIN_PAIRS_IF_DROPPED,
    select.FEW_PAIRS, select.FEW_PAIRS_PER_ELEMENT, select.PAIRS_FOR_A_STEP, select.PAIRS_IN_A_GRAPH,
    select.PAIRS_IF_EXPLICIT, operator.PAIRS_TO_SHARE, operator.FEW_PAIRS_TO_SHARE,
})  # fmt: skip
"""The numbers of pairs at which a decision changes."""
Step = Callable[..., Float[Tensor, "B Hq Lq Dv"]]
STEPS: dict[Hashable, dict[Hashable, Step | None]] = {}
"""By what is read of a step before its encoding is asked: for each kind of terms how it is run, None if as any call."""


def attend(
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
    value: Float[Tensor, "B Hk Lk Dv"],
    enable_gqa: bool,
    encoding: RelativeEncoding | None,
    places: Places,
    options: Options,
    part: Part | None = None,
) -> Float[Tensor, "B Hq Lq Dv"]:
    """O beside keys that a cache holds, as the encoding prepared them: by their plan, or as `request` does it.

    options: its window stands in `places` already. part: of which larger call dropout counts the pairs.
    """
    read = (
        None
        if torch.compiler.is_compiling()
        else _read_of_step(query, key, value, enable_gqa, encoding, places, options)
    )
    plans = None if read is None else STEPS.get(read)
    if plans is None:
        tensors = checked(query, key, value, enable_gqa)
        asked = request(*tensors, places, encoding, options, keys_are_prepared=True)
        output = asked.with_dropout_origin(part).run()[0]
        if read is not None:
            keep(STEPS, read, {})
        return output
    terms = NOTHING if encoding is None else encoding(lowered, query, key, value, places)
    tables = terms.relative_keys, terms.relative_queries, terms.relative_values, terms.bias
    of_terms = _read_of_terms(terms, tables)
    step = None if of_terms is None else plans.get(of_terms)
    if step is None:
        made = None if encoding is None else terms
        asked = request(query, key, value, query.shape[:1], places, made, options)
        if of_terms is not None and of_terms not in plans:
            keep(plans, of_terms, _stepping(asked), MOST_TERMS)
        return asked.run()[0]
    r = terms.relative_query
    if terms.query is not None:
        r, query = query if r is None and terms.relative_keys is not None else r, terms.query
    return step(places.sequence, query, key, value, r, *tables)


def _stepping(asked: Request) -> Step | None:
    backend = select.select(asked.backend, asked.problem)
    return backend.stepping(asked.problem) if isinstance(backend, SteppingBackend) else None


def _read_of_step(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool, encoding: object, places: Places, options: Options
) -> Hashable | None:
    """What is read of a step before its encoding is asked; None where it has no plan."""
    sequence, read = places.sequence, read_of_settings(encoding, options)
    of_tensors = None if read is None else read_of((query, key, value))
    if of_tensors is None or None in of_tensors or torch.is_grad_enabled() or places.others:
        return None
    batch, heads, queries, _ = query.shape
    key_heads, origin = key.shape[1], sequence.known_origin
    pairs = batch * heads * queries * key.shape[2]
    if origin is None or pairs == 0 or key_heads == 0 or heads // key_heads * queries > operator.QUERIES_OF_A_KEY:
        return None
    if not batch == key.shape[0] == value.shape[0] or query.device.type != "cpu":
        return None
    found = [of_tensors[0], enable_gqa, sequence.lowest, sequence.highest, bisect(PAIRS, pairs), read]
    found.append(sequence.highest is not None and origin == 0)  # then PyTorch's own causality is the same
    for of_held in of_tensors[1:]:
        assert of_held is not None
        shape, stride, *others = of_held
        found += shape[:2], shape[3], stride[3] == 1, *others
    return tuple(found)


def _read_of_terms(terms: ScoreTerms, tables: Tables) -> Hashable | None:
    """What is read of terms; None where the step has no plan."""
    if type(terms) is not ScoreTerms or terms.axes or terms.key is not None:
        return None
    tensors, found = [terms.query, terms.relative_query], []
    for table in tables:
        if table is not None and (type(table) is not OffsetTable or type(table.first) is not int):
            return None
        tensors.append(None if table is None else table.values)
        found.append(None if table is None else table.beyond)
    of_tensors = read_of(tensors)
    if of_tensors is None:
        return None
    for of_rows in of_tensors[2:]:
        if of_rows is not None:
            shape, stride, *others = of_rows
            found += shape[0], shape[2:], stride[1:] == (*shape[2:], 1), *others
    return *of_tensors[:2], *found
