"""The kernels as PyTorch operators, `relattn::triton` and `relattn::triton_backward`, over tensors and numbers.

torch.compile and torch.export see one node each, for all lengths. Defining them does not import Triton: the kernels are
imported when they first run. No tensor's value is read, so CUDA graphs may capture a call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from relattn.autocast import without_autocast
from relattn.backends.operators import refuse_double_backward, refuse_vmap
from relattn.backends.triton.call import Answers, Call, Table, is_added
from relattn.backends.triton.padding import of_seeing_rows, with_padding, without_padding
from relattn.score.key_bias import lowered
from relattn.score.problem import TABLES, Problem
from relattn.score.table import OffsetTable
from relattn.watched import constant_in_graphs

ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? relative_query, "
    "Tensor? relative_keys, Tensor? relative_queries, Tensor? relative_values, Tensor? bias, "
    "Tensor? key_mask, Tensor? query_segments, Tensor? key_segments, Tensor? explicit_mask, "
    "Tensor? key_bias, Tensor? key_shift, Tensor? seed, "
    "SymInt[] firsts, bool[] zeros, SymInt offset, SymInt? lowest, SymInt? highest, "
    "float scale, float? softcap, float dropout_p, bool in_float32, str precision"
)
DIFFERENTIABLE: tuple[str, ...] = ("query", "key", "value", "relative_query", *TABLES, "explicit_mask", "key_bias")

torch.library.define("relattn::triton", f"({ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)")
torch.library.define(
    "relattn::triton_backward",
    "(Tensor output, Tensor lse, Tensor maximum, Tensor total, Tensor output_gradient, Tensor lse_gradient, "
    f"str[] wanted, {ARGUMENTS}) -> Tensor[]",
)
NAMES = [argument.name for argument in torch.ops.relattn.triton.default._schema.arguments]
WIDEST_IN_PARTS = 64
NUM_TENSORS = NAMES.index("firsts")


def run(problem: Problem, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    """O in the common dtype of the inputs, or in float32 where it is to be rounded later, and lse."""
    arguments = flat(problem, seed)
    output, lse, _, _ = torch.ops.relattn.triton(*arguments)
    shift = arguments[NAMES.index("key_shift")]
    return output, lse if shift is None else lse + shift


def gradients(
    problem: Problem, output: Tensor, lse: Tensor, output_gradient: Tensor, lse_gradient: Tensor, wanted: Sequence[str]
) -> dict[str, Tensor]:
    """A part's share of the gradients of a call without dropout; output and lse are those of the whole call."""
    arguments = flat(problem, None)
    shift, mask = arguments[NAMES.index("key_shift")], problem.mask.explicit
    lse = lse if shift is None else lse - shift
    maximum = total = lse.new_empty(0)
    if is_added(mask):
        maximum, total = lse / math.log(2.0), torch.ones_like(lse)
    answers = output, lse, maximum, total
    found = torch.ops.relattn.triton_backward(*answers, output_gradient, lse_gradient, wanted, *arguments)
    gradients = dict(zip(wanted, found, strict=True))
    if "key_bias" in gradients and problem.key_bias is not None:
        gradients["key_bias"] = gradients["key_bias"].sum_to_size(problem.key_bias.shape).to(problem.key_bias.dtype)
    if "explicit_mask" in gradients and mask is not None:
        gradients["explicit_mask"] = gradients["explicit_mask"].to(mask.dtype)
    return gradients


def flat(problem: Problem, seed: Tensor | None) -> tuple[Any, ...]:
    """The problem as the operators' ARGUMENTS.

    Inputs of several dtypes are converted to the dtype that can hold all of them. A table is in that dtype, or in
    float32.
    """
    axis, positions, mask = problem.sequence(), problem.sequence().positions, problem.mask
    inputs = (problem.query, problem.key, problem.value, axis.relative_query)
    dtype = reduce(torch.promote_types, [tensor.dtype for tensor in inputs if tensor is not None])
    tables: list[OffsetTable | None] = [getattr(axis, name) for name in TABLES]
    key_bias, key_shift = _key_bias(problem)
    return (
        *(None if tensor is None else tensor.to(dtype) for tensor in inputs),
        *(None if table is None else _values(table, dtype) for table in tables),
        mask.key_mask, *(mask.segments or (None, None)), _explicit(mask.explicit), key_bias, key_shift, seed,
        [0 if table is None else table.first for table in tables],
        [table is not None and table.beyond == "zero" for table in tables],
        positions.known_origin, positions.lowest, positions.highest,
        problem.scale, problem.softcap, problem.dropout_p, problem.output_dtype == torch.float32,
        _precision(dtype, max(tensor.shape[-1] for tensor in inputs if tensor is not None), tables),
    )  # fmt: skip


def _precision(dtype: torch.dtype, width: int, tables: list[OffsetTable | None]) -> str:
    """Of products of float32 with float32: "ieee", or "tf32x3" where less than the highest precision is asked for.

    Two parts of every factor fit in registers up to WIDEST_IN_PARTS features, beside no table but a bias.
    """
    fits = dtype == torch.float32 and width <= WIDEST_IN_PARTS and all(table is None for table in tables[:3])
    return "tf32x3" if fits and not _highest_is_asked_for() else "ieee"


