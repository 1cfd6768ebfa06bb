"""FlexAttention, compiled: a score_mod that adds the bias, or looks up Q @ RK^T computed beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import relattn
from measure.peers.formula import diagonals_of
from relattn.cli.bench.case import Call, Case
from relattn.flex import ScoreMod


def flex(case: Case) -> Call:
    """O = flex_attention(q, k, v, score_mod), compiled for this length; the block mask is made once, here."""
    torch.compiler.reset()  # dynamo counts recompilations per code object, and stops compiling after a few lengths
    work, key, value = case.workload, case.key, case.value
    block_mask = None
    if work.causal:
        block_mask = create_block_mask(_is_past, None, None, work.length, work.length, device=work.device)
    make, attend = _terms(case), torch.compile(flex_attention, dynamic=False)

    def call() -> Tensor:
        query, score_mod = make()  # outside the compiled part, which cannot change captured tensors
        return attend(query, key, value, score_mod=score_mod, block_mask=block_mask)

    return call


def _is_past(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
    return row >= column


def _terms(case: Case) -> Callable[[], tuple[Tensor, ScoreMod | None]]:
    """A function that makes the query and the score_mod: clipped tables stay clipped."""
    encoding, query = case.encoding, case.query
    if encoding is None:
        return lambda: (query, None)
    if isinstance(encoding, relattn.AlibiBias | relattn.T5Bias):
        return lambda: (query, relattn.flex_score_mod(encoding, query, case.key))
    if isinstance(encoding, relattn.ShawEmbedding):
        return lambda: (query, _looked_up_products(query, encoding.relative_keys, -encoding.left))
    make, first = diagonals_of(case), -(case.workload.length - 1)

    def keys() -> tuple[Tensor, ScoreMod]:
        terms = make()
        assert terms.relative_query is not None
        assert terms.relative_keys is not None
        return terms.query, _looked_up_products(terms.relative_query, terms.relative_keys, first)

    return keys


def _looked_up_products(relative_query: Tensor, relative_keys: Tensor, first: int) -> ScoreMod:
    """Adds scale * r_i . RK[d - first], the edge rows beyond."""
    last = relative_keys.shape[1] - 1
    scale = 1.0 / math.sqrt(relative_query.shape[-1])
    products = (relative_query * scale) @ relative_keys.transpose(-1, -2)
    return lambda score, b, h, i, j: score + products[b, h, i, (j - i - first).clamp(0, last)]
