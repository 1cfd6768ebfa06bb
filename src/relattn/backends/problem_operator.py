"""A backend that runs any problem as two PyTorch operators, `relattn::NAME` and `relattn::NAME_backward`.

They take the lists of `problem_arguments`. torch.compile and torch.export see one node each, for all lengths. Where
nothing watches the call, an autograd.Function calls the same two functions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.operators import refusal, refuse_double_backward, refuse_onnx, refuse_vmap
from relattn.backends.problem_arguments import CONSTANTS, SCHEMA, flat, problem_of
from relattn.checks.autocast import without_autocast
from relattn.equation.problem import Differentiable, Problem
from relattn.interception import is_batched, is_intercepted, read_of

Seed: TypeAlias = Tensor | int | None
"""Of dropout, on the device or the host; None where nothing is dropped."""


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


class Prepare(NamedTuple):
    """Either pass, made ready from a problem's metadata; None for a problem for which there is no such way.

    forward: of the tensors of a problem, those that are not None. backward: the wanted gradients, of these tensors and
    the answers.
    """

    forward: Callable[[Problem], Callable[[Sequence[Tensor]], Forward] | None]
    backward: Callable[[Problem, Differentiable[bool]], Callable[[Sequence[Tensor], Answers], list[Tensor]] | None]


class Operators(NamedTuple):
    """run: O and, where the problem asks for it, lse, of a problem and dropout's seed.

    recorded: for a problem without dropout whose calls autograd records, O of the tensors that the problem has.
    """

    run: Callable[[Problem, Tensor | None], tuple[Tensor, Tensor | None]]
    recorded: Callable[[Problem], Callable[..., Float[Tensor, "B Hq Lq Dv"]]]


MOST = 256
"""Kept at a time, of each kind."""
Kept = TypeVar("Kept")
PASSES: dict[Hashable, Callable[..., Any] | None] = {}
"""The passes that were made ready, by what is read while one is made; None for one that is not, or not yet."""


def operator_of(
    name: str,
    forward: Callable[[Problem, Any], Forward],
    backward: Callable[[Problem, Any, Answers, Differentiable[bool]], Differentiable[Tensor | None]],
    differentiable: Callable[[Problem], tuple[Tensor, Tensor | None]] | None = None,
    direct: Callable[[Problem, Tensor | None], tuple[Tensor, Tensor | None]] | None = None,
    prepare: Prepare | None = None,
    *,
    reads_starts: bool = True,
) -> Operators:
    """Defines the operators of a backend, and returns the functions that run them.

    Where no gradient is recorded and nothing watches, neither autograd nor the dispatcher is asked.

    forward: takes a problem whose starts are ints, and the Seed. backward: takes these, the answers, and which
    gradients are wanted; it returns these, as `finished` takes them. differentiable: O and lse by operations that
    PyTorch differentiates; second derivatives and batched gradients come from it. None where both are refused. direct:
    O and lse where nothing is recorded, if `forward` does more, for a backward pass. prepare: either pass, made once
    for all calls of the same metadata. reads_starts: False for kernels that take starts and the seed as the tensors
    that they are.
    """
    torch.library.define(f"relattn::{name}", f"({SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor)")
    torch.library.define(
        f"relattn::{name}_backward",
        "(Tensor output, Tensor maximum, Tensor total, Tensor output_gradient, Tensor lse_gradient, int[] wanted, "
        f"{SCHEMA}) -> Tensor[]",
    )

    def run_forward(*arguments) -> Forward:
        if (known := PASSES.get(read := prepare and _read_of(name, None, *arguments))) is not None:
            return known(arguments[0])
        problem, seed = problem_of(*arguments, read=reads_starts)
        with without_autocast(problem.query):
            if prepare and _is_seen_again(read) and (made := prepare.forward(problem)):
                keep(PASSES, read, made)
                return made(arguments[0])
            return forward(problem, seed)

    def run_backward(
        output, maximum, total, output_gradient, lse_gradient, wanted: Sequence[int], *arguments
    ) -> list[Tensor]:
        answers = Answers(output, maximum, total, output_gradient, lse_gradient)
        if (known := PASSES.get(read := prepare and _read_of(name, tuple(wanted), *arguments))) is not None:
            return known(arguments[0], answers)
        problem, seed = problem_of(*arguments, read=reads_starts)
        leaves = problem.leaves()
        places = [n for n, leaf in enumerate(leaves) if leaf is not None]
        asked = [False] * len(leaves)
        for which in wanted:
            asked[places[which]] = True
        tree = Differentiable.of(asked)
        with without_autocast(problem.query):
            if prepare and _is_seen_again(read) and (made := prepare.backward(problem, tree)):
                keep(PASSES, read, made)
                return made(arguments[0], answers)
            gradients = finished(problem, tree, backward(problem, seed, answers, tree)).leaves()
        return [gradients[places[which]] for which in wanted]  # pyright: ignore[reportReturnType]

    def differentiate(ctx, needed: Sequence[bool], output_gradient: Tensor, lse_gradient: Tensor, *_) -> list[Any]:
        (output, maximum, total), arguments = _restored(ctx, answers=3)
        wanted = [n for n, one in enumerate(needed) if one]
        if is_batched(output_gradient) or is_batched(lse_gradient):
            if differentiable is None:
                raise refusal(name, "it takes no batched gradients (is_grads_batched)")
            found = _gradients_of(differentiable, wanted, (output_gradient, lse_gradient), *arguments)
        else:
            unseen = not torch.is_grad_enabled() and not is_intercepted((output_gradient, lse_gradient, *arguments[0]))
            backward_pass = run_backward if unseen else getattr(torch.ops.relattn, f"{name}_backward")
            found = backward_pass(output, maximum, total, output_gradient, lse_gradient, wanted, *arguments)
        return _at(wanted, found, len(needed))

    def differentiate_operator(ctx, *gradients) -> tuple[Any, ...]:
        return differentiate(ctx, ctx.needs_input_grad[0], *gradients), None, None, None

    torch.library.impl(f"relattn::{name}", "default")(run_forward)
    torch.library.impl(f"relattn::{name}_backward", "default")(run_backward)
    torch.library.register_fake(f"relattn::{name}")(partial(_fake_forward, name))
    torch.library.register_fake(f"relattn::{name}_backward")(_fake_backward)
    torch.library.register_autograd(f"relattn::{name}", differentiate_operator, setup_context=_save_for_backward)
    refuse_vmap(name)
    if differentiable is None:
        refuse_double_backward(name)
    else:
        _register_double_backward(name, differentiable)

    class PlainAutograd(torch.autograd.Function):
        """The same only for autograd: the dispatcher, which others may watch, takes longer than a small call."""

        @staticmethod
        def forward(ctx, numbers: list[int], floats: list[float], words: str, *tensors) -> tuple[Tensor, ...]:
            answers = run_forward(tensors, numbers, floats, words)
            _save_for_backward(ctx, (tensors, numbers, floats, words), answers)
            return answers.output, answers.lse

        @staticmethod
        def backward(ctx, *gradients) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
            return None, None, None, *differentiate(ctx, ctx.needs_input_grad[3:], *gradients)

    def run(problem: Problem, seed: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """O and, where the problem asks for it, lse."""
        if _needs_dispatcher(problem) or problem.asks_for_gradient():
            tensors, *others = flat(problem, seed)
            if is_intercepted(tensors):
                output, lse, _, _ = getattr(torch.ops.relattn, name)(tensors, *others)
            else:
                output, lse = PlainAutograd.apply(*others, *tensors)  # pyright: ignore[reportGeneralTypeIssues]
        elif direct is not None:
            return direct(problem, seed)
        else:
            with without_autocast(problem.query):
                output, lse, _, _ = forward(problem, seed)
        return output, lse if problem.return_lse else None

    def recorded(problem: Problem) -> Callable[..., Tensor]:
        """O of the tensors that such a problem has, recorded by autograd."""
        _, *others = flat(problem, None)

        def record(*tensors: Tensor) -> Tensor:
            return PlainAutograd.apply(*others, *tensors)[0]

        return record

    return Operators(run, recorded)


def _is_seen_again(read: Hashable | None) -> bool:
    """Whether a pass with these metadata has run before: only then one is made ready, which takes longer."""
    if read is None or read in PASSES:
        return read is not None
    keep(PASSES, read, None)
    return False


def keep(kept: dict[Hashable, Kept], read: Hashable, made: Kept, most: int = MOST) -> None:
    """Keep it, and forget what was kept first beyond `most`. Each step is one of the dict's: threads may meet."""
    kept[read] = made
    for first in list(kept)[:-most]:
        kept.pop(first, None)


