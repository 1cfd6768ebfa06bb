"""The ring: keys and values travel from rank to rank, and every rank computes with those that its queries see.

The forward pass merges the answers over the parts by lse. The backward pass (`ring_backward`) sends the keys and values
round again, followed by their gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from relattn.autocast import without_autocast
from relattn.backends.problem_arguments import flat, named, tensors_of
from relattn.distributed.group import Group
from relattn.distributed.layout import Layout
from relattn.distributed.merge import merge, merging
from relattn.distributed.part import part_of
from relattn.distributed.ring_backward import Backward
from relattn.distributed.rounds import Ring, given_in, moved, part
from relattn.score.problem import Problem


def attend(
    group: Group,
    layout: Layout,
    problems: list[Problem],
    key: Float[Tensor, "B Hk m D"],
    value: Float[Tensor, "B Hk m Dv"],
    hops: int,
    backend: str,
) -> tuple[Float[Tensor, "B Hq n Dv"], Float[Tensor, "B Hq n"]]:
    """O and lse of the pieces' problems, one after the other; each problem has the keys of all ranks."""
    arguments = [named(flat(problem, None)) for problem in problems]
    ring = Ring(group, layout, key.shape[2], hops, backend, problems[0].seed, arguments)
    tensors = [tensors_of(one)[name] for one in arguments for name in moved(one)]
    return _Ring.apply(ring, key, value, *tensors)  # pyright: ignore[reportReturnType]


def check(problem: Problem, backend: str) -> None:
    """Raises UnsupportedError: where the backend that the caller named cannot run the parts of a piece's problem.

    This happens before anything is sent: if one rank raises while others wait, they wait forever.
    """
    queries, keys = (slice(0, tensor.shape[2]) for tensor in (problem.query, problem.key))
    merging(backend, part_of(problem, queries, keys, problem.key, problem.value))


class _Ring(torch.autograd.Function):
    """O and lse of all pieces, one after the other, by the keys, the values and each piece's tensors."""

    @staticmethod
    def forward(ctx, ring: Ring, key: Tensor, value: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        problems = ring.problems(tensors)
        output, lse = _answer(ring, problems, key, value)
        output = output.to(problems[0].output_dtype)
        ctx.save_for_backward(key, value, *tensors, output, lse)
        ctx.ring = ring
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, output_gradient: Tensor, lse_gradient: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        key, value, *tensors, output, lse = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:]
        answers = (output, lse, output_gradient, lse_gradient)
        return None, *Backward(ctx.ring, key, value, tensors, wanted, answers).run()


def _answer(ring: Ring, problems: list[Problem], key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """O, not rounded, and lse of all pieces."""
    query, dtype = problems[0].query, problems[0].score_dtype()
    lengths = [problem.query.shape[2] for problem in problems]
    output = query.new_zeros(*query.shape[:2], sum(lengths), value.shape[3], dtype=dtype)
    lse = query.new_full((*query.shape[:2], sum(lengths)), -torch.inf, dtype=dtype)
    answers = list(zip(output.split(lengths, 2), lse.split(lengths, 2), strict=True))
    for given in ring.rounds():
        chunk = [given_in(tensor, given) for tensor in (key, value)]
        for step in range(ring.hops + 1):
            coming = ring.group.pass_on(chunk) if step < ring.hops else None
            for meeting in ring.meetings(problems, given, step):
                whole, its_lse = answers[meeting.number]
                one, lse_of_part = _of_part(ring, part(problems[meeting.number], meeting, chunk))
                merge(whole[:, :, meeting.queries], its_lse[:, :, meeting.queries], one, lse_of_part)
            if coming is not None:
                chunk = coming.wait()
    return output, lse


def _of_part(ring: Ring, problem: Problem) -> tuple[Tensor, Tensor]:
    """O and lse over a part of the keys, not rounded."""
    exact = problem.replaced(output_dtype=problem.score_dtype())
    with without_autocast(problem.query):
        output, lse = merging(ring.backend, problem).run(exact)
    assert lse is not None
    return output, lse
