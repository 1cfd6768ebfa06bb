"""Spread: tensors that lie on several devices. They are refused where a call would take a part for the whole.

Nothing of torch.distributed is imported: a program with DTensors has already imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from types import BuiltinFunctionType
from typing import Any, NoReturn, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relattn.errors import UnsupportedError
from relattn.interception import constant_in_graphs

Output = TypeVar("Output")
ORDINARY = (Tensor, nn.Parameter)
"""No DTensors: to ask them no more keeps a call short."""


def is_dtensor(tensor: Tensor) -> bool:
    """Whether it is a DTensor, whose numbers lie on several devices."""
    if type(tensor) in ORDINARY:
        return False
    distributed: Any = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def refuse_spread(name: str, tensor: Tensor) -> NoReturn:
    """Raises TypeError: for what an encoding computes from DTensors, or has among its parameters."""
    raise TypeError(
        f"{name}: got {_described(tensor)}; expected an ordinary tensor; split the encoding's heads with "
        "relattn.distributed.HeadwiseParallel, or let fully_shard wrap the layer that it belongs to"
    )


def refuse_spread_input(name: str, tensor: Tensor) -> NoReturn:
    """Raises TypeError: for a query, key or value that is a DTensor."""
    raise TypeError(
        f"{name}: got {_described(tensor)}; expected an ordinary tensor; give .to_local(), this process's part: to "
        "relattn.distributed.context_parallel_attention where the sequence is split, or with an encoding under "
        "relattn.distributed.HeadwiseParallel where the heads are"
    )


def _described(tensor: Any) -> str:
    placed = ", ".join(str(placement) for placement in tensor.placements)
    return f"a DTensor ({placed} over {tensor.device_mesh.size()} devices)"


def heads_elsewhere(made_for: int, came: int) -> str:
    """The end of a message where missing heads may be on other devices; empty where no heads are missing."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ""
    if came == 0 or made_for <= came or made_for % came:
        return ""
    return "; where the heads are split over devices, split the encoding's with relattn.distributed.HeadwiseParallel"


@constant_in_graphs
def refuse_context_parallel() -> None:
    """Raises UnsupportedError: under torch's `context_parallel`, which replaces torch's own attention by its ring.

    Each process then holds a part of the sequence. Any other attention would see only that part, at position 0.
    """
    if type(F.scaled_dot_product_attention) is BuiltinFunctionType:
        return
    if str(getattr(F.scaled_dot_product_attention, "__module__", "")).startswith("torch.distributed."):
        raise UnsupportedError(
            "relative_attention: was called under torch's context_parallel, where each process would attend to its own "
            "part of the sequence alone; call relattn.distributed.context_parallel_attention outside of it, on parts "
            "that relattn.distributed.split makes"
        )


def check_split_alike(layer: nn.Module, projection: nn.Module) -> None:
    """If a layer's projection is split over devices, all parameters of the layer that learn are split, too.

    Raises TypeError: for a parameter that is not split. Each process would take the gradient of its own heads for the
    whole.
    """
    if "torch.distributed.tensor" not in sys.modules or not torch.is_grad_enabled():
        return
    if not any(is_dtensor(parameter) and _is_split(parameter) for parameter in projection.parameters()):
        return
    for name, parameter in layer.named_parameters():
        if parameter.requires_grad and not is_dtensor(parameter):
            raise TypeError(
                f"{type(layer).__name__} {name}: got an ordinary parameter in a layer whose projections are split over "
                "devices, where each process would give it the gradient of its own heads alone; expected a DTensor; "
                "split the whole layer with relattn.distributed.HeadwiseParallel"
            )


def _is_split(tensor: Any) -> bool:
    return tensor.device_mesh.size() > 1 and not all(placement.is_replicate() for placement in tensor.placements)


def outliving(module: nn.Module, output: Output) -> Output:
    """What a module returns; copies of its tensors where `fully_shard` wraps the module.

    After the call FSDP2 frees the gathered parameters, and a table may be one. It also hangs the hook that gathers them
    again on these tensors, and an operation in place would drop it from a view, as a Linear returns one.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return _copied(output) if fsdp is not None and isinstance(module, fsdp.FSDPModule) else output


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {name: _copied(part) for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _copied(getattr(value, field.name)) for field in fields(value)})
    return value
