"""Cases beside those of `relattn bench`: with the encoding's terms made beforehand, and in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relattn.cli.bench.case import SEED, Case, make_case
from relattn.cli.bench.workload import Workload
from relattn.encodings.base import EncodingSum, RelativeEncoding, lower
from relattn.equation.problem import TABLES
from relattn.equation.terms import ScoreTerms
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.places import Places
from relattn.positions.positions import Positions, limits


@dataclass(frozen=True)
class LoweredCase(Case):
    """A case whose `encoding` is its terms, each a leaf; `query` is the query after the encoding rewrote it."""

    encoding: ScoreTerms

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The tensors whose gradients a training step computes, by name."""
        return {"query": self.query, "key": self.key, "value": self.value} | _tensors(self.encoding)


def case_of(workload: Workload) -> Case:
    """The workload's tensors, lowered where it says so."""
    case = make_case(workload)
    return lowered(case) if workload.lowered and case.encoding is not None else case


def lowered(case: Case) -> LoweredCase:
    """The case with the encoding's terms in place of the encoding, as separate leaves."""
    work = case.workload
    starts = ContiguousPositions(work.length - work.query_length), ContiguousPositions(0)
    lowest, highest = limits(work.causal, work.sides)
    positions = Positions(*starts, work.query_length, work.length, case.query.device, lowest, highest)
    assert case.encoding is not None
    with torch.no_grad():
        terms = lower(case.encoding, case.query, case.key, case.value, Places(positions))

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(work.training)

    query = case.query if terms.query is None else leaf(terms.query)
    terms = _of_tensors(replace(terms, query=None), leaf)
    return LoweredCase(work, query, case.key, case.value, case.upstream, terms, case.places)


def doubled(case: Case, relative_change: float = 0.0) -> Case:
    """The same numbers in float64, each moved up or down, at random, by `relative_change` of itself.

    The gradients of the encoding's terms are moved too, on their way to its parameters, where their sum may cancel.
    """
    generator = torch.Generator(case.query.device).manual_seed(SEED + 1)

    def moved(tensor: Tensor) -> Tensor:
        signs = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device) * 2 - 1
        return tensor.detach().double() * (1.0 + relative_change * signs)

    def leaf(tensor: Tensor) -> Tensor:
        return moved(tensor).requires_grad_(case.workload.training)

    query, key, value = leaf(case.query), leaf(case.key), leaf(case.value)
    encoding = case.encoding
    if isinstance(encoding, ScoreTerms):
        encoding = _of_tensors(encoding, leaf)
    elif encoding is not None:
        encoding = copy.deepcopy(encoding).double()
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.copy_(moved(parameter))
        for part in encoding.encodings if isinstance(encoding, EncodingSum) else [encoding]:
            _move_on_the_way_back(part, moved)
    workload, upstream = replace(case.workload, dtype="float64"), moved(case.upstream)
    return replace(case, workload=workload, query=query, key=key, value=value, upstream=upstream, encoding=encoding)


def _tensors(terms: ScoreTerms) -> dict[str, Tensor]:
    """r and the values of the existing tables, by name."""
    tables = {name: table.values for name in TABLES if (table := getattr(terms, name)) is not None}
    return tables if terms.relative_query is None else {"relative_query": terms.relative_query} | tables


def _move_on_the_way_back(encoding: RelativeEncoding, moved: Callable[[Tensor], Tensor]) -> None:
    """Move the gradients of the encoding's terms before the encoding gets them."""
    make = encoding.terms

    def terms(query: Tensor, key: Tensor, positions: Positions) -> ScoreTerms:
        made = make(query, key, positions)
        for tensor in _tensors(made).values():
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(moved)
        return made

    encoding.terms = terms


def _of_tensors(terms: ScoreTerms, change: Callable[[Tensor], Tensor]) -> ScoreTerms:
    """The terms with each of their tensors changed."""
    changed = {
        name: change(tensor) if name == "relative_query" else replace(getattr(terms, name), values=change(tensor))
        for name, tensor in _tensors(terms).items()
    }
    return replace(terms, **changed)
