"""Memory linear in the length, at a length whose pairs fit nowhere: every tensor that a training step makes is counted.

Kernels allocate nothing. Tensors on the "meta" device have shapes and no numbers, and nothing is launched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from relattn.backends.triton.host.call import Call
from tests.made import Made
from tests.triton.calls import answered, every_gradient_of, launching, meta_axis, meta_call
from tests.triton.test_kernels import tensors_of

pytest.importorskip("triton", reason="Triton is a package for Linux")

LENGTH = 2**20
TABLES = ("relative_keys", "relative_queries", "relative_values", "bias")


def made(
    call: Call, monkeypatch: pytest.MonkeyPatch, launch: Callable[..., None] = lambda *given, **rest: None
) -> Made:
    """By a forward and a backward pass whose kernels are `launch`."""
    from relattn.backends.triton.kernels import backward, forward

    for module in launching():
        monkeypatch.setattr(module, "launch", launch)
    with Made() as count:
        answers = forward.forward(call)
        backward.backward(call, answered(answers, answers.output, answers.lse), every_gradient_of(call))
    return count


def allowed(call: Call) -> int:
    """What the shapes explain, in bytes, as if all numbers were float32.

    Tensors like the query: O, the gradients by query, key, value and relative query, and one for whatever has a number
    a row (lse, delta, sums beyond tables). Beyond a clipped table its vectors meet two sums: three copies of them.
    A table has a row for each of Lq + Lk offsets at most, and that four times: the sums of parts, those of all parts,
    the gradient, and the gradient in the table's dtype. A tensor of an explicit axis has its gradient, the sums behind
    it, and these times the scale.
    """
    batch, heads, length, width = call.query.shape
    found = {name: getattr(call, name).values for name in TABLES if getattr(call, name) is not None}
    clipped = [name for name, values in found.items() if name != "bias" and values.shape[1] < length]
    widths = sum(1 if name == "bias" else width for name in found)
    like_the_query = batch * heads * length * width
    of_axes = sum(tensor.numel() for axis in call.axes for tensor in tensors_of(axis).values())
    return 4 * ((6 + 3 * len(clipped)) * like_the_query + 4 * heads * 2 * length * widths + 3 * of_axes)


CLIPPED = 33
CASES: dict[str, tuple[tuple[str, ...], int | None, dict[str, Any]]] = {
    "no table": ((), None, {}),
    "relative keys for every offset": (("relative_keys",), None, {}),
    "clipped relative keys and values": (("relative_keys", "relative_values"), CLIPPED, {}),
    "a bias for every offset": (("bias",), None, {}),
    "a clipped bias": (("bias",), CLIPPED, {}),
    "relative queries and values for every offset": (("relative_queries", "relative_values"), None, {}),
    "every table, all offsets visible": (TABLES, None, {"highest": None}),
    "every table, clipped": (TABLES, CLIPPED, {}),
    "a window": (TABLES, None, {"lowest": -4096}),
    "a float mask for all queries": ((), None, {"pair_mask": True}),
    "an explicit sequence": ((), None, {"axes": {0: None}}),
    "another axis": (("relative_keys",), None, {"axes": {1: CLIPPED}}),
    "an explicit sequence and two axes": ((), None, {"axes": {0: CLIPPED, 1: CLIPPED, 2: CLIPPED}}),
}


def case(name: str, length: int) -> Call:
    """A call of CASES; None rows: one for every offset. axes: the rows of each explicit axis."""
    tables, rows, changes = CASES[name]
    every = 2 * length + 1
    axes = tuple(
        meta_axis(number, rows or every, length=length, own=64, highest=None if number else 0)
        for number, rows in changes.get("axes", {}).items()
    )
    call = meta_call(tables, rows or every, length=length, **changes | {"axes": axes, "pair_mask": None})
    mask = call.query.new_empty(call.query.shape[0], 1, 1, length) if "pair_mask" in changes else None
    return replace(call, pair_mask=mask)


@pytest.mark.parametrize("ordered", [False, True], ids=["atomic", "in order"])
@pytest.mark.parametrize("name", CASES)
def test_memory_is_linear_in_the_length(name: str, ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a million tokens, and twice that of half as many."""
    from relattn.backends.triton.kernels import backward

    monkeypatch.setattr(backward, "is_deterministic", lambda call, wanted: ordered)
    call = case(name, LENGTH)
    count, half = made(call, monkeypatch), made(case(name, LENGTH // 2), monkeypatch)
    assert count.bytes <= allowed(call), f"{count.bytes / allowed(call):.2f} of what is allowed; most: {count.most}"
    assert count.bytes <= 2.01 * half.bytes
    assert allowed(call) < LENGTH**2, "less than a byte for every pair of one head"


@pytest.mark.parametrize("queries", [1, 8])
def test_memory_of_decoding_does_not_grow_with_the_keys(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward pass: O, lse and those of each part, of which 1024 rows are the most, or one for each."""
    from relattn.backends.triton.kernels import decoding

    monkeypatch.setattr(decoding, "_launch", lambda *given: None)
    query = meta_call(TABLES, CLIPPED, length=queries)
    rows, width = query.query.shape[:3].numel(), query.query.shape[3]
    for keys in (LENGTH // 2, LENGTH):
        key = query.key.new_empty(*query.key.shape[:2], keys, width)
        with Made() as count:
            decoding.few_queries(replace(query, key=key, value=key, offset=keys - queries))
        assert count.bytes <= 4 * (width + 1) * (max(1024, rows) + rows)


def test_one_number_for_every_pair_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, shared by all heads and batch elements."""

    def launch(kernel, call: Call, programs, arguments, **rest) -> None:
        if kernel.__name__ == "forward_kernel":
            call.query.new_empty(LENGTH, LENGTH, dtype=torch.bool)

    for name in CASES:
        call = case(name, LENGTH)
        assert made(call, monkeypatch, launch).bytes > allowed(call)