@constant_in_graphs
def _highest_is_asked_for() -> bool:
    """PyTorch's setting; graphs of torch.compile are made again when it changes."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # it has no answer where its newer settings are mixed in
        return True


def _explicit(mask: Tensor | None) -> Tensor | None:
    """A boolean mask as it is, a float one in a dtype of the kernels."""
    return mask.to(torch.float32) if mask is not None and mask.dtype == torch.float64 else mask


def _key_bias(problem: Problem) -> tuple[Tensor | None, Tensor | None]:
    """a [B, Hq, Lk] and c [B, Hq, Lq] of `key_bias.lowered`."""
    if problem.key_bias is None:
        return None, None
    a, c = lowered(problem)
    rows = problem.query.shape[:3]
    return a.expand(*rows[:2], a.shape[2]), c.expand(rows)


def _values(table: OffsetTable, dtype: torch.dtype) -> Tensor:
    return table.values if table.values.dtype == dtype else table.values.to(torch.float32)


def _call(arguments: tuple[Any, ...]) -> Call:
    """The arguments of `flat`, as the kernels take them.

    A table that refuses is never read beyond its rows. So it does not matter that its edge row would hold there.
    """
    given = _named(arguments)
    for name, first, zero in zip(TABLES, given.pop("firsts"), given.pop("zeros"), strict=True):
        given[name] = None if given[name] is None else Table(given[name], first, zero)
    return Call(**given)


def _named(arguments: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(NAMES, arguments, strict=True))


@torch.library.impl("relattn::triton", "default")
def _forward(*arguments) -> tuple[Tensor, ...]:
    from relattn.backends.triton.forward import forward

    call = without_padding(_call(arguments))
    if _has_no_pair(call):
        output, lse, maximum, total = _fake_forward(*arguments)
        return output.zero_(), lse.fill_(-torch.inf), maximum.fill_(-torch.inf), total.zero_()
    with without_autocast(call.query), torch.cuda.device_of(call.query):  # kernels run on the current device
        answers = forward(call)
    return tuple(answers.lse.new_empty(0) if numbers is None else numbers for numbers in answers)


@torch.library.register_fake("relattn::triton")
def _fake_forward(*arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tensors of `Answers`, those that are None of size 0."""
    given = _named(arguments)
    query, rows, mask = given["query"], given["query"].shape[:3], given["explicit_mask"]
    dtype = torch.float32 if given["in_float32"] else query.dtype
    output = query.new_empty((*rows, given["value"].shape[3]), dtype=dtype)
    beside = rows if is_added(mask) else (0,)
    lse, maximum, total = (query.new_empty(shape, dtype=torch.float32) for shape in (rows, beside, beside))
    return output, lse, maximum, total


@torch.library.impl("relattn::triton_backward", "default")
def _backward(
    output, lse, maximum, total, output_gradient, lse_gradient, wanted: Sequence[str], *arguments
) -> list[Tensor]:
    from relattn.backends.triton.backward import backward

    given = _call(arguments)
    call = without_padding(given)
    if _has_no_pair(call):
        return [gradient.zero_() for gradient in _like(wanted, arguments)]
    with without_autocast(call.query), torch.cuda.device_of(call.query):  # kernels run on the current device
        beside = (maximum, total) if call.adds_mask else (None, None)
        cotangents = of_seeing_rows(call, lse, output_gradient, lse_gradient)
        found = backward(call, Answers(output, lse, *beside), *cotangents, wanted)
    gradients = found._replace(key=with_padding(given, found.key), value=with_padding(given, found.value))
    for name in ("key_bias", "explicit_mask"):
        numbers = getattr(found, name)
        if numbers is not None and numbers.shape != getattr(given, name).shape:
            gradients = gradients._replace(**{name: with_padding(given, numbers.unsqueeze(-1)).squeeze(-1)})
    return [getattr(gradients, name) for name in wanted]


@torch.library.register_fake("relattn::triton_backward")
def _fake_backward(
    output, lse, maximum, total, output_gradient, lse_gradient, wanted: Sequence[str], *arguments
) -> list[Tensor]:
    return _like(wanted, arguments)


def _like(wanted: Sequence[str], arguments: tuple[Any, ...]) -> list[Tensor]:
    """A tensor for the gradient of each argument that is wanted."""
    given = _named(arguments)
    return [given[name].new_empty(given[name].shape) for name in wanted]


def _has_no_pair(call: Call) -> bool:
    """No batch, no queries or no keys: there is no grid to launch a kernel on."""
    return call.query.shape[0] * call.query.shape[2] * call.key.shape[2] == 0


def _save_for_backward(ctx, inputs, output) -> None:
    ctx.save_for_backward(*output, *inputs[:NUM_TENSORS])
    ctx.numbers = inputs[NUM_TENSORS:]


def _differentiate(ctx, output_gradient: Tensor, lse_gradient: Tensor, *_) -> tuple[Tensor | None, ...]:
    output, lse, maximum, total, *tensors = ctx.saved_tensors
    wanted = [
        name for name, needed in zip(NAMES, ctx.needs_input_grad, strict=True) if needed and name in DIFFERENTIABLE
    ]
    answers = output, lse, maximum, total
    found = torch.ops.relattn.triton_backward(*answers, output_gradient, lse_gradient, wanted, *tensors, *ctx.numbers)
    gradients = dict(zip(wanted, found, strict=True))
    return tuple(gradients.get(name) for name in NAMES)


torch.library.register_autograd("relattn::triton", _differentiate, setup_context=_save_for_backward)
refuse_vmap("triton")
refuse_double_backward("triton")
