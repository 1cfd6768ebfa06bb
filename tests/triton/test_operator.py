"""`relattn::triton` as an operator of PyTorch's: schema, fake and gradient agree; compiled, exported, refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from relattn import relative_attention
from relattn.backends.triton import TritonBackend, operator
from tests.contract.calls import gradients
from tests.contract.cases import CASES
from tests.contract.operators import assert_double_backward_is_refused, assert_vmap_is_refused, operator_arguments
from tests.contract.settings import Setting
from tests.contract.subject import make_subject
from tests.triton import everywhere

pytest_plugins = ["tests.contract.fresh"]

PLAIN = Setting(batch=2, num_heads=4, num_kv_heads=2, query_length=10, key_length=6, head_dim=4, value_dim=3)
IDS = np.arange(32).reshape(2, 16) // 4
# Every kind of argument that the operator has: which case, what the call asks for, and its dropout.
CALLS: dict[str, tuple[str, dict[str, Any], float]] = {
    "no tables": ("none", {}, 0.0),
    "every table, limits": ("terms_all", {"is_causal": True, "window": (3, None), "query_position": 2}, 0.0),
    "rewritten query and key": ("terms_all_refuse", {}, 0.0),
    "a key mask": ("t5", {"key_mask": np.arange(6) < np.array([[4], [6]])}, 0.0),
    "segments": ("alibi_4_heads", {"segment_ids": (IDS[:, :10], IDS[:, 10:])}, 0.0),
    "a boolean mask": ("shaw", {"attn_mask": np.eye(10, 6, dtype=bool)[None, None]}, 0.0),
    "a float mask": ("shaw", {"attn_mask": np.eye(10, 6)[None, None]}, 0.0),
    "a float mask for few queries": ("none", {"query_length": 5, "attn_mask": np.eye(5, 6)[None, None]}, 0.0),
    "dropout": ("terms_all", {}, 0.3),
    "few queries": ("terms_all", {"query_length": 5}, 0.0),
    "a cap and a key bias": ("t5", {"softcap": 2.0, "key_bias": (1, 4)}, 0.0),
    "sinks": ("t5", {"sinks": "per head"}, 0.0),
}
every_call = pytest.mark.parametrize("kind", CALLS)


def call_of(kind: str, device: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """The operator's arguments in such a call, leaves of their own."""
    name, changes, dropout_p = CALLS[kind]
    subject = make_subject(CASES[name], replace(PLAIN, **changes), "float32").on(device)
    return operator_arguments(operator, "triton", subject, dropout_p, monkeypatch)


@everywhere
@every_call
def test_the_operator_passes_opcheck(kind: str, device: str, monkeypatch) -> None:
    torch.library.opcheck(torch.ops.relattn.triton.default, call_of(kind, device, monkeypatch))


@everywhere
@pytest.mark.parametrize(
    ("asked", "kind", "expected"),
    [("highest", "sinks", "ieee"), ("high", "sinks", "tf32x3"), ("medium", "sinks", "tf32x3"),
     ("high", "dropout", "ieee")],
)  # fmt: skip
def test_the_precision_is_what_pytorch_is_set_to(
    asked: str, kind: str, expected: str, device: str, monkeypatch
) -> None:
    """Dropout's call has tables of vectors, beside which the parts have no room."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(asked)
    try:
        arguments = call_of(kind, device, monkeypatch)
    finally:
        torch.set_float32_matmul_precision(before)
    assert arguments[operator.NAMES.index("precision")] == expected


@everywhere
@every_call
def test_the_backward_operator_passes_opcheck(kind: str, device: str, monkeypatch) -> None:
    """Less the check of its gradient, which it refuses to have."""
    arguments = call_of(kind, device, monkeypatch)
    named = {
        name: value for name, value in zip(operator.NAMES, arguments, strict=True) if name in operator.DIFFERENTIABLE
    }
    wanted = [name for name, value in named.items() if isinstance(value, Tensor) and value.requires_grad]
    assert {"query", "key", "value"} <= set(wanted)
    detached = [a.detach() if isinstance(a, Tensor) else a for a in arguments]
    answers = torch.ops.relattn.triton(*detached)
    cotangents = [torch.randn_like(answer) for answer in answers[:2]]
    torch.library.opcheck(
        torch.ops.relattn.triton_backward.default,
        (*answers, *cotangents, wanted, *detached),
        test_utils=("test_schema", "test_faketensor"),
    )


@everywhere
def test_every_kind_of_argument_is_checked(device: str, monkeypatch) -> None:
    """A new argument of the operator needs a call that gives it."""
    calls = [call_of(kind, device, monkeypatch) for kind in CALLS]
    names = [argument.name for argument in torch.ops.relattn.triton.default._schema.arguments]
    given = [{name for name, value in zip(names, call, strict=True) if value is not None} for call in calls]
    assert set.union(*given) == set(names)
    assert {"relative_query", "explicit_mask", "seed", "lowest"}.isdisjoint(set.intersection(*given))


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


@everywhere
def test_vmap_is_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_vmap_is_refused("triton", TritonBackend, monkeypatch, device)


@everywhere
def test_double_backward_is_refused(device: str) -> None:
    inputs = [torch.randn(1, 2, 5, 4, device=device, requires_grad=True) for _ in range(3)]
    assert_double_backward_is_refused("triton", relative_attention(*inputs, backend="triton"), inputs)
