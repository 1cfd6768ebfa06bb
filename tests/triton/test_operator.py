"""`relattn::triton` as an operator of PyTorch's: schema, fake and gradient agree; compiled, exported, refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from relattn import ShawEmbedding, T5Bias, UnsupportedError, attention_and_lse, relative_attention
from relattn.backends import problem_operator
from relattn.backends.problem_arguments import flat
from relattn.backends.triton import TritonBackend
from relattn.backends.triton.host.lowering import call_of as call_of_problem
from tests.contract.axes import AXES_CASES
from tests.contract.calls import gradients
from tests.contract.cases import CASES
from tests.contract.operators import (
    assert_all_is_given,
    assert_double_backward_is_refused,
    assert_vmap_is_refused,
    backward_arguments,
    operator_arguments,
)
from tests.contract.places import Place, on_a_grid, started
from tests.contract.settings import Setting
from tests.contract.subject import make_subject
from tests.requests import request_of
from tests.triton import everywhere, one_order

pytest_plugins = ["tests.contract.fresh"]

PLAIN = Setting(batch=2, num_heads=4, num_kv_heads=2, query_length=10, key_length=6, head_dim=4, value_dim=3)


def explicit_place(length: int) -> Place:
    return Place(np.arange(length) // 2, np.arange(length) // 2)


IDS = np.arange(32).reshape(2, 16) // 4
PART = on_a_grid(("y", "x"), (3, 4), 1, first=0, length=10), on_a_grid(("y", "x"), (3, 4), 1, first=2, length=6)
GRID = {axis: (PART[0][axis], PART[1][axis]) for axis in ("y", "x")}
# Every kind of argument that the operator has: which case, what the call asks for, and its dropout.
CALLS: dict[str, tuple[str, dict[str, Any], float]] = {
    "no tables": ("none", {}, 0.0),
    "every table, limits": ("terms_all", {"is_causal": True, "window": (3, None), "query_position": 2}, 0.0),
    "rewritten query and key": ("terms_all_error", {}, 0.0),
    "a key mask": ("t5", {"key_mask": np.arange(6) < np.array([[4], [6]])}, 0.0),
    "segments": ("alibi_4_heads", {"segment_ids": (IDS[:, :10], IDS[:, 10:])}, 0.0),
    "a boolean mask": ("shaw", {"attn_mask": np.eye(10, 6, dtype=bool)[None, None]}, 0.0),
    "a float mask": ("shaw", {"attn_mask": np.eye(10, 6)[None, None]}, 0.0),
    "a float mask for few queries": ("none", {"query_length": 5, "attn_mask": np.eye(5, 6)[None, None]}, 0.0),
    "dropout": ("terms_all", {}, 0.3),
    "few queries": ("terms_all", {"query_length": 5}, 0.0),
    "a cap and a key bias": ("t5", {"softcap": 2.0, "key_bias": (1, 4)}, 0.0),
    "sinks": ("t5", {"sinks": "per head"}, 0.0),
    "an explicit sequence": ("terms_all", {"key_position": np.arange(6) * 2, "is_causal": True}, 0.0),
    "axes": ("shaw_on_both", {"axes": dict.fromkeys("yx", (explicit_place(10), started(2, 6)))}, 0.0),
    "a grid with a class token": ("beit", {"axes": GRID}, 0.0),
    "starts as tensors": ("terms_all_error", {"query_position": np.array(2), "window": (3, None)}, 0.0),
}
every_call = pytest.mark.parametrize("kind", CALLS)


def call_of(kind: str, device: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """The operator's arguments in such a call, leaves of their own."""
    name, changes, dropout_p = CALLS[kind]
    subject = make_subject((CASES | AXES_CASES)[name], replace(PLAIN, **changes), "float32").on(device)
    return operator_arguments(problem_operator, "triton", subject, dropout_p, monkeypatch)


@everywhere
@every_call
def test_the_operator_passes_opcheck(kind: str, device: str, monkeypatch) -> None:
    torch.library.opcheck(torch.ops.relattn.triton.default, call_of(kind, device, monkeypatch))


@everywhere
@every_call
def test_the_backward_operator_passes_opcheck(kind: str, device: str, monkeypatch) -> None:
    """Less the check of its gradient, which it refuses to have."""
    given = backward_arguments(torch.ops.relattn.triton, call_of(kind, device, monkeypatch))
    utils = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.relattn.triton_backward.default, given, test_utils=utils)


@everywhere
def test_every_kind_of_argument_is_checked(device: str, monkeypatch) -> None:
    """A new argument of the operator needs a call that gives it."""
    assert_all_is_given([call_of(kind, device, monkeypatch) for kind in CALLS])


@everywhere
@pytest.mark.parametrize("given", [(), ("key_bias",), ("attn_mask",)], ids=str)
def test_numbers_of_a_row_that_are_kept(given: tuple[str, ...], device: str) -> None:
    """Two per query, maximum and total."""
    query, key, value = (torch.randn(2, 3, n, 8, device=device, requires_grad=True) for n in (12, 13, 13))
    numbers = torch.randn(13, device=device)
    more = {name: numbers.expand(2, 3, 13) if name == "key_bias" else numbers.expand(1, 1, 12, 13) for name in given}
    output = relative_attention(query, key, value, **more, backend="triton")
    assert output.grad_fn is not None
    saved = output.grad_fn.saved_tensors  # pyright: ignore[reportAttributeAccessIssue]
    assert len({one.data_ptr() for one in saved if one is not None and one.shape == (2, 3, 12)}) == 2


