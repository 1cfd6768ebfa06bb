"""FSDP2 with a group for every encoding and every Linear: their numbers are whole only while they are called."""

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from relattn.encodings.base import RelativeEncoding
from tests.wrappers.layers import CASES, assert_same_sums, random_input

pytestmark = pytest.mark.wrappers


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """One process: its shards are whole, but tensors of another type, and freed between calls."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def encodings(layer: nn.Module) -> list[nn.Module]:
    """The encodings that hold parameters themselves or by their modules, the outermost ones."""
    held: Any = layer._modules.get("encoding")
    return [held] if held is not None and any(True for _ in held.parameters()) else []


def operands(layer: nn.Module) -> list[nn.Module]:
    """The encodings that hold parameters themselves."""
    return [
        module
        for module in layer.modules()
        if isinstance(module, RelativeEncoding) and any(True for _ in module.parameters(recurse=False))
    ]


def every_linear(layer: nn.Module) -> list[nn.Module]:
    """Every Linear, then the encodings that hold parameters themselves."""
    return [module for module in layer.modules() if isinstance(module, nn.Linear)] + operands(layer)


@pytest.mark.parametrize("groups", [encodings, operands, every_linear], ids=lambda groups: groups.__name__)
@pytest.mark.parametrize("name", CASES)
def test_a_group_for_every_part(name: str, groups: Any, mesh: DeviceMesh) -> None:
    """Outputs and gradients are those of the layer alone, and no group returns a view, of which FSDP2 warns."""
    case, x = CASES[name], random_input()
    alone = case.layer()
    layer = copy.deepcopy(alone)
    for module in groups(layer):
        fully_shard(module, mesh=mesh)
    fully_shard(layer, mesh=mesh)
    given = [x.clone().requires_grad_() for _ in range(2)]
    expected = case(alone, given[0])
    expected.square().sum().backward()
    with warnings.catch_warnings():
        if groups is not every_linear:  # a Linear itself returns a view
            warnings.simplefilter("error")
        output = case(layer, given[1])
        output.square().sum().backward()
    assert torch.equal(output, expected)
    assert_same_sums(given[1].grad, given[0].grad)
    for parameter, sharded in zip(alone.parameters(), layer.parameters(), strict=True):
        gradient: Any = sharded.grad
        assert_same_sums(gradient.full_tensor(), parameter.grad)
    with torch.no_grad():
        # Not to the bit: torch.matmul makes one product or one per head, as a parameter asks for a gradient or not.
        assert_same_sums(case(layer, x), case(alone, x))
