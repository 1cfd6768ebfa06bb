"""The blocks backend: dense over blocks of queries, in memory linear in the lengths; plain PyTorch on any device.

A block has the scores of some queries and of the keys that these can see. The backward pass computes the weights again,
P_ij = exp(S_ij - maximum_i) / total_i, and lets PyTorch differentiate the rest of the block. With P~ = P dropped out
and the gradients dO of the output and dlse of lse:

    dP~_ij = dO_i . (v_j + RV[d])          dS_ij = P_ij * (drop(dP~)_ij - delta_i)
    delta_i = dO_i . O_i - dlse_i          (Dao et al. 2022, appendix B.2, with dropout and the gradient of lse)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.dense import add_relative_values, unmasked_scores, value_sums
from relattn.backends.operators import reasons_of_an_operator
from relattn.backends.problem_operator import Answers, Forward, Seed, finished, operator_of
from relattn.equation.key_bias import lowered
from relattn.equation.mask import Mask, part_of_axes
from relattn.equation.part import part_of
from relattn.equation.philox import factors_of, seed_of
from relattn.equation.problem import Differentiable, Gradients, Problem
from relattn.equation.visibility import Visibility, keys_in_reach
from relattn.equation.visible_ranges import VisibleRanges

QUERIES, FEWEST_QUERIES = 128, 16
PAIRS = 2**20
"""A block has QUERIES queries, fewer where keys are very many, in as many heads as give it PAIRS pairs."""

LOG2_E = math.log2(math.e)
PerQuery = Float[Tensor, "B H n"]


class BlocksBackend:
    """S of a block of queries at a time, O((Lq + Lk) D) memory, forward and backward (Rabe and Staats 2021).

    The forward pass keeps the output, and of each row the largest score and the sum. Scores, softmax and sums are
    float32 (float64 for float64 inputs). A block leaves out the keys before the first and after the last that any of
    its queries can see.
    """

    name = "blocks"
    log_base = 1.0

    def reasons(self, problem: Problem) -> list[str]:
        """It runs everything, except under the transforms of torch.func and in an export to ONNX."""
        return reasons_of_an_operator("ONNX has no operator for its blocks")

    def run(self, problem: Problem) -> tuple[Tensor, Tensor | None]:
        """O and, if wanted, lse."""
        return _run(problem, seed_of(problem))

    def part(self, problem: Problem) -> Forward:
        """The answers of a part of a call."""
        return _forward(problem, seed_of(problem))

    def gradients(self, problem: Problem, answers: Answers, wanted: Differentiable[bool]) -> Gradients:
        """A part's share of the gradients of a call, whose answers are given."""
        return finished(problem, wanted, _backward(problem, seed_of(problem), answers, wanted))


class _Block(NamedTuple):
    """Neighbouring queries under neighbouring heads of one batch element, or of all, and the keys that they can see."""

    batch: int | None
    key_heads: slice
    heads: slice
    queries: slice
    keys: slice

    @property
    def rows(self) -> tuple[slice, slice, slice]:
        """The place of its queries in a tensor [B, Hq, Lq, ...]."""
        return slice(None) if self.batch is None else slice(self.batch, self.batch + 1), self.heads, self.queries

    def of(self, problem: Problem) -> Problem:
        """The block's part of a problem: views of its tensors."""
        keys = (self.rows[0], self.key_heads, self.keys)
        return part_of(problem, self.queries, self.keys, problem.key[keys], problem.value[keys], self.heads, self.batch)