def finished(
    problem: Problem, wanted: Differentiable[bool], gradients: Differentiable[Tensor | None]
) -> Differentiable[Tensor | None]:
    """The wanted gradients in the shapes and dtypes of their tensors, the others None.

    gradients: None for zeros. One may have more of an axis of size 1: it is summed over it.
    """
    found: list[Tensor | None] = []
    for one, tensor, gradient in zip(wanted.leaves(), problem.leaves(), gradients.leaves(), strict=True):
        if not one or tensor is None:
            found.append(None)
        elif gradient is None:
            found.append(torch.zeros_like(tensor, memory_format=torch.contiguous_format))
        else:
            found.append(gradient.sum_to_size(tensor.shape).to(tensor.dtype))
    return Differentiable.of(found)


def _read_of(
    name: str, wanted: tuple[int, ...] | None, tensors: Sequence[Tensor], numbers: Sequence[int],
    floats: Sequence[float], words: str,
) -> Hashable | None:  # fmt: skip
    """What is read while a pass is made ready; None where a number is held by a tensor. wanted: of a backward pass."""
    found = read_of(tensors)
    if found is None or not all(map(Tensor.dim, tensors)):
        return None
    return name, wanted, found, *numbers, *floats, words, torch.get_num_threads()


def _needs_dispatcher(problem: Problem) -> bool:
    """Whether anything but the kernels watches the call, or a start must still be read."""
    if isinstance(problem.axes[0].positions.origin, Tensor):
        return True
    for axis in problem.axes:
        for table in axis[2:]:
            if table is not None and isinstance(table.first, Tensor):
                return True
    return is_intercepted(problem.leaves())


