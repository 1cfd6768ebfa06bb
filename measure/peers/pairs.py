"""The terms of encodings on axes, written out for every pair of tokens, as a careful user hands them to PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn.cli.bench.case import Call, Case
from relattn.encodings.base import EncodingSum
from relattn.encodings.grid import GridBias
from relattn.encodings.t5 import T5Bias


def sdpa_with_pairs(case: Case) -> Call:
    """The bias, or the decomposed products, [H, L, L], handed to scaled_dot_product_attention as its mask."""
    query, key, value = case.query, case.key, case.value
    make = _pairs_of(case)

    def call() -> Tensor:
        mask = make()
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask.expand(len(query), *mask.shape[-3:]))

    return call


def _pairs_of(case: Case) -> Callable[[], Tensor]:
    """A function that makes the numbers added to the scores. Things that depend only on the grid are made here."""
    encoding, (height, width), device = case.encoding, case.workload.grid, case.query.device
    if isinstance(encoding, GridBias):
        index = _behind(height, device)[:, None, :, None] * (2 * width - 1) + _behind(width, device)[:, None]
        index = index.reshape(height * width, height * width)
        return lambda: encoding.bias.t()[:, index]
    assert isinstance(encoding, EncodingSum)
    if case.workload.encoding == "decomposed":
        return _decomposed(case, encoding)
    order = torch.arange(case.workload.length, device=device)
    places = [order, *(case.places[axis] for axis in ("x", "y"))]
    parts = [part for part in encoding.modules() if isinstance(part, T5Bias)]

    def biases() -> Tensor:
        offsets = [place.unsqueeze(-2) - place.unsqueeze(-1) for place in places]
        by_order, by_x, by_y = (part.bias.t()[:, part.buckets(d)] for part, d in zip(parts, offsets, strict=True))
        return by_order + (by_x + by_y).transpose(0, 1)

    return biases


def _decomposed(case: Case, encoding: EncodingSum) -> Callable[[], Tensor]:
    """scale * (q . E_y[dy] + q . E_x[dx]), one product per row of keys and one per column."""
    (height, width), device, scale = case.workload.grid, case.query.device, case.workload.head_dim**-0.5
    of_y, of_x = encoding.parameters()
    ahead_y, ahead_x = _behind(height, device).t(), _behind(width, device).t()

    def products() -> Tensor:
        query = (case.query * scale).unflatten(2, (height, width))
        by_y = torch.einsum("bhyxd,ykd->bhyxk", query, of_y[0, ahead_y])
        by_x = torch.einsum("bhyxd,xkd->bhyxk", query, of_x[0, ahead_x])
        return (by_y.unsqueeze(-1) + by_x.unsqueeze(-2)).flatten(4).flatten(2, 3)

    return products


def _behind(size: int, device: torch.device) -> Tensor:
    """i - j + size - 1 for every pair of places on an axis: from 0, the farthest future, as Swin numbers its rows."""
    places = torch.arange(size, device=device)
    return places.unsqueeze(1) - places + size - 1
