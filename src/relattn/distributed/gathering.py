"""All-gather and Ulysses: one collective brings the tensors together, and the rest is one ordinary call."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.call import Request
from relattn.distributed.lowering import Call, Gathered, lower_all_ranks
from relattn.distributed.parts import ordered, pieces
from relattn.equation.part import part_of
from relattn.equation.problem import Problem
from relattn.equation.visibility import keys_in_reach

Answer = tuple[Float[Tensor, "B Hq n Dv"], Float[Tensor, "B Hq n"]]


def all_gather(call: Call, problems: list[Problem], backend: str) -> Answer:
    """O and lse of the pieces, one after the other.

    Keys and values of all ranks are brought together, and each piece takes those in its reach.
    """
    key, value = (call.whole(tensor, dim=2) for tensor in (call.key, call.value))
    outputs, lses = [], []
    for problem in problems:
        reachable = slice(*keys_in_reach(problem.sequence().positions))
        queries = slice(0, problem.query.shape[2])
        output, lse = _run(part_of(problem, queries, reachable, key[:, :, reachable], value[:, :, reachable]), backend)
        outputs.append(output)
        lses.append(lse)
    return torch.cat(outputs, 2), torch.cat(lses, 2)


def ulysses(call: Call, keys: Gathered, problems: list[Problem], backend: str) -> Answer:
    """O and lse. Each rank gets all positions of some heads, and gives answers back as all heads of its positions."""
    whole, heads = lower_all_ranks(call, keys), call.query.shape[1] // call.group.world
    own = slice(call.group.rank * heads, (call.group.rank + 1) * heads)
    axes = []
    for number, axis in enumerate(whole.axes):
        r = [problem.axes[number].relative_query for problem in problems]
        tables = {name: table.of_heads(own) for name, table in axis.tables().items()}
        relative_query = None if r[0] is None else _to_heads(call, torch.cat(r, 2))  # pyright: ignore[reportArgumentType]
        axes.append(axis.replace(relative_query=relative_query, **tables))
    segments = None
    if call.segments is not None:
        assert keys.segments is not None
        segments = call.whole(call.segments[0]), keys.segments
    key_bias, counted = keys.key_bias, whole.dropout_origin()
    problem = whole.replace(
        query=_to_heads(call, torch.cat([problem.query for problem in problems], 2)),
        key=_to_heads(call, call.key),
        value=_to_heads(call, call.value),
        axes=tuple(axes),
        mask=replace(whole.mask, segments=segments),
        key_bias=key_bias if key_bias is None or key_bias.shape[1] == 1 else key_bias[:, own],
        part=counted._replace(head=own.start),
    )
    output, lse = _run(problem, backend)
    return _to_positions(call, output), _to_positions(call, lse.unsqueeze(-1)).squeeze(-1)


def _run(problem: Problem, backend: str) -> Answer:
    output, lse = Request(problem, backend, problem.query.shape[:1]).run()
    assert lse is not None
    return output, lse


def _to_heads(call: Call, tensor: Float[Tensor, "B H n D"]) -> Float[Tensor, "B h L D"]:
    """All heads of the rank's positions become all positions of the rank's heads."""
    parts = tensor.unflatten(1, (call.group.world, -1)).movedim(1, 0)
    return ordered(call.group.exchanged(parts).unbind(0), 2, call.layout)


def _to_positions(call: Call, tensor: Float[Tensor, "B h L D"]) -> Float[Tensor, "B H n D"]:
    """The way back."""
    world, length = call.group.world, tensor.shape[2] // call.group.world
    of_ranks = (pieces(rank, world, length, call.layout) for rank in range(world))
    parts = [torch.cat([tensor[:, :, piece.there()] for piece in own], 2) for own in of_ranks]
    return call.group.exchanged(torch.stack(parts)).movedim(0, 1).flatten(1, 2)