def _at(places: Sequence[int], gradients: Sequence[Tensor], count: int) -> list[Tensor | None]:
    """The gradients in a list of so many, None elsewhere."""
    found: list[Tensor | None] = [None] * count
    for place, gradient in zip(places, gradients, strict=True):
        found[place] = gradient
    return found


def _again(
    differentiable: Callable[[Problem], tuple[Tensor, Tensor | None]],
    places: Sequence[int],
    values: Sequence[Tensor],
    tensors: Sequence[Tensor],
    *others: Any,
) -> tuple[Tensor, Tensor]:
    """O and lse with these values in place of some tensors. Dropout draws what it has drawn before."""
    given = list(tensors)
    for place, value in zip(places, values, strict=True):
        given[place] = value
    problem, seed = problem_of(given, *others)
    with without_autocast(problem.query):
        output, lse = differentiable(problem.replace(seed=seed))
    assert lse is not None
    return output, lse


def _gradients_of(
    differentiable: Callable[[Problem], tuple[Tensor, Tensor | None]],
    wanted: Sequence[int],
    cotangents: tuple[Tensor, Tensor],
    tensors: Sequence[Tensor],
    *others: Any,
) -> Sequence[Tensor]:
    """The gradients by the wanted tensors, by operations that PyTorch differentiates."""
    leaves = [tensors[n].detach().requires_grad_() for n in wanted]
    with torch.enable_grad():
        answers = _again(differentiable, wanted, leaves, tensors, *others)
    return torch.autograd.grad(answers, leaves, cotangents, allow_unused=True, materialize_grads=True)


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
        moved = [n for n, tensor in enumerate(arguments[0]) if tensor.is_floating_point()]

        def answers(*values: Tensor) -> tuple[Tensor, Tensor]:
            return _again(differentiable, moved, values, *arguments)

        def first(*values: Tensor) -> tuple[Tensor, ...]:
            pullback = torch.func.vjp(answers, *values[2:])[1]
            found = dict(zip(moved, pullback(values[:2]), strict=True))
            return tuple(found[which] for which in ctx.wanted)

        cotangents_and_inputs = output_gradient, lse_gradient, *(arguments[0][n] for n in moved)
        found, pullback = torch.func.vjp(first, *cotangents_and_inputs)[:2]
        cotangents = [torch.zeros_like(one) if g is None else g for one, g in zip(found, gradients, strict=True)]
        by_output, by_lse, *second = pullback(tuple(cotangents))
        by_tensors = _at(moved, second, len(arguments[0]))
        return None, None, None, by_output, by_lse, None, by_tensors, None, None, None

    torch.library.register_autograd(f"relattn::{name}_backward", differentiate, setup_context=save)


def _fake_forward(name: str, tensors: Sequence[Tensor], numbers, floats, words: str) -> Forward:
    refuse_onnx(name)
    query, _, value = tensors[:3]
    dtype = CONSTANTS[words.split(" ", 1)[0]]
    rows, number = query.shape[:3], torch.float64 if dtype == torch.float64 else torch.float32
    lse, maximum, total = (query.new_empty(rows, dtype=number) for _ in range(3))
    return Forward(query.new_empty((*rows, value.shape[3]), dtype=dtype), lse, maximum, total)


def _fake_backward(
    output, maximum, total, output_gradient, lse_gradient, wanted: Sequence[int], tensors: Sequence[Tensor], *others
) -> list[Tensor]:
    return [tensors[which].new_empty(tensors[which].shape) for which in wanted]


def _save_for_backward(ctx, inputs, output) -> None:
    answer, _, maximum, total = output
    _save(ctx, (answer, maximum, total), inputs)


def _save(ctx, answers: tuple[Tensor, ...], arguments: Sequence[Any]) -> None:
    """Keep the answers and all arguments."""
    tensors, *ctx.others = arguments
    ctx.save_for_backward(*answers, *tensors)


def _restored(ctx, answers: int) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    """The answers and the arguments that `_save` kept."""
    saved = ctx.saved_tensors
    return saved[:answers], (saved[answers:], *ctx.others)
