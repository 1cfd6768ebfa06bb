"""Spread: tensors that lie on several devices. They are refused where a call would take a part for the whole.

Nothing of torch.distributed is imported: a program with DTensors has already imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from relattn.interception import ORDINARY

Output = TypeVar("Output")
FSDP = "torch.distributed.fsdp"
"""A program that wraps a module with `fully_shard` has imported it."""
DTENSORS = "torch.distributed.tensor"
"""A program with DTensors has imported it."""


def is_dtensor(tensor: Tensor) -> bool:
    """Whether it is a DTensor, whose numbers lie on several devices."""
    if type(tensor) in ORDINARY:
        return False
    distributed: Any = sys.modules.get(DTENSORS)
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


def check_split_alike(layer: nn.Module, projection: nn.Module) -> None:
    """If a layer's projection is split over devices, all parameters of the layer that learn are split, too. DTensors
    must have been imported.

    Raises TypeError: for a parameter that is not split. Each process would take the gradient of its own heads for the
    whole.
    """
    if not torch.is_grad_enabled():
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
    """What a module returns; copies of its tensors where `fully_shard` wraps the module. FSDP must have been imported.

    After the call FSDP2 frees the gathered parameters, and a table may be one. It also hangs the hook that gathers them
    again on these tensors, and an operation in place would drop it from a view, as a Linear returns one.
    """
    fsdp: Any = sys.modules[FSDP]
    return _copied(output) if isinstance(module, fsdp.FSDPModule) else output


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {name: _copied(part) for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _copied(getattr(value, field.name)) for field in fields(value)})
    return value