@everywhere
@pytest.mark.parametrize("key_bias", [None, torch.arange(12.0).expand(1, 2, 12)], ids=["", "a key bias"])
def test_lse_may_be_changed_in_place(key_bias: Tensor | None, device: str) -> None:
    inputs = [torch.randn(1, 2, 12, 8, device=device, requires_grad=True) for _ in range(3)]
    given = {"key_bias": None if key_bias is None else key_bias.to(device), "backend": "triton"}
    output, lse = attention_and_lse(*inputs, **given)
    expected = torch.autograd.grad(output.sum(), inputs, retain_graph=True)
    with torch.no_grad():
        lse += 1.0
    for one, other in zip(torch.autograd.grad(output.sum(), inputs), expected, strict=True):
        assert torch.equal(one, other)


@everywhere
def test_a_checkpoint_that_is_watched_the_first_time_only(device: str) -> None:
    """PyTorch compares how many tensors were saved, then and when the call is made again."""
    inputs = [torch.randn(1, 2, 12, 8, device=device, requires_grad=True) for _ in range(3)]

    def attend(*given: Tensor) -> Tensor:
        return relative_attention(*given, backend="triton")

    with FlopCounterMode(display=False):
        output = checkpoint(attend, *inputs, use_reentrant=False)
    found = torch.autograd.grad(output.sum(), inputs)
    for one, other in zip(found, torch.autograd.grad(attend(*inputs).sum(), inputs), strict=True):
        torch.testing.assert_close(one, other)


@everywhere
@pytest.mark.parametrize("name", ["txl+shaw+t5", "relative", "terms_all"])
def test_one_graph_for_every_length(name: str, device: str, rng: np.random.Generator) -> None:
    """torch.compile with open lengths: forward and backward as without it, nothing compiled again."""
    counter = CompileCounterWithBackend("aot_eager")
    setting = Setting(1, 4, 2, 20, 20, 4, 4, seed=int(rng.integers(2**32)))
    subject = make_subject(CASES[name], setting, "float32").on(device)
    others = {key: value for key, value in subject.arguments().items() if key not in ("query", "key", "value")}

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return relative_attention(query, key, value, **{**others, "attn_mask": None}, backend="triton")

    torch._dynamo.reset()
    compiled = torch.compile(attend, backend=counter, fullgraph=True, dynamic=True)
    graphs = []
    rewritten = subject.arrays.get("terms.query") is not None or "terms.relative_query" in subject.arrays
    for queries, keys in [(20, 18)] if rewritten else [(12, 20), (13, 17), (20, 18)]:
        inputs = [
            subject.arrays[which][:, :, :length].detach().contiguous().requires_grad_()
            for which, length in (("query", queries), ("key", keys), ("value", keys))
        ]
        with one_order(device):
            found, expected = ((y, *gradients((y,), inputs)) for y in (f(*inputs) for f in (compiled, attend)))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1] > 0, f"{graphs} graphs after as many lengths"


class Causal(torch.nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return relative_attention(query, key, value, is_causal=True, backend="triton")


@everywhere
def test_an_exported_program_calls_the_operator(device: str, rng: np.random.Generator) -> None:
    query, key, value = (torch.randn(2, 2, 19, 4, device=device) for _ in range(3))
    length = {2: torch.export.Dim("length", min=2, max=64)}
    program = torch.export.export(Causal(), (query, key, value), dynamic_shapes=(length, length, length))
    assert [node.target for node in program.graph.nodes].count(torch.ops.relattn.triton.default) == 1
    shorter = [tensor[:, :, :7] for tensor in (query, key, value)]
    assert torch.equal(program.module()(*shorter), Causal()(*shorter))


@pytest.mark.parametrize(
    ("asked", "encoding", "expected"),
    [("highest", None, "ieee"), ("high", None, "tf32x3"), ("medium", T5Bias(2), "tf32x3"),
     ("high", ShawEmbedding(4, 3), "ieee"), ("high", T5Bias(2).on("x"), "ieee")],
    ids=["highest", "high", "medium and a bias", "high and vectors", "high and a list"],
)  # fmt: skip
def test_the_precision_is_what_pytorch_is_set_to(asked: str, encoding: Any, expected: str) -> None:
    """Beside tables of vectors, and beside explicit positions, the parts of float32 have no room."""
    inputs, position = [torch.randn(1, 2, 5, 4) for _ in range(3)], {"x": torch.arange(5) * 2}
    problem = request_of(*inputs, encoding=encoding, query_position=position, key_position=position).problem
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(asked)
    try:
        assert call_of_problem(problem, None).precision == expected
    finally:
        torch.set_float32_matmul_precision(before)


@everywhere
@pytest.mark.parametrize(
    ("width", "start", "reason"),
    [
        (257, 0, "it holds at most 256 features of a row on chip, and query has 257"),
        (4, 2**30, "it takes offsets up to 1073741824 on the sequence, and those of this call reach 1073741830"),
    ],
)
def test_the_operator_refuses_what_the_backend_would(width: int, start: int, reason: str, device: str) -> None:
    """An exported graph calls it without asking the backend."""
    rows = torch.zeros(1, 1, 3, width, device=device)
    arguments = flat(request_of(rows, rows, rows, query_position=start).problem, None)
    with pytest.raises(UnsupportedError) as caught:
        torch.ops.relattn.triton(*arguments)
    assert str(caught.value) == f"backend='triton' cannot run this: {reason}; use 'dense'"


@everywhere
def test_vmap_is_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_vmap_is_refused("triton", TritonBackend, monkeypatch, device)


@everywhere
def test_double_backward_is_refused(device: str) -> None:
    inputs = [torch.randn(1, 2, 5, 4, device=device, requires_grad=True) for _ in range(3)]
    assert_double_backward_is_refused("triton", relative_attention(*inputs, backend="triton"), inputs)
