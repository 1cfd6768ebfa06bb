"""A backend that runs any problem as two PyTorch operators, `relattn::NAME` and `relattn::NAME_backward`.

They take tensors and numbers. torch.compile and torch.export see one node each, whatever the lengths. Where nobody
looks on, autograd alone calls the same two functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relattn.autocast import without_autocast
from relattn.backends.base import under_torch_func
from relattn.backends.operators import refusal, refuse_double_backward, refuse_vmap
from relattn.score.mask import Mask
from relattn.score.position import Listed, Run
from relattn.score.positions import Positions
from relattn.score.problem import TABLES, Axis, Problem
from relattn.score.table import OffsetTable

ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? relative_query, "
    "Tensor? relative_keys, Tensor? relative_queries, Tensor? relative_values, Tensor? bias, Tensor? explicit_mask, "
    "Tensor? key_bias, Tensor? query_positions, Tensor? key_positions, Tensor? starts_tensor, "
    "Tensor? key_mask, Tensor? query_segments, Tensor? key_segments, Tensor? seed, "
    "SymInt[] starts, str[] beyond, SymInt? lowest, SymInt? highest, float scale, float dropout_p, "
    "ScalarType output_dtype, float? softcap"
)
DIFFERENTIABLE: tuple[str, ...] = (
    "query", "key", "value", "relative_query", *TABLES, "explicit_mask", "key_bias",
)  # fmt: skip

NAMES = [argument.split()[-1] for argument in ARGUMENTS.split(", ")]
NUM_TENSORS = NAMES.index("starts")


class Forward(NamedTuple):
    """What the forward pass gives.

    output O, in its own dtype; lse, and what the backward pass finds the weights by, in the dtype of the scores:
    maximum, a row's largest score, and total, the sum of exp(S - maximum); each backend may hold them in its own base.
    """

    output: Float[Tensor, "B Hq Lq Dv"]
    lse: Float[Tensor, "B Hq Lq"]
    maximum: Float[Tensor, "B Hq Lq"]
    total: Float[Tensor, "B Hq Lq"]


class Answers(NamedTuple):
    """What the forward pass left, and the gradients by its output and lse."""

    output: Float[Tensor, "B Hq Lq Dv"]
    maximum: Float[Tensor, "B Hq Lq"]
    total: Float[Tensor, "B Hq Lq"]
    output_gradient: Float[Tensor, "B Hq Lq Dv"]
    lse_gradient: Float[Tensor, "B Hq Lq"]


def operator_of(
    name: str,
    forward: Callable[[Problem, Tensor | None], Forward],
    backward: Callable[[Problem, Tensor | None, Answers, set[str]], dict[str, Tensor]],
    differentiable: Callable[[Problem], tuple[Tensor, Tensor | None]] | None = None,
) -> Callable[[Problem, Tensor | None], tuple[Tensor, Tensor]]:
    """Defines the operators of a backend, and gives the function of a problem and dropout's seed that runs it.

    forward: of a problem whose starts are ints, and the seed. backward: of these, the answers, and the names of what
    gradients are wanted of (among DIFFERENTIABLE); it gives them by name. differentiable: O and lse by operations that
    PyTorch differentiates, from which second derivatives and batched gradients come; None where both are refused.
    """
    torch.library.define(f"relattn::{name}", f"({ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)")
    torch.library.define(
        f"relattn::{name}_backward",
        "(Tensor output, Tensor maximum, Tensor total, Tensor output_gradient, Tensor lse_gradient, str[] wanted, "
        f"{ARGUMENTS}) -> Tensor[]",
    )

    def run_forward(*arguments) -> Forward:
        problem = _problem(*arguments)
        with without_autocast(problem.query):
            return forward(problem, _named(arguments)["seed"])

    def run_backward(
        output, maximum, total, output_gradient, lse_gradient, wanted: Sequence[str], *arguments
    ) -> list[Tensor]:
        problem = _problem(*arguments)
        answers = Answers(output, maximum, total, output_gradient, lse_gradient)
        with without_autocast(problem.query):
            gradients = backward(problem, _named(arguments)["seed"], answers, set(wanted))
        return [gradients[name] for name in wanted]

    def differentiate(ctx, output_gradient: Tensor, lse_gradient: Tensor, *_) -> tuple[Tensor | None, ...]:
        output, maximum, total, *tensors = ctx.saved_tensors
        wanted = [name for name, needed in zip(DIFFERENTIABLE, ctx.needs_input_grad, strict=False) if needed]
        arguments = (*tensors, *ctx.numbers)
        if _is_batched(output_gradient) or _is_batched(lse_gradient):
            if differentiable is None or _named(arguments)["dropout_p"] > 0.0:
                raise refusal(name, "it takes no batched gradients (is_grads_batched)")
            found = _gradients_of(differentiable, wanted, (output_gradient, lse_gradient), arguments)
        else:
            unseen = not torch.is_grad_enabled() and not is_watched((output_gradient, lse_gradient, *tensors))
            backward_pass = run_backward if unseen else getattr(torch.ops.relattn, f"{name}_backward")
            found = backward_pass(output, maximum, total, output_gradient, lse_gradient, wanted, *arguments)
        gradients = dict(zip(wanted, found, strict=True))
        return tuple(gradients.get(name) for name in NAMES)

    torch.library.impl(f"relattn::{name}", "default")(run_forward)
    torch.library.impl(f"relattn::{name}_backward", "default")(run_backward)
    torch.library.register_fake(f"relattn::{name}")(_fake_forward)
    torch.library.register_fake(f"relattn::{name}_backward")(_fake_backward)
    torch.library.register_autograd(f"relattn::{name}", differentiate, setup_context=_save_for_backward)
    refuse_vmap(name)
    if differentiable is None:
        refuse_double_backward(name)
    else:
        _register_double_backward(name, differentiable)

    class Unseen(torch.autograd.Function):
        """The same for autograd alone: the dispatcher, to which others may listen, takes longer than a small call."""

        @staticmethod
        def forward(ctx, *arguments) -> tuple[Tensor, ...]:
            output, lse, maximum, total = answers = run_forward(*arguments)
            _save_for_backward(ctx, arguments, answers)
            ctx.mark_non_differentiable(maximum, total)
            return output, lse, maximum, total

        backward = staticmethod(differentiate)  # pyright: ignore[reportAssignmentType]

    def run(problem: Problem, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        """O and lse of the problem."""
        arguments = _flat(problem, seed)
        forward_pass = getattr(torch.ops.relattn, name) if is_watched(arguments[:NUM_TENSORS]) else Unseen.apply
        output, lse, _, _ = forward_pass(*arguments)
        return output, lse

    return run


def is_watched(tensors: Iterable[Tensor | None]) -> bool:
    """Whether anyone but autograd looks at what is called.

    A compiler, torch.func, a mode of the dispatcher, tensors of a class of their own or without numbers.
    """
    if torch.compiler.is_compiling() or under_torch_func() or torch._C._len_torch_dispatch_stack():
        return True
    for tensor in tensors:  # `any` of a generator takes twice as long
        if tensor is not None and (type(tensor) not in (Tensor, nn.Parameter) or tensor.is_meta):
            return True
    return False


def _is_batched(gradient: Tensor) -> bool:
    """Whether it is one of is_grads_batched, a vmap that register_vmap does not hear of."""
    return torch._C._functorch.is_legacy_batchedtensor(gradient)  # pyright: ignore[reportAttributeAccessIssue]


def _gradients_of(
    differentiable: Callable[[Problem], tuple[Tensor, Tensor | None]],
    wanted: Sequence[str],
    cotangents: tuple[Tensor, Tensor],
    arguments: Sequence[Any],
) -> Sequence[Tensor]:
    """The gradients that `wanted` names, by operations that PyTorch differentiates."""
    given = _named(tuple(arguments))
    leaves = {which: given[which].detach().requires_grad_() for which in wanted}
    with torch.enable_grad():
        problem = _problem(**{**given, **leaves})
        with without_autocast(problem.query):
            output, lse = differentiable(problem)
    assert lse is not None
    return torch.autograd.grad(
        (output, lse), list(leaves.values()), cotangents, allow_unused=True, materialize_grads=True
    )


def _register_double_backward(name: str, differentiable: Callable[[Problem], tuple[Tensor, Tensor | None]]) -> None:
    """The derivative of the backward operator: that of the same gradients, taken of `differentiable`.

    The operator's first three tensors are answers to the others, which account for them.
    """

    def save(ctx, inputs, output) -> None:
        _, _, _, output_gradient, lse_gradient, wanted, *arguments = inputs
        ctx.save_for_backward(output_gradient, lse_gradient, *arguments[:NUM_TENSORS])
        ctx.wanted, ctx.numbers = wanted, arguments[NUM_TENSORS:]

    def differentiate(ctx, gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        output_gradient, lse_gradient, *tensors = ctx.saved_tensors
        given = _named((*tensors, *ctx.numbers))
        if given["dropout_p"] > 0.0:
            raise refusal(name, "with dropout it has no double backward")
        moved = [which for which in DIFFERENTIABLE if given[which] is not None and given[which].is_floating_point()]

        def answers(*values: Tensor) -> tuple[Tensor, Tensor | None]:
            problem = _problem(**{**given, **dict(zip(moved, values, strict=True))})
            with without_autocast(problem.query):
                return differentiable(problem)

        def first(*values: Tensor) -> tuple[Tensor, ...]:
            pullback = torch.func.vjp(answers, *values[2:])[1]
            found = dict(zip(moved, pullback(values[:2]), strict=True))
            return tuple(found[which] for which in ctx.wanted)

        cotangents_and_inputs = output_gradient, lse_gradient, *(given[which] for which in moved)
        found, pullback = torch.func.vjp(first, *cotangents_and_inputs)[:2]
        cotangents = [torch.zeros_like(one) if g is None else g for one, g in zip(found, gradients, strict=True)]
        by_output, by_lse, *second = pullback(tuple(cotangents))
        by_name = dict(zip(moved, second, strict=True))
        return None, None, None, by_output, by_lse, None, *(by_name.get(which) for which in NAMES)

    torch.library.register_autograd(f"relattn::{name}_backward", differentiate, setup_context=save)


def _flat(problem: Problem, seed: Tensor | None) -> tuple[Any, ...]:
    """The problem as the operators' ARGUMENTS.

    starts: of the queries, of the keys, and of each table; a tensor of them, where any is one, comes beside them.
    """
    axis, positions, mask = problem.sequence, problem.sequence.positions, problem.mask
    tables = [getattr(axis, name) for name in TABLES]
    query_positions, key_positions, starts = None, None, [0, 0]
    if isinstance(positions.query, Run) and isinstance(positions.key, Run):
        starts = [positions.query.start, positions.key.start]
    else:
        query_positions, key_positions = positions.query_positions(), positions.key_positions()
    starts += [0 if table is None else table.first for table in tables]
    starts_tensor = None
    if any(isinstance(start, Tensor) for start in starts):
        starts_tensor = torch.stack([torch.as_tensor(start, device=positions.device) for start in starts])
        starts = [0] * len(starts)
    segments = mask.segments or (None, None)
    return (
        problem.query, problem.key, problem.value, axis.relative_query,
        *(None if table is None else table.values for table in tables), mask.explicit, problem.key_bias,
        query_positions, key_positions, starts_tensor, mask.key_mask, *segments, seed,
        starts, ["" if table is None else table.beyond for table in tables], positions.lowest, positions.highest,
        problem.scale, problem.dropout_p, problem.output_dtype, problem.softcap,
    )  # fmt: skip


def _problem(
    query, key, value, relative_query, relative_keys, relative_queries, relative_values, bias,
    explicit_mask, key_bias, query_positions, key_positions, starts_tensor, key_mask, query_segments, key_segments,
    seed, starts, beyond, lowest, highest, scale, dropout_p, output_dtype, softcap,
) -> Problem:  # fmt: skip
    """The problem that `_flat` took apart, its starts read as ints."""
    if starts_tensor is not None:
        starts = starts_tensor.tolist()
    query_start, key_start, *firsts = starts
    positions = Positions(
        Run(query_start) if query_positions is None else Listed(query_positions),
        Run(key_start) if key_positions is None else Listed(key_positions),
        query.shape[2], key.shape[2], query.device, lowest, highest,
    )  # fmt: skip
    values = (relative_keys, relative_queries, relative_values, bias)
    tables = {
        name: OffsetTable(rows, first, what)
        for name, rows, first, what in zip(TABLES, values, firsts, beyond, strict=True)
        if rows is not None
    }
    segments = None if query_segments is None else (query_segments, key_segments)
    return Problem(
        query, key, value, (Axis(positions, relative_query, **tables),),
        Mask(positions, key_mask, segments, explicit_mask), scale, output_dtype, dropout_p, return_lse=True,
        softcap=softcap, key_bias=key_bias,
    )  # fmt: skip


def _fake_forward(*arguments) -> Forward:
    given = _named(arguments)
    rows, width, dtype = given["query"].shape[:3], given["value"].shape[3], given["output_dtype"]
    number = torch.float64 if dtype == torch.float64 else torch.float32
    lse, maximum, total = (given["query"].new_empty(rows, dtype=number) for _ in range(3))
    return Forward(given["query"].new_empty((*rows, width), dtype=dtype), lse, maximum, total)


def _fake_backward(
    output, maximum, total, output_gradient, lse_gradient, wanted: Sequence[str], *arguments
) -> list[Tensor]:
    given = _named(arguments)
    return [given[name].new_empty(given[name].shape) for name in wanted]


def _named(arguments: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(NAMES, arguments, strict=True))


def _save_for_backward(ctx, inputs, output) -> None:
    answer, _, maximum, total = output
    ctx.save_for_backward(answer, maximum, total, *inputs[:NUM_TENSORS])
    ctx.numbers = inputs[NUM_TENSORS:]