def _blocks(problem: Problem) -> Iterator[_Block]:
    """Every query of every head once, but for those that see no key; the last queries first.

    Under causality these have the most scores. The memory that they leave then fits all others.
    """
    if not problem.num_pairs():
        return
    batch, _, length, _ = problem.query.shape
    key_heads, num_keys, groups = problem.key.shape[1], problem.key.shape[2], problem.num_groups()
    lowest, highest = problem.sequence().positions.lowest, problem.sequence().positions.highest
    keys = num_keys if lowest is None or highest is None else min(num_keys, highest - lowest + QUERIES)
    count = min(max(PAIRS // (groups * keys), FEWEST_QUERIES), QUERIES)
    at_once = max(PAIRS // (groups * keys * count), 1)
    ranges = VisibleRanges.of(problem.mask, has_bias=problem.has_bias())
    for element in [None] if ranges is None and at_once >= batch * key_heads else range(batch):
        for head in range(0, key_heads, at_once):
            of_keys = slice(head, min(head + at_once, key_heads))
            heads = slice(of_keys.start * groups, of_keys.stop * groups)
            for first in reversed(range(0, length, count)):
                queries = slice(first, min(first + count, length))
                block = _Block(element, of_keys, heads, queries, slice(0, num_keys))
                visible = _visible_keys(problem, ranges, block)
                if visible.start < visible.stop:
                    yield block._replace(keys=visible)


def _visible_keys(problem: Problem, ranges: VisibleRanges | None, block: _Block) -> slice:
    """The keys from the first to the last that any of the block's queries might see."""
    first, end = keys_in_reach(problem.sequence().positions.part(block.queries, block.keys, block.batch))
    if ranges is not None:
        firsts, ends = part_of_axes(ranges.keys, *block.rows, slice(None)).unbind(-1)
        first, end = max(first, int(firsts.min())), min(end, int(ends.max()))
    return slice(first, end)


def _prepared(problem: Problem, seed: Seed) -> Problem:
    """The problem in the dtype of the scores, with zeros in place of padding, and with what all blocks share."""
    shift = problem.key_shift if problem.key_bias is None else lowered(problem)[1]
    problem = Visibility.of(problem.mask, problem.query.shape[0], problem.key.shape[1]).cleaned(problem)
    query, key, value = (tensor.to(problem.score_dtype()) for tensor in (problem.query, problem.key, problem.value))
    return problem.replace(query=query, key=key, value=value, key_shift=shift, seed=None if seed is None else int(seed))


def _hide_(scores: Float[Tensor, "B H n m"], mask: Mask) -> None:
    """-inf where a pair may not attend. Limits are looked at only for keys that they hide from some of the queries."""
    kept, positions = mask.kept(), mask.positions
    if kept is not None and not kept.all():
        scores.masked_fill_(~kept, -torch.inf)
    first, end = keys_in_reach(positions, of_all=True)
    for keys in (slice(0, first), slice(end, positions.key_length)):
        beyond = Mask(positions.part(slice(0, positions.query_length), keys)).beyond_limits()
        if beyond is not None:
            scores[..., keys].masked_fill_(beyond, -torch.inf)


def _exp_(exponents: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """exp(exponents), in place; 0 where that is below tiny / eps of the dtype.

    PyTorch's exp takes many times longer for -inf and for far numbers than its exp2 (`python -m measure
    small-numbers`). Beside a weight near 1 in its row a weight this small is far below rounding, but its products are
    subnormal numbers, which slow a matrix product on some processors.
    """
    limits = torch.finfo(exponents.dtype)
    return torch.threshold_(exponents, math.log(limits.tiny / limits.eps), -torch.inf).mul_(LOG2_E).exp2_()


def _sums(weights: Float[Tensor, "B H n m"], part: Problem) -> Float[Tensor, "B H n Dv"]:
    """sum_j w_ij * (v_j + RV[d]), with dropout."""
    if part.seed is not None:
        weights = weights * factors_of(part, part.seed)
    return add_relative_values(value_sums(weights, part.value), weights, part)


def _forward(problem: Problem, seed: Seed) -> Forward:
    query = problem.query
    output = query.new_zeros((*query.shape[:3], problem.value.shape[3]), dtype=problem.output_dtype)
    maximum = query.new_full(query.shape[:3], -torch.inf, dtype=problem.score_dtype())
    total = torch.zeros_like(maximum)
    problem = _prepared(problem, seed)
    with torch.no_grad():
        for block in _blocks(problem):
            output[block.rows], maximum[block.rows], total[block.rows] = _answers_of(block.of(problem))
    lse = maximum + total.log()
    return Forward(output, lse if problem.key_shift is None else lse + problem.key_shift, maximum, total)


def _answers_of(part: Problem) -> tuple[Float[Tensor, "B H n Dv"], PerQuery, PerQuery]:
    """Output, maximum and total of a block. Its scores end here, before the next block's begin."""
    scores = unmasked_scores(part)[0]
    _hide_(scores, part.mask)
    maximum = scores.amax(-1, keepdim=True)
    weights = _exp_(scores.sub_(maximum.masked_fill(maximum == -torch.inf, 0.0)))
    total = weights.sum(-1, keepdim=True)
    return _sums(weights, part).div_(total.masked_fill(total == 0.0, 1.0)), maximum.squeeze(-1), total.squeeze(-1)


def _backward(problem: Problem, seed: Seed, answers: Answers, wanted: Differentiable[bool]) -> Gradients:
    """The gradients that are wanted, summed over the blocks in the dtype of the scores."""
    dtype, unseeing = problem.score_dtype(), answers.maximum == -torch.inf
    maximum, total = answers.maximum.masked_fill(unseeing, 0.0), answers.total.masked_fill(unseeing, 1.0)
    # dO is divided by total in place of P, which is larger. A row that sees no key takes no gradient.
    dO = answers.output_gradient.to(dtype).masked_fill(unseeing.unsqueeze(-1), 0.0) / total.unsqueeze(-1)
    delta = (dO * answers.output.to(dtype)).sum(-1) - answers.lse_gradient.masked_fill(unseeing, 0.0) / total
    gradients = [
        torch.zeros_like(leaf, dtype=dtype, memory_format=torch.contiguous_format) if one and leaf is not None else None
        for leaf, one in zip(problem.leaves(), wanted.leaves(), strict=True)
    ]
    problem = _prepared(problem, seed)
    sums = problem.with_leaves(gradients)
    for block in _blocks(problem):
        rows, needs_grad = block.rows, [one is not None for one in gradients]
        found = _gradients_of(block.of(problem), needs_grad, maximum[rows], delta[rows], dO[rows])
        for whole, gradient in zip(block.of(sums).leaves(), found, strict=True):
            if whole is not None and gradient is not None:
                whole += gradient
    return Differentiable.of(gradients)


def _gradients_of(
    part: Problem, needs_grad: list[bool], maximum: PerQuery, delta: PerQuery, dO: Float[Tensor, "B H n Dv"]
) -> list[Tensor | None]:
    """A block's share of the gradients of its leaves, None where it needs none. Its weights end here."""
    with _autograd():
        leaves = [
            leaf.detach().requires_grad_() if one and leaf is not None else None
            for leaf, one in zip(part.leaves(), needs_grad, strict=True)
        ]
        part = part.with_leaves(leaves)
        weights = _Weights.apply(unmasked_scores(part)[0], part.mask, maximum, delta)
        given = [leaf for leaf in leaves if leaf is not None]
        found = iter(torch.autograd.grad(_sums(weights, part), given, dO, allow_unused=True))  # pyright: ignore[reportArgumentType]
    return [None if leaf is None else next(found) for leaf in leaves]


@contextmanager
def _autograd() -> Iterator[None]:
    """Autograd, which the dispatcher leaves out inside an operator, and its knowledge of views and changes in place."""
    views = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False)  # pyright: ignore[reportPrivateUsage]
    with torch.inference_mode(False), views, torch.enable_grad():
        yield


class _Weights(torch.autograd.Function):
    """P times total: exp(S - maximum), 0 where hidden, in place of S. Its gradient is dS above."""

    @staticmethod
    def forward(ctx, scores: Float[Tensor, "B H n m"], mask: Mask, maximum: PerQuery, delta: PerQuery) -> Tensor:
        _hide_(scores, mask)
        _exp_(scores.sub_(maximum.unsqueeze(-1)))
        ctx.mark_dirty(scores)
        ctx.save_for_backward(scores, delta)
        return scores

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        weights, delta = ctx.saved_tensors
        return (gradient - delta.unsqueeze(-1)).mul_(weights), None, None, None


_run = operator_of("blocks", _forward, _backward).run
"""O and, if wanted, lse, from a problem and the seed of its dropout."""
