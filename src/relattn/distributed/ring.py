"""The ring: keys and values travel from rank to rank, and every rank computes with those that its queries see.

The forward pass merges the answers over the parts by each row's maximum and total. The backward pass (`ring_backward`)
sends the keys and values round again, followed by their gradients. A rank that sees nothing of a chunk does not get it.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from relattn.backends.problem_arguments import flat
from relattn.backends.problem_operator import Answers
from relattn.checks.autocast import without_autocast
from relattn.distributed.lowering import Call
from relattn.distributed.merge import Merged, merging
from relattn.distributed.needs import Needs
from relattn.distributed.ring_backward import Backward
from relattn.distributed.ring_schedule import RingSchedule, part, tokens_of_share
from relattn.distributed.visible_parts import Visible
from relattn.equation.problem import Problem


def attend(
    call: Call, problems: list[Problem], needs: Needs, visible: Visible, backend: str
) -> tuple[Float[Tensor, "B Hq n Dv"], Float[Tensor, "B Hq n"]]:
    """O and lse of the pieces' problems, one after the other; each problem has the keys of all ranks."""
    arguments = [flat(problem, None) for problem in problems]
    ring = RingSchedule(
        call.group, call.layout, call.key.shape[2], needs, visible.tolist(), merging(backend, problems),
        problems[0].seed, arguments,
    )  # fmt: skip
    tensors = [tensor for one in arguments for tensor in one.tensors]
    return _Ring.apply(ring, call.key, call.value, *tensors)  # pyright: ignore[reportReturnType]


class _Ring(torch.autograd.Function):
    """O and lse of all pieces, one after the other, by the keys, the values and each piece's tensors."""

    @staticmethod
    def forward(ctx, ring: RingSchedule, key: Tensor, value: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        problems = ring.problems(tensors)
        whole = Merged.of_nothing(problems)
        pieces = [Merged(*of_piece) for of_piece in zip(*(ring.by_piece(tensor) for tensor in whole), strict=True)]
        for number, share in enumerate(ring.rounds()):
            chunk = [tokens_of_share(tensor, share) for tensor in (key, value)]
            for step in range(ring.needs.steps(number)):
                coming = ring.pass_chunk(number, share, step, (key, value), chunk)
                for meeting in ring.meetings(number, share, step):
                    one = part(problems[meeting.number], meeting, chunk)
                    with without_autocast(one.query):
                        answer = ring.backend.part(one.replace(output_dtype=one.score_dtype()))  # not rounded
                    pieces[meeting.number].at(meeting.queries).add(answer, ring.backend.log_base)
                (chunk,) = coming.wait()
        lse = [one.lse(problem, ring.backend.log_base) for one, problem in zip(pieces, problems, strict=True)]
        output, lse = whole.output().to(problems[0].output_dtype), torch.cat(lse, 2)
        ctx.save_for_backward(key, value, *tensors, output, whole.maximum, whole.total)
        ctx.ring = ring
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, output_gradient: Tensor, lse_gradient: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        key, value, *tensors, output, maximum, total = ctx.saved_tensors
        needs_grad = ctx.needs_input_grad[1:]
        answers = Answers(output, maximum, total, output_gradient, lse_gradient)
        return None, *Backward(ctx.ring, key, value, tensors, needs_grad, answers).run()
