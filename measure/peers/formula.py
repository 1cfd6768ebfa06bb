"""Relative attention as a careful user writes it in plain PyTorch: the rows of every diagonal, arranged, added."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import relattn
from measure.peers import arrangements
from relattn.backends.dense import skew
from relattn.cli.bench.case import Call, Case
from relattn.positions.offsets import alibi_slopes, sinusoids

Arrangement = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Diagonals:
    """The equation's terms with a row for every diagonal, ascending: all 2 L - 1, or the past L of causal attention
    and of decoding.

    relative_keys, relative_values [H or 1, R, D]; bias [H, R]; a missing term is None.
    """

    query: Tensor
    relative_query: Tensor | None = None
    relative_keys: Tensor | None = None
    relative_values: Tensor | None = None
    bias: Tensor | None = None


def diagonals_of(case: Case) -> Callable[[], Diagonals]:
    """A function that makes the rows from the parameters. Anything that depends only on lengths is made here."""
    encoding, query, length = case.encoding, case.query, case.workload.length
    offsets = torch.arange(-(length - 1), 1 if case.workload.causal else length, device=query.device)
    if encoding is None:
        return lambda: Diagonals(query)
    if isinstance(encoding, relattn.RelativeEmbedding):
        return lambda: Diagonals(query, query, encoding.relative_keys)
    if isinstance(encoding, relattn.ShawEmbedding):
        index = offsets.clamp(-encoding.left, encoding.right) + encoding.left
        values = encoding.relative_values
        return lambda: Diagonals(
            query, query, encoding.relative_keys[:, index], None if values is None else values[:, index]
        )
    if isinstance(encoding, relattn.TransformerXLEmbedding):
        waves = torch.from_numpy(sinusoids(-offsets.cpu().numpy(), encoding.embed_dim)).to(query)

        def rows() -> Tensor:
            return encoding.linear_pos(waves).unflatten(-1, (encoding.num_heads, -1)).transpose(0, 1)

        kept = rows().detach() if case.workload.decoding else None  # a decoder projects each row when it first needs it
        return lambda: Diagonals(
            query + encoding.pos_bias_u.unsqueeze(1),
            query + encoding.pos_bias_v.unsqueeze(1),
            rows() if kept is None else kept,
        )
    if isinstance(encoding, relattn.T5Bias):
        buckets = encoding.buckets(offsets)
        return lambda: Diagonals(query, bias=encoding.bias[buckets].transpose(0, 1))
    assert isinstance(encoding, relattn.AlibiBias)
    slopes = torch.from_numpy(alibi_slopes(encoding.num_heads)).to(query.device).unsqueeze(-1)
    return lambda: Diagonals(query, bias=(-slopes * offsets.abs()).to(query.dtype))


def plain(case: Case, arrangement: str) -> Call:
    """softmax(scale * (Q K^T + S_rel) + B) (V + ...), with S_rel arranged by one of the four ways."""
    make, key, value = diagonals_of(case), case.key, case.value
    scale = 1.0 / math.sqrt(case.workload.head_dim)
    future = _future(case)

    def call() -> Tensor:
        terms = make()
        scores = (terms.query * scale) @ key.transpose(-1, -2)
        added = _added(terms, scale, arrangement, key.shape[2])
        scores = scores if added is None else scores + added
        weights = (scores if future is None else scores.masked_fill(future, -torch.inf)).softmax(-1)
        output = weights @ value
        if terms.relative_values is None:
            return output
        return output + _collected(weights, terms.relative_values, arrangement)

    return call


def sdpa_with_scores(case: Case) -> Call:
    """S_rel or the bias written out [H, L, L] and handed to scaled_dot_product_attention as its mask."""
    make, key, value = diagonals_of(case), case.key, case.value
    scale = 1.0 / math.sqrt(case.workload.head_dim)
    future = _future(case)

    def call() -> Tensor:
        terms = make()
        added = _added(terms, scale, "strided", key.shape[2])
        assert added is not None
        mask = added if future is None else added.masked_fill(future, -torch.inf)
        mask = mask.expand(key.shape[0], *mask.shape[-3:])
        return F.scaled_dot_product_attention(terms.query, key, value, attn_mask=mask)

    return call


def _future(case: Case) -> Tensor | None:
    """True for the pairs that causality hides."""
    if not case.workload.causal or case.workload.decoding:
        return None
    length = case.workload.length
    return torch.ones(length, length, dtype=torch.bool, device=case.query.device).triu(1)


def _added(terms: Diagonals, scale: float, arrangement: str, length: int) -> Tensor | None:
    """scale * S_rel, or B, [.., H, Lq, L]; pairs of the future may hold anything."""
    queries = terms.query.shape[2]
    if terms.relative_keys is not None:
        assert terms.relative_query is not None
        arrange: Arrangement = getattr(arrangements, arrangement)
        rows = _with_rows(terms.relative_keys, arrangement, length, queries)
        return arrange(terms.relative_query * scale, rows, length)
    if terms.bias is None:
        return None
    if queries == 1:
        return terms.bias.unsqueeze(-2)
    bias = F.pad(terms.bias, (0, max(0, length + 1 - terms.bias.shape[-1])))
    return skew.strided_view(bias.unsqueeze(-2).expand(-1, queries, -1), length)


def _with_rows(rows: Tensor, arrangement: str, length: int, queries: int) -> Tensor:
    """The past's rows with as many rows of zeros for the future as the arrangement needs; none for one query."""
    if queries == 1:
        return rows
    needed = {"diagonals": 2 * length - 1, "strided": length + 1}.get(arrangement, 0)
    return F.pad(rows, (0, 0, 0, max(0, needed - rows.shape[1])))


def _collected(weights: Tensor, relative_values: Tensor, arrangement: str) -> Tensor:
    """sum_j weights_ij * RV[d_ij]: with every pair's row written out for `gather`, else the weights laid on a strip."""
    length = weights.shape[-1]
    if arrangement == "gather":
        places = torch.arange(length, device=weights.device)
        diagonals = (places - places.unsqueeze(1) + length - 1).clamp(max=relative_values.shape[1] - 1)
        rows = relative_values[:, diagonals]
        return torch.einsum("bhij,hijd->bhid", weights, rows.expand(weights.shape[1], -1, -1, -1))
    rows = _with_rows(relative_values, "strided", length, weights.shape[-2])
    return skew.strided_strip(weights, rows.shape[1]) @ rows
