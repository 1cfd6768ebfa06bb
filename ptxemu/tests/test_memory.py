"""Global memory: where tensors lie, what is outside of them, and addresses that need more than 32 bits."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ptxemu.fault import Fault
from ptxemu.memory import APART, Memory


def test_tensors_of_one_storage_lie_in_it() -> None:
    memory, tensor = Memory(), torch.arange(24.0).reshape(4, 6)
    first = memory.address(tensor)
    assert memory.address(tensor[1:, 2:]) == first + 4 * 8
    assert memory.address(torch.zeros(3)) == first + APART


def test_what_is_stored_is_in_the_tensor() -> None:
    memory, tensor = Memory(), torch.zeros(2, 3)
    address = memory.address(tensor)
    memory.store(np.array([address + 4, address + 16]), np.array([[1.5], [2.5]], np.float32).view(np.uint32))
    assert tensor.tolist() == [[0.0, 1.5, 0.0], [0.0, 2.5, 0.0]]
    found = memory.load(np.array([address + 16, address]), 4, 1)
    assert found.view(np.float32).tolist() == [[2.5], [0.0]]


def test_several_storages_at_once() -> None:
    memory, tensors = Memory(), [torch.full((3,), float(n)) for n in range(3)]
    addresses = np.array([memory.address(tensor) for tensor in tensors])
    assert memory.load(addresses[[2, 0, 1, 2]], 4, 1).view(np.float32).ravel().tolist() == [2.0, 0.0, 1.0, 2.0]


@pytest.mark.parametrize("beyond", [12, -4, 2**31, 2**32, -(2**32)])
def test_outside(beyond: int) -> None:
    """Whether just beside it, or where a sum that has lost its upper bits leads."""
    memory = Memory()
    memory.address(torch.zeros(1))
    address = memory.address(torch.zeros(3)) + beyond
    with pytest.raises(Fault) as fault:
        memory.load(np.array([address]), 4, 1)
    assert str(fault.value) == f"4 bytes at global address {address:#x} lie outside of what was handed over"


def test_a_tensor_of_more_bytes_than_32_bits_can_say(tmp_path: Path) -> None:
    tensor = torch.from_file(str(tmp_path / "sparse"), True, 3 * 2**30, dtype=torch.float32)
    memory, far = Memory(), 2 * 2**30 + 5
    address = memory.address(tensor)
    memory.store(np.array([address + 4 * far]), np.array([[7.0]], np.float32).view(np.uint32))
    assert tensor[far] == 7.0
    assert tensor[far % 2**30] == 0.0
