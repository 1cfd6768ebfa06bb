"""A case: a workload with its tensors, and one step over them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from relattn.catalogue import CATALOGUE, Layer
from relattn.cli.bench.axes import encoding_of, places_of
from relattn.cli.bench.workload import Workload
from relattn.encodings import RelativeEncoding
from relattn.encodings.base import EncodingSum, lower
from relattn.score.places import Places
from relattn.score.position import PositionLike, Run
from relattn.score.positions import SEQUENCE, Positions, limits
from relattn.score.problem import TABLES
from relattn.score.terms import ScoreTerms

ROOM = 64
"""The number of further positions for which a decoder's cache has memory."""
SEED = 0


@dataclass(frozen=True)
class Case:
    """A workload with its tensors: query, key, value, the gradient by the output, and the encoding.

    Decoding: keys and values are parts of a longer buffer, as a cache with spare room gives them, and keys are
    prepared. Lowered: `encoding` holds the terms, and `query` is the query after the encoding rewrote it. places: where
    the tokens stand on the axes beside the sequence, by name.
    """

    workload: Workload
    query: Tensor
    key: Tensor
    value: Tensor
    upstream: Tensor
    encoding: RelativeEncoding | ScoreTerms | None
    places: Mapping[str, PositionLike] = field(default_factory=dict)

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The tensors whose gradients a training step computes, by name."""
        encoding = self.encoding
        if isinstance(encoding, ScoreTerms):
            own = _tensors(encoding)
        else:
            own = {} if encoding is None else dict(encoding.named_parameters())
        return {"query": self.query, "key": self.key, "value": self.value} | own

    def doubled(self, relative_change: float = 0.0) -> Case:
        """The same numbers in float64, each moved up or down, at random, by `relative_change` of itself.

        The gradients of the encoding's terms are moved too, on their way to its parameters, where their sum may cancel.
        """
        generator = torch.Generator(self.query.device).manual_seed(SEED + 1)

        def moved(tensor: Tensor) -> Tensor:
            signs = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device) * 2 - 1
            return tensor.detach().double() * (1.0 + relative_change * signs)

        def leaf(tensor: Tensor) -> Tensor:
            return moved(tensor).requires_grad_(self.workload.training)

        query, key, value = leaf(self.query), leaf(self.key), leaf(self.value)
        encoding = self.encoding
        if isinstance(encoding, ScoreTerms):
            encoding = _of_tensors(encoding, leaf)
        elif encoding is not None:
            encoding = copy.deepcopy(encoding).double()
            with torch.no_grad():
                for parameter in encoding.parameters():
                    parameter.copy_(moved(parameter))
            for part in encoding.encodings if isinstance(encoding, EncodingSum) else [encoding]:
                _move_on_the_way_back(part, moved)
        workload, upstream = replace(self.workload, dtype="float64"), moved(self.upstream)
        return replace(self, workload=workload, query=query, key=key, value=value, upstream=upstream, encoding=encoding)


def make_case(workload: Workload) -> Case:
    """The workload's tensors from N(0, 1), the encoding's parameters from N(0, 1 / head_dim); always the same numbers.

    Under a window a relative table has rows only for visible offsets.
    """
    generator = torch.Generator(workload.device).manual_seed(SEED)
    query_shape = (workload.batch, workload.heads, workload.query_length, workload.head_dim)
    held = workload.length + (ROOM if workload.decoding else 0)
    key_shape = (workload.batch, workload.heads, held, workload.head_dim)
    dtype = getattr(torch, workload.dtype)

    def normal(shape: tuple[int, ...] | torch.Size) -> Tensor:
        return torch.randn(shape, generator=generator, device=workload.device, dtype=dtype)

    query, key, value = (
        normal(shape)[:, :, : workload.length].requires_grad_(workload.training)
        for shape in (query_shape, key_shape, key_shape)
    )
    if workload.on_axes:
        encoding, places = encoding_of(workload), places_of(workload, generator)
    else:
        layer = Layer(workload.heads, workload.head_dim, workload.reach, workload.causal)
        encoding, places = CATALOGUE[workload.encoding].build(layer), {}
    if encoding is not None:
        encoding = encoding.to(workload.device, dtype)
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.copy_(normal(parameter.shape) * workload.head_dim**-0.5)
    case = Case(workload, query, key, value, normal(query_shape), encoding, places)
    return _lowered(case, encoding) if workload.lowered and encoding is not None else case


def _lowered(case: Case, encoding: RelativeEncoding) -> Case:
    """The case with the encoding's terms in place of the encoding, as separate leaves."""
    work, starts = case.workload, Run(case.workload.length - case.workload.query_length)
    positions = Positions(
        starts, Run(0), work.query_length, work.length, case.query.device, *limits(work.causal, work.sides)
    )
    with torch.no_grad():
        terms = lower(encoding, case.query, case.key, case.value, Places({SEQUENCE: positions}))

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(work.training)

    query = case.query if terms.query is None else leaf(terms.query)
    return replace(case, query=query, encoding=_of_tensors(replace(terms, query=None), leaf))


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


def step(case: Case, call: Callable[[], Tensor]) -> dict[str, Tensor]:
    """One forward pass or training step of `call`: its output, and in training every leaf's gradient, by name."""
    if not case.workload.training:
        with torch.no_grad():
            return {"output": call()}
    output = call()
    leaves = case.leaves
    gradients = torch.autograd.grad(output, list(leaves.values()), case.upstream)
    return {"output": output.detach()} | {
        f"gradient of {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)
    }
