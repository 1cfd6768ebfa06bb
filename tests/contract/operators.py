"""What the tests of the operators share: their arguments, inputs of any layout, and what they refuse."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from relattn import UnsupportedError, relative_attention
from relattn.backends.problem_arguments import CONSTANTS, PLACES, problem_of
from relattn.equation.problem import TABLES
from tests.contract.subject import INPUTS, Subject

LAYOUTS = {
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "sliced": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "expanded": lambda x: x[:, :1].expand_as(x),
}
"""Heads and positions exchanged in memory, as a projection leaves them; every other feature; one head for all."""


def laid_out(layout: str, subject: Subject) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Query, key and value in one of LAYOUTS, and the same numbers contiguous."""
    laid = {name: LAYOUTS[layout](subject.arrays[name]) for name in INPUTS}
    assert not any(tensor.is_contiguous() for tensor in laid.values())
    return laid, {name: tensor.contiguous() for name, tensor in laid.items()}


def operator_arguments(operator: Any, backend: str, subject: Subject, dropout_p: float, monkeypatch: Any) -> tuple:
    """What a call hands the operator of that module, leaves of their own."""
    recorded: list[tuple[Any, ...]] = []
    flat = operator.flat

    def record(*arguments: Any) -> tuple[Any, ...]:
        recorded.append(flat(*arguments))
        return recorded[-1]

    monkeypatch.setattr(operator, "flat", record)
    relative_attention(**subject.arguments(), backend=backend, dropout_p=dropout_p)
    tensors, *others = recorded[0]
    return [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors], *others


def backward_arguments(operator: Any, arguments: tuple) -> tuple:
    """What the backward operator gets for all gradients of a call with these arguments of the forward operator."""
    tensors, *others = arguments
    wanted = [n for n, tensor in enumerate(tensors) if tensor.requires_grad]
    assert wanted[:3] == [0, 1, 2]
    detached = [tensor.detach() for tensor in tensors], *others
    output, lse, maximum, total = operator(*detached)
    return output, maximum, total, torch.randn_like(output), torch.randn_like(lse), wanted, *detached


OPTIONAL = {
    "relative_query", *TABLES, "pairs", "key_bias", "key_mask", "segments", "softcap", "lowest", "highest", "seed"
}  # fmt: skip


def assert_all_is_given(calls: Sequence[tuple]) -> None:
    """Each kind of part is in one of these calls of an operator, and what may be absent is absent in another."""
    words = {word.split("/")[0] for *_, words in calls for word in words.split(" ")}
    dtypes = {word for word, constant in CONSTANTS.items() if isinstance(constant, torch.dtype)}
    assert words >= {"tensor", "int", "float", "tuple", *PLACES, *CONSTANTS} - dtypes - {"False"}
    given = []
    for call in calls:
        problem, seed = problem_of(*call)
        axis = problem.sequence()
        parts = problem._asdict() | vars(problem.mask) | axis._asdict() | vars(axis.positions) | {"seed": seed}
        given.append({name for name in OPTIONAL if parts[name] is not None})
    assert set.union(*given) == OPTIONAL
    assert not set.intersection(*given)


def assert_vmap_is_refused(name: str, kind: type, monkeypatch: pytest.MonkeyPatch, device: str = "cpu") -> None:
    """By the backend, and by the operator, which an exported graph calls without asking any backend."""
    stacked = [torch.randn(3, 1, 2, 5, 4, device=device) for _ in INPUTS]
    asked = torch.vmap(lambda *inputs: relative_attention(*inputs, backend=name))
    with pytest.raises(UnsupportedError, match=rf"backend='{name}' cannot run this: it .* vmap, grad and .* 'dense'"):
        asked(*stacked)
    monkeypatch.setattr(kind, "reasons", lambda *_: [])
    with pytest.raises(UnsupportedError, match=rf"backend='{name}' .* vmap; use 'dense'") as refusal:
        asked(*stacked)
    assert refusal.value.reasons == {name: ["it does not run under vmap"]}


def assert_double_backward_is_refused(name: str, output: Tensor, leaves: Sequence[Tensor]) -> None:
    first = torch.autograd.grad(output.sum(), leaves, create_graph=True)
    with pytest.raises(UnsupportedError, match=rf"backend='{name}' .* double backward; use 'dense'") as refusal:
        torch.autograd.grad(sum(gradient.sum() for gradient in first), leaves)
    assert refusal.value.reasons == {name: ["it has no double backward"]}
