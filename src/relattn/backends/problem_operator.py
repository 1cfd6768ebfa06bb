"""A backend that runs any problem as two PyTorch operators, `relattn::NAME` and `relattn::NAME_backward`.

They take tensors and numbers. torch.compile and torch.export see one node each, for all lengths. Where nothing watches
the call, an autograd.Function calls the same two functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.operators import refusal, refuse_double_backward, refuse_onnx, refuse_vmap
from relattn.backends.problem_arguments import (
    ARGUMENTS,
    DIFFERENTIABLE,
    NAMES,
    NUM_PLAIN,
    NUM_TENSORS,
    SEED,
    WORDS,
    axis_tensor_names,
    flat,
    named,
    problem_of,
    tensors_of,
    with_tensors,
)
from relattn.checks.autocast import without_autocast
from relattn.equation.problem import Problem
from relattn.interception import is_batched, is_intercepted


class Forward(NamedTuple):
    """The results of the forward pass.

    output is O, in its own dtype. The others are in the dtype of the scores: lse, and two numbers from which the
    backward pass finds the weights: maximum, a row's largest score, and total, the sum of exp(S - maximum). Each
    backend holds these two in its own base. In a row that sees no key they are -inf and 0.
    """

    output: Float[Tensor, "B Hq Lq Dv"]
    lse: Float[Tensor, "B Hq Lq"]
    maximum: Float[Tensor, "B Hq Lq"]
    total: Float[Tensor, "B Hq Lq"]


class Answers(NamedTuple):
    """The results of the forward pass, and the gradients by its output and lse: what the backward pass is given.

    Of a part of a call they are those of the whole call.
    """

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
    direct: Callable[[Problem, Tensor | None], tuple[Tensor, Tensor | None]] | None = None,
    *,
    reads_starts: bool = True,
) -> Callable[[Problem, Tensor | None], tuple[Tensor, Tensor | None]]:
    """Defines the operators of a backend. Returns the function that runs them, of a problem and dropout's seed.

    Where no gradient is recorded and nothing watches, neither autograd nor the dispatcher is asked.

    forward: takes a problem whose starts are ints, and the seed. backward: takes these, the answers, and the names of
    the wanted gradients (among DIFFERENTIABLE and the tensors of other axes); it returns the gradients by name.
    differentiable: O and lse by operations that PyTorch differentiates; second derivatives and batched gradients come
    from it. None where both are refused. direct: O and lse where nothing is recorded, if `forward` does more, for a
    backward pass. reads_starts: False for kernels that take starts as the tensors that they are.
    """
    torch.library.define(f"relattn::{name}", f"({ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)")
    torch.library.define(
        f"relattn::{name}_backward",
        "(Tensor output, Tensor maximum, Tensor total, Tensor output_gradient, Tensor lse_gradient, str[] wanted, "
        f"{ARGUMENTS}) -> Tensor[]",
    )

    def run_forward(*arguments) -> Forward:
        problem = problem_of(*arguments, read=reads_starts)
        with without_autocast(problem.query):
            return forward(problem, arguments[SEED])

    def run_backward(
        output, maximum, total, output_gradient, lse_gradient, wanted: Sequence[str], *arguments
    ) -> list[Tensor]:
        problem = problem_of(*arguments, read=reads_starts)
        answers = Answers(output, maximum, total, output_gradient, lse_gradient)
        with without_autocast(problem.query):
            gradients = backward(problem, arguments[SEED], answers, set(wanted))
        return [gradients[name] for name in wanted]

    def differentiate(ctx, output_gradient: Tensor, lse_gradient: Tensor, *_) -> tuple[Any, ...]:
        (output, maximum, total), arguments = _restored(ctx, answers=3)
        needed = dict(zip(NAMES, ctx.needs_input_grad, strict=True))
        names = axis_tensor_names(arguments[WORDS])
        wanted = [which for which in DIFFERENTIABLE if needed[which]]
        wanted += [which for which, one in zip(names, needed["axis_tensors"], strict=True) if one]
        if is_batched(output_gradient) or is_batched(lse_gradient):
            if differentiable is None:
                raise refusal(name, "it takes no batched gradients (is_grads_batched)")
            found = _gradients_of(differentiable, wanted, (output_gradient, lse_gradient), arguments)
        else:
            tensors = _tensors_among(arguments)
            unseen = not torch.is_grad_enabled() and not is_intercepted((output_gradient, lse_gradient, *tensors))
            backward_pass = run_backward if unseen else getattr(torch.ops.relattn, f"{name}_backward")
            found = backward_pass(output, maximum, total, output_gradient, lse_gradient, wanted, *arguments)
        return _by_argument(dict(zip(wanted, found, strict=True)), arguments)

    torch.library.impl(f"relattn::{name}", "default")(run_forward)
    torch.library.impl(f"relattn::{name}_backward", "default")(run_backward)
    torch.library.register_fake(f"relattn::{name}")(partial(_fake_forward, name))
    torch.library.register_fake(f"relattn::{name}_backward")(_fake_backward)
    torch.library.register_autograd(f"relattn::{name}", differentiate, setup_context=_save_for_backward)
    refuse_vmap(name)
    if differentiable is None:
        refuse_double_backward(name)
    else:
        _register_double_backward(name, differentiable)

    class PlainAutograd(torch.autograd.Function):
        """The same only for autograd: the dispatcher, which others may watch, takes longer than a small call."""

        @staticmethod
        def forward(ctx, num_positions: int, *flat_arguments) -> tuple[Tensor, ...]:
            arguments = _in_lists(flat_arguments, num_positions)
            answers = run_forward(*arguments)
            _save_for_backward(ctx, arguments, answers)
            return answers.output, answers.lse

        @staticmethod
        def backward(ctx, *gradients) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
            *plain, positions, tensors = differentiate(_Nested(ctx), *gradients)
            return None, *plain, *positions, *tensors

    def run(problem: Problem, seed: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """O and, where the problem asks for it, lse."""
        if problem.asks_for_gradient() or _needs_dispatcher(problem):
            arguments = flat(problem, seed)
            if is_intercepted(_tensors_among(arguments)):
                output, lse, _, _ = getattr(torch.ops.relattn, name)(*arguments)
            else:
                *plain, positions, tensors = arguments
                output, lse = PlainAutograd.apply(len(positions), *plain, *positions, *tensors)  # pyright: ignore[reportGeneralTypeIssues]
        elif direct is not None:
            return direct(problem, seed)
        else:
            with without_autocast(problem.query):
                output, lse, _, _ = forward(problem, seed)
        return output, lse if problem.return_lse else None

    return run


def _needs_dispatcher(problem: Problem) -> bool:
    """Whether anything but the kernels watches the call, or a start must still be read."""
    given = [problem.query, problem.key, problem.value, problem.mask.pairs, problem.key_bias]
    if torch.compiler.is_compiling() or isinstance(problem.sequence().positions.origin, Tensor):
        return True
    for axis in problem.axes:
        given.append(axis.relative_query)
        for table in axis[2:]:
            if table is not None:
                given.append(table.values)
                if isinstance(table.first, Tensor):
                    return True
    return is_intercepted(given)


class _Nested:
    """The context of an autograd.Function with flat arguments, in the form of an operator's, which come in lists."""

    def __init__(self, ctx):
        self.saved_tensors, self.numbers, self.num_positions = ctx.saved_tensors, ctx.numbers, ctx.num_positions
        self.needs_input_grad = _in_lists(ctx.needs_input_grad[1:], ctx.num_positions)


