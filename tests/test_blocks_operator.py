"""`relattn::blocks` as an operator of PyTorch's: its schema, fake and gradient agree; what it refuses, it says.

`ecosystem` has torch.compile and torch.export.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from relattn import relative_attention
from relattn.backends import problem_operator
from relattn.backends.blocks import BlocksBackend
from relattn.backends.problem_arguments import flat
from relattn.equation.mask import Mask
from relattn.equation.problem import Axis, Problem
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.positions import Positions
from tests import seeds
from tests.contract.axes import AXES_CASES, grid_bias, of, on
from tests.contract.calls import assert_equal, gradients, self_attention
from tests.contract.cases import CASES, disentangled, shaw, t5
from tests.contract.operators import (
    LAYOUTS,
    assert_all_is_given,
    assert_double_backward_is_refused,
    assert_vmap_is_refused,
    backward_arguments,
    laid_out,
    operator_arguments,
)
from tests.contract.places import explicit, on_a_grid, started
from tests.contract.settings import Setting
from tests.contract.subject import INPUTS, make_subject

pytest_plugins = ["tests.contract.fresh"]

PLAIN = Setting(batch=2, num_heads=4, num_kv_heads=2, query_length=5, key_length=6, head_dim=4, value_dim=3)
ROWS = seeds.generator("rows").integers(0, 6, (2, 5))
PART = (
    on_a_grid(("y", "x"), (2, 3), prefix_tokens=1, first=2, length=5),
    on_a_grid(("y", "x"), (2, 3), 1, first=0, length=6),
)
GRID = {axis: (PART[0][axis], PART[1][axis]) for axis in ("y", "x")}
EXPLICIT = {axis: (started(2, 5), explicit(seeds.generator(axis), 6, batch)) for axis, batch in (("y", 2), ("x", None))}
ON_AXES = CASES | AXES_CASES | {"on_axes": of(on("y", disentangled), on("y", shaw), grid_bias, t5)}
# Every kind of argument that the operator has: which case, what the call asks for, its dtype, and its dropout.
CALLS: dict[str, tuple[str, dict[str, Any], str, float]] = {
    "no tables": ("none", {}, "float32", 0.0),
    "every table, limits": ("terms_all", {"is_causal": True, "window": (3, None), "query_position": 2}, "float64", 0.0),
    "rewritten query and key": ("terms_all_error", {}, "float32", 0.0),
    "a table made for the call": ("txl", {}, "float32", 0.0),
    "starts as tensors": ("txl", {"query_position": np.array(3), "window": (4, 1)}, "float32", 0.0),
    "explicit positions": ("terms_all", {"query_position": ROWS[0], "key_position": np.arange(6)}, "float32", 0.0),
    "explicit positions per row": ("shaw", {"query_position": ROWS, "is_causal": True}, "float32", 0.0),
    "a key mask": ("t5", {"key_mask": np.arange(6) < np.array([[4], [6]])}, "float32", 0.0),
    "segments": ("alibi_4_heads", {"segment_ids": (ROWS // 3, np.arange(12).reshape(2, 6) // 4)}, "float32", 0.0),
    "a boolean mask": ("shaw", {"attn_mask": np.eye(5, 6, dtype=bool)[None, None]}, "float32", 0.0),
    "a float mask": ("relative", {"attn_mask": np.ones((2, 1, 1, 6))}, "float32", 0.0),
    "a key bias and a cap": ("relative", {"key_bias": (2, 1), "softcap": 2.0, "is_causal": True}, "float32", 0.0),
    "dropout": ("terms_all", {}, "float32", 0.3),
    "bfloat16": ("shaw", {}, "bfloat16", 0.0),
    "a grid with a class token": ("beit", {"axes": GRID}, "float32", 0.0),
    "every table on axes": ("on_axes", {"axes": EXPLICIT, "is_causal": True}, "float64", 0.0),
    "a grid beside explicit positions": ("layoutlm_v3", {"axes": GRID | {"y": EXPLICIT["y"]}}, "float32", 0.0),
}


def call_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """The operator's arguments in such a call, leaves of their own."""
    name, changes, dtype, dropout_p = CALLS[kind]
    subject = make_subject(ON_AXES[name], replace(PLAIN, **changes), dtype)
    return operator_arguments(problem_operator, "blocks", subject, dropout_p, monkeypatch)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("kind", CALLS)
def test_the_operator_passes_opcheck(kind: str, monkeypatch) -> None:
    torch.library.opcheck(torch.ops.relattn.blocks.default, call_of(kind, monkeypatch))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", CALLS)
