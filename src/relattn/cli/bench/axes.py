"""The workloads of tokens with more than one coordinate: images and documents.

    grid-bias   a bias for each pair of offsets on a grid of height x width: GridBias (Swin)
    decomposed  a vector for every dy and one for every dx, shared by the heads: RelativeEmbedding (MViTv2, SAM)
    layout      biases in T5's buckets by the order of words, by x and by y on a page: T5Bias (LayoutLMv3)

The grid is `Workload.grid`. A page gives each word of each document its own x and y, drawn from 0..1000.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from relattn.cli.bench.workload import Workload
from relattn.encodings.base import RelativeEncoding
from relattn.encodings.grid import GridBias
from relattn.encodings.relative import RelativeEmbedding
from relattn.encodings.t5 import T5Bias
from relattn.positions.grid import grid
from relattn.positions.position import PositionLike

PAGE = 1000
"""The largest coordinate on a page, in LayoutLMv3's units."""
PAGE_BUCKETS, FURTHEST = 64, 256
"""LayoutLMv3's buckets on x and on y, and the distance that the last begins at."""


def encoding_of(workload: Workload) -> RelativeEncoding:
    """A fresh module for the workload's encoding."""
    if workload.encoding == "grid-bias":
        return GridBias(workload.grid, workload.heads)
    if workload.encoding == "decomposed":
        height, width = workload.grid
        of_y, of_x = (RelativeEmbedding(workload.head_dim, size) for size in (height, width))
        return of_y.on("y") + of_x.on("x")
    of_x, of_y = (T5Bias(workload.heads, num_buckets=PAGE_BUCKETS, max_distance=FURTHEST) for _ in range(2))
    return T5Bias(workload.heads) + of_x.on("x") + of_y.on("y")


def places_of(workload: Workload, generator: torch.Generator) -> Mapping[str, PositionLike]:
    """The tokens' positions beside the sequence."""
    if workload.encoding != "layout":
        return grid(*workload.grid)
    shape, device = (workload.batch, workload.length), workload.device
    return {axis: torch.randint(0, PAGE + 1, shape, generator=generator, device=device) for axis in ("x", "y")}
