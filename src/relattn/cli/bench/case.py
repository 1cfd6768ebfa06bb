"""A case: a workload with its tensors, and one step over them.

The encodings of tokens with more than one coordinate, images and documents:

    grid-bias   a bias for each pair of offsets on a grid of height x width: GridBias (Swin)
    decomposed  a vector for every dy and one for every dx, shared by the heads: RelativeEmbedding (MViTv2, SAM)
    layout      biases in T5's buckets by the order of words, by x and by y on a page: T5Bias (LayoutLMv3)

The grid is `Workload.grid`. A page gives each word of each document its own x and y, drawn from 0..1000.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from relattn.cli.bench.workload import Workload
from relattn.encodings.base import RelativeEncoding
from relattn.encodings.catalogue import CATALOGUE, Layer
from relattn.encodings.grid import GridBias
from relattn.encodings.relative import RelativeEmbedding
from relattn.encodings.t5 import T5Bias
from relattn.positions.grid import grid
from relattn.positions.position import PositionLike

Call = Callable[[], Tensor]

ROOM = 64
"""The number of further positions for which a decoder's cache has memory."""
SEED = 0
PAGE = 1000
"""The largest coordinate on a page, in LayoutLMv3's units."""
PAGE_BUCKETS, FURTHEST = 64, 256
"""LayoutLMv3's buckets on x and on y, and the distance that the last begins at."""


@dataclass(frozen=True)
class Case:
    """A workload with its tensors: query, key, value, the gradient by the output, and the encoding.

    Decoding: keys and values are parts of a longer buffer, as a cache with spare room gives them, and keys are
    prepared. places: where the tokens stand on the axes beside the sequence, by name.
    """

    workload: Workload
    query: Tensor
    key: Tensor
    value: Tensor
    upstream: Tensor
    encoding: RelativeEncoding | None
    places: Mapping[str, PositionLike] = field(default_factory=dict)

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The tensors whose gradients a training step computes, by name."""
        own = {} if self.encoding is None else dict(self.encoding.named_parameters())
        return {"query": self.query, "key": self.key, "value": self.value} | own


def make_case(workload: Workload) -> Case:
    """The workload's tensors from N(0, 1), its encoding's parameters from N(0, 1 / head_dim); always the same numbers.

    Under a window a relative table has rows only for visible offsets.
    """
    generator = torch.Generator(workload.device).manual_seed(SEED)
    query_shape = (workload.batch, workload.heads, workload.query_length, workload.head_dim)
    held = workload.length + (ROOM if workload.decoding else 0)
    key_shape = (workload.batch, workload.heads, held, workload.head_dim)
    dtype = getattr(torch, workload.dtype)

    def normal(shape: tuple[int, ...] | torch.Size) -> Tensor:
        return torch.randn(shape, generator=generator, device=workload.device, dtype=dtype)

    shapes = query_shape, key_shape, key_shape
    query, key, value = (normal(shape)[:, :, : workload.length].requires_grad_(workload.training) for shape in shapes)
    if workload.on_axes:
        encoding, places = _encoding_of(workload), _places_of(workload, generator)
    else:
        layer = Layer(workload.heads, workload.head_dim, workload.reach, workload.causal)
        encoding, places = CATALOGUE[workload.encoding].build(layer), {}
    if encoding is not None:
        encoding = encoding.to(workload.device, dtype)
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.copy_(normal(parameter.shape) * workload.head_dim**-0.5)
    return Case(workload, query, key, value, normal(query_shape), encoding, places)


def _encoding_of(workload: Workload) -> RelativeEncoding:
    if workload.encoding == "grid-bias":
        return GridBias(workload.grid, workload.heads)
    if workload.encoding == "decomposed":
        height, width = workload.grid
        of_y, of_x = (RelativeEmbedding(workload.head_dim, size) for size in (height, width))
        return of_y.on("y") + of_x.on("x")
    of_x, of_y = (T5Bias(workload.heads, num_buckets=PAGE_BUCKETS, max_distance=FURTHEST) for _ in range(2))
    return T5Bias(workload.heads) + of_x.on("x") + of_y.on("y")


def _places_of(workload: Workload, generator: torch.Generator) -> Mapping[str, PositionLike]:
    if workload.encoding != "layout":
        return grid(*workload.grid)
    shape, device = (workload.batch, workload.length), workload.device
    return {axis: torch.randint(0, PAGE + 1, shape, generator=generator, device=device) for axis in ("x", "y")}


def step(case: Case, call: Call) -> dict[str, Tensor]:
    """One forward pass or training step of `call`: its output, and in training every leaf's gradient, by name."""
    if not case.workload.training:
        with torch.no_grad():
            return {"output": call()}
    output = call()
    leaves = case.leaves
    gradients = torch.autograd.grad(output, list(leaves.values()), case.upstream)
    return {"output": output.detach()} | {f"gradient of {n}": g for n, g in zip(leaves, gradients, strict=True)}
