"""Memory for the sums that several programs add to: dk, dv, and the gradients of tables and key bias."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from relattn.backends.triton.host.call import Call
from relattn.backends.triton.host.pack import wanted_tables
from relattn.backends.triton.host.replay import new_memory
from relattn.equation.problem import Differentiable

NUMBERS = ("bias", "key_bias")
"""Gradients of numbers; the others are of rows of vectors."""


class Terms(NamedTuple):
    """Where a program adds what it knows of the gradients of the sequence's tables and the key bias; None where it adds
    nothing.

    Of a table: [Hq, 1 + rows + 1, width], or [Hq, rows] for a bias. key_bias: [B, Hq, Lk].
    """

    relative_keys: Tensor | None
    relative_queries: Tensor | None
    relative_values: Tensor | None
    bias: Tensor | None
    key_bias: Tensor | None


class AtomicBuffers(NamedTuple):
    """Where a program adds what it knows of a gradient; None where it adds nothing.

    key, value: [B, Hk, 1 + Lk + 1, width]. axes: `OfAxes.memory`. All float32 and contiguous, as those of the terms.
    Nothing is read of the spare rows before and after. They take what belongs to no row, so that such an addition waits
    for no condition.
    """

    key: Tensor | None
    value: Tensor | None
    axes: Tensor | None
    terms: Terms

    @classmethod
    def of(cls, memory: dict[str, Tensor], axes: Tensor | None) -> AtomicBuffers:
        """The memory by name, and that of all axes; what is not in it is not added to."""
        terms = Terms(*(memory.get(name) for name in Terms._fields))
        return cls(memory.get("key"), memory.get("value"), axes, terms)


def memory_for(call: Call, wanted: Differentiable[bool]) -> dict[str, Tensor]:
    """Zeros for dk, dv, the wanted tables and a wanted key bias, in float32."""
    memory = {name: with_spare_rows(name, getattr(call, name)) for name in ("key", "value")}
    for name, table in wanted_tables(call, wanted).items():
        of_heads = table.values.expand(call.query.shape[1], *table.values.shape[1:])
        memory[name] = with_spare_rows(name, of_heads)
    if wanted.key_bias and call.key_bias is not None:
        memory["key_bias"] = with_spare_rows("key_bias", call.key_bias)
    return memory


def with_spare_rows(name: str, like: Tensor) -> Tensor:
    """Zeros in float32: with a row before and a row after for rows of vectors, of the shape itself for numbers."""
    shape = like.shape if name in NUMBERS else (*like.shape[:-2], like.shape[-2] + 2, like.shape[-1])
    return new_memory(like, shape, zeros=True)
