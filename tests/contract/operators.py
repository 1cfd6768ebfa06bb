"""What the tests of the operators share: their arguments, inputs of any layout, and what they refuse."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from relattn import UnsupportedError, relative_attention
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
    return torch.utils._pytree.tree_map_only(
        Tensor, lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad), recorded[0]
    )


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