def test_the_backward_operator_passes_opcheck(kind: str, monkeypatch) -> None:
    """Less the check of its gradient, which it refuses to have."""
    given = backward_arguments(torch.ops.relattn.blocks, call_of(kind, monkeypatch))
    utils = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.relattn.blocks_backward.default, given, test_utils=utils)


def test_every_kind_of_argument_is_checked(monkeypatch) -> None:
    """A new argument of the operator needs a call that gives it."""
    assert_all_is_given([call_of(kind, monkeypatch) for kind in CALLS])


def test_a_start_on_the_cpu_goes_to_the_query_s_device() -> None:
    """A call may have it there, and a kernel reads it."""
    query, key = (torch.empty(1, 2, length, 4, device="meta") for length in (3, 5))
    for start, other in ((torch.tensor(7), 0), (torch.tensor(7), torch.tensor(2, device="meta"))):
        positions = Positions(ContiguousPositions(start), ContiguousPositions(other), 3, 5, query.device)
        problem = Problem(query, key, key, (Axis(positions),), Mask(positions), 1.0, query.dtype)
        assert {tensor.device for tensor in flat(problem, None).tensors} == {query.device}


# --- what it refuses


def test_vmap_is_refused(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_vmap_is_refused("blocks", BlocksBackend, monkeypatch)


def test_double_backward_is_refused(rng: np.random.Generator) -> None:
    subject = self_attention("shaw", rng)
    output = subject.run("blocks", return_lse=False)
    assert_double_backward_is_refused("blocks", output, list(subject.arrays.values()))


# --- how it is called


small_blocks = pytest.mark.parametrize("backend", ["blocks"], indirect=True)


@small_blocks
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: Any, backend: str, rng: np.random.Generator) -> None:
    subject = self_attention("txl+shaw+t5", rng)
    with mode():
        output, lse = subject.run(backend)
    assert not output.requires_grad
    assert not lse.requires_grad
    assert_equal((output, lse), subject.run("dense"))


@small_blocks
@pytest.mark.parametrize("wanted", [["query"], ["value"], ["key", "0.relative_values"], ["0.relative_keys"]])
def test_some_gradients_alone(wanted: list[str], backend: str, rng: np.random.Generator) -> None:
    subject = self_attention("shaw", rng)
    for name, array in subject.arrays.items():
        array.requires_grad_(name in wanted)
    found, expected = (
        torch.autograd.grad(subject.run(name)[0].sum(), [subject.arrays[array] for array in wanted])
        for name in (backend, "dense")
    )
    assert_equal(found, expected)


@small_blocks
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_that_are_not_contiguous(layout: str, backend: str, rng: np.random.Generator) -> None:
    subject = self_attention("shaw", rng)
    arrays = list(subject.arrays.values())
    found, expected = (
        (output, *gradients((output,), arrays))
        for output in (
            relative_attention(**{**subject.arguments(), **inputs}, backend=backend)
            for inputs in laid_out(layout, subject)
        )
    )
    assert_equal(found, expected)


@small_blocks
def test_gradients_that_arrive_expanded(backend: str, rng: np.random.Generator) -> None:
    """The gradient of a sum is one number with a stride of zero."""
    subject = self_attention("txl+shaw+t5", rng)
    arrays = list(subject.arrays.values())
    found, expected = (torch.autograd.grad(subject.run(name)[0].sum(), arrays) for name in (backend, "dense"))
    assert_equal(found, expected)


@pytest.mark.one_in(4)
@small_blocks
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_activation_checkpointing(
    dropout_p: float, use_reentrant: bool, backend: str, rng: np.random.Generator
) -> None:
    """The forward pass that is run again draws the mask that the first one drew."""
    subject = self_attention("shaw", rng)
    arrays = list(subject.arrays.values())

    def call(*inputs: Tensor) -> Tensor:
        given = {**subject.arguments(), **dict(zip(INPUTS, inputs, strict=True))}
        return relative_attention(**given, backend=backend, dropout_p=dropout_p)

    inputs, found = [subject.arrays[name] for name in INPUTS], []
    for run in (call, lambda *given: checkpoint(call, *given, use_reentrant=use_reentrant)):
        seeds.start_torch("dropout")
        for array in arrays:
            array.grad = None
        output = run(*inputs)
        torch.randn(7)  # what else is drawn before the backward pass must not matter
        output.square().sum().backward()
        found.append([output, *(array.grad for array in arrays)])
    assert_equal(found[1], found[0])