def _in_lists(flat_arguments: Sequence[Any], num_positions: int) -> tuple[Any, ...]:
    """The arguments with the lists at their end; the first list has `num_positions`."""
    lists = flat_arguments[NUM_PLAIN:]
    return *flat_arguments[:NUM_PLAIN], list(lists[:num_positions]), list(lists[num_positions:])


def _tensors_among(arguments: Sequence[Any]) -> list[Tensor | None]:
    *plain, positions, tensors = arguments
    return [*plain[:NUM_TENSORS], *positions, *tensors]


def _by_argument(gradients: dict[str, Tensor], arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients at the places of their arguments."""
    others = [gradients.get(which) for which in axis_tensor_names(arguments[WORDS])]
    own = [gradients.get(which) for which in NAMES[:NUM_PLAIN]]
    return *own, [None] * len(arguments[NUM_PLAIN]), others


def _gradients_of(
    differentiable: Callable[[Problem], tuple[Tensor, Tensor | None]],
    wanted: Sequence[str],
    cotangents: tuple[Tensor, Tensor],
    arguments: Sequence[Any],
) -> Sequence[Tensor]:
    """The gradients that `wanted` names, by operations that PyTorch differentiates."""
    given = named(arguments)
    held = tensors_of(given)
    leaves = {which: held[which].detach().requires_grad_() for which in wanted}  # pyright: ignore[reportOptionalMemberAccess]
    with torch.enable_grad():
        problem = _seeded(with_tensors(given, leaves))
        with without_autocast(problem.query):
            output, lse = differentiable(problem)
    assert lse is not None
    return torch.autograd.grad(
        (output, lse), list(leaves.values()), cotangents, allow_unused=True, materialize_grads=True
    )


def _seeded(given: dict[str, Any]) -> Problem:
    """The problem of these arguments, whose dropout draws what it has drawn before."""
    seed = given["seed"]
    return problem_of(**given).replace(seed=None if seed is None else int(seed))


def _register_double_backward(name: str, differentiable: Callable[[Problem], tuple[Tensor, Tensor | None]]) -> None:
    """The derivative of the backward operator: the derivative of the same gradients, computed from `differentiable`.

    The operator's first three tensors are answers to the other arguments, so these account for them.
    """

    def save(ctx, inputs, output) -> None:
        _, _, _, output_gradient, lse_gradient, wanted, *arguments = inputs
        _save(ctx, (output_gradient, lse_gradient), arguments)
        ctx.wanted = wanted

    def differentiate(ctx, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
        (output_gradient, lse_gradient), arguments = _restored(ctx, answers=2)
        given = named(arguments)
        held = tensors_of(given)
        moved = [which for which, tensor in held.items() if tensor is not None and tensor.is_floating_point()]

        def answers(*values: Tensor) -> tuple[Tensor, Tensor | None]:
            problem = _seeded(with_tensors(given, dict(zip(moved, values, strict=True))))
            with without_autocast(problem.query):
                return differentiable(problem)

        def first(*values: Tensor) -> tuple[Tensor, ...]:
            pullback = torch.func.vjp(answers, *values[2:])[1]
            found = dict(zip(moved, pullback(values[:2]), strict=True))
            return tuple(found[which] for which in ctx.wanted)

        cotangents_and_inputs = output_gradient, lse_gradient, *(held[which] for which in moved)
        found, pullback = torch.func.vjp(first, *cotangents_and_inputs)[:2]
        cotangents = [torch.zeros_like(one) if g is None else g for one, g in zip(found, gradients, strict=True)]
        by_output, by_lse, *second = pullback(tuple(cotangents))
        by_name = dict(zip(moved, second, strict=True))
        return None, None, None, by_output, by_lse, None, *_by_argument(by_name, arguments)

    torch.library.register_autograd(f"relattn::{name}_backward", differentiate, setup_context=save)


def _fake_forward(name: str, *arguments) -> Forward:
    refuse_onnx(name)
    given = named(arguments)
    rows, width, dtype = given["query"].shape[:3], given["value"].shape[3], given["output_dtype"]
    number = torch.float64 if dtype == torch.float64 else torch.float32
    lse, maximum, total = (given["query"].new_empty(rows, dtype=number) for _ in range(3))
    return Forward(given["query"].new_empty((*rows, width), dtype=dtype), lse, maximum, total)


def _fake_backward(
    output, maximum, total, output_gradient, lse_gradient, wanted: Sequence[str], *arguments
) -> list[Tensor]:
    held = tensors_of(named(arguments))
    return [held[name].new_empty(held[name].shape) for name in wanted]  # pyright: ignore[reportOptionalMemberAccess]


def _save_for_backward(ctx, inputs, output) -> None:
    answer, _, maximum, total = output
    _save(ctx, (answer, maximum, total), inputs)


def _save(ctx, answers: tuple[Tensor, ...], arguments: Sequence[Any]) -> None:
    """Keep the answers and all arguments."""
    ctx.save_for_backward(*answers, *_tensors_among(arguments))
    ctx.numbers, ctx.num_positions = arguments[NUM_TENSORS:NUM_PLAIN], len(arguments[NUM_PLAIN])


def _restored(ctx, answers: int) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    """The answers and the arguments that `_save` kept."""
    saved = ctx.saved_tensors
    kept, tensors, lists = saved[:answers], saved[answers : answers + NUM_TENSORS], saved[answers + NUM_TENSORS :]
    return kept, _in_lists((*tensors, *ctx.numbers, *lists), ctx.num_positions)
